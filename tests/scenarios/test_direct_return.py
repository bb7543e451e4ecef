"""Pods answer clients of external addresses themselves, past the node that was reached (docs/direct-return.md)."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lab.answers import ask_json
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.feed import feed_for
from tests.lab.firewall import backend
from tests.lab.hosts import Host
from tests.lab.neighbours import run_portmap
from tests.lab.objects import Object, endpoint_slices, service

VIP, VIP6 = "198.51.100.7", "2001:db8::7"
PLAIN, PLAIN6 = "198.51.100.8", "2001:db8::8"
VIPS, PLAINS = (VIP, VIP6), (PLAIN, PLAIN6)
CLUSTER_IPS = ("10.254.0.10", "fd00:10:254::10")
OTHER_CLUSTER_IPS = ("10.254.0.11", "fd00:10:254::11")
PORTS = {"TCP": 8080, "UDP": 5353}
TUNNEL = {"kube-router.io/service.dsr": "tunnel"}
HOST_PORT = 8888
LARGE = 60_000
"""Bytes of a request: segments as large as the client may send."""


@contextmanager
def process_in(pod: Pod) -> Iterator[None]:
    """A process in a pod's namespace, as its pause container. The lab's servers are threads of the test."""
    process = subprocess.Popen(["ip", "netns", "exec", pod.namespace.name, "sleep", "infinity"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    """kroute in a cluster with a pod on node1 and one on node2. The client reaches VIPs by node3, which has none."""
    async with Cluster.start() as cluster:
        pods = [await cluster.node(name).pod(f"web-{name}", http=8080, udp=5353) for name in ("node1", "node2")]
        for node in cluster.nodes.values():
            for gateway in (cluster.client.ip, cluster.client.ip6):
                node.run("ip", "route", "add", "default", "via", gateway)
        for vip in (*VIPS, *PLAINS):
            node3 = cluster.node("node3")
            cluster.client.run("ip", "route", "add", vip, "via", node3.ip6 if ":" in vip else node3.ip)
        with process_in(pods[0]), process_in(pods[1]):
            deployment = Deployment(cluster, feed_for(cluster, tmp_path))
            yield deployment
            await deployment.cleanup()


def pods_of(cluster: Cluster) -> list[Pod]:
    return [pod for node in cluster.nodes.values() for pod in node.pods if pod.name.startswith("web")]


def direct_service(*, annotations: dict[str, str] = TUNNEL, **spec: Any) -> Object:
    return service("web", *CLUSTER_IPS, ports=PORTS, annotations=annotations, externalIPs=list(VIPS), **spec)


def drop_answers_of(node: Node) -> None:
    """Let the node forward no packet from a VIP."""
    rules = f"ip saddr {VIP} drop\n  ip6 saddr {VIP6} drop"
    node.run(
        "nft",
        "-f",
        "-",
        stdin=f"table inet watch {{\n chain f {{\n  type filter hook forward priority 0\n  {rules}\n }}\n}}\n",
    )


def inside(pod: Pod) -> str:
    """What kroute could have changed in a pod."""
    looks = (
        ("addr",),
        ("-4", "rule"),
        ("-6", "rule"),
        ("route", "show", "table", "all"),
        ("-6", "route", "show", "table", "all"),
    )
    shown = "\n".join(pod.run("ip", *it) for it in looks)
    arp = [pod.sysctl(f"net.ipv4.conf.eth0.{it}") for it in ("arp_ignore", "arp_announce", "rp_filter")]
    return f"{shown}\n{arp}"


async def answer_all(caller: Host, cluster: Cluster) -> bool:
    """Assert that all pods answer a caller at both VIPs, large requests too, and see the caller itself."""
    names = {pod.name for pod in pods_of(cluster)}
    for vip in VIPS:
        answers = [await caller.http(vip, 8080) for _ in range(4)]
        assert {it.host for it in answers} == names
        assert {it.peer for it in answers} == {caller.ip6 if ":" in vip else caller.ip}
        assert await caller.http_status(vip, 8080, path="/" + "x" * LARGE) == 200
        assert set(await caller.spread(vip, 5353, 4, "udp")) == names
    return True


async def explain_all(node: Node) -> None:
    """Assert that `kroute explain`, `kroute show service` and `kroute plan` know of direct return."""
    for vip in VIPS:
        code, said = await ask_json(node, "explain", f"[{vip}]:8080" if ":" in vip else f"{vip}:8080")
        [found] = said["items"]
        assert (code, found["differences"], found["isSteered"], found["isBound"]) == (0, [], True, False)
        assert "in a tunnel to the pod" in found["frontend"]["forwarding"]
        assert {it["fate"] for it in found["verdicts"]} == {"served"}
    code, said = await ask_json(node, "show", "service", "default/web")
    assert (code, sorted(said["directVips"])) == (0, sorted(VIPS))
    methods = {row["address"]: {it["method"] for it in row["realServers"]} for row in said["virtualServers"]}
    assert methods == {it: {"Tunnel"} for it in VIPS} | {it: {"Masq"} for it in CLUSTER_IPS}
    code, said = await ask_json(node, "plan")
    assert (code, said["items"]) == (0, [])


async def test_pods_answer_clients_outside_inside_and_on_nodes_themselves(deployment: Deployment) -> None:
    """Past the node that was reached; beside an ordinary Service; with nothing written at a restart."""
    cluster = deployment.cluster
    node1, node3, client = cluster.node("node1"), cluster.node("node3"), cluster.client
    visitor = await node1.pod("visitor")
    pods = pods_of(cluster)
    before = [inside(pod) for pod in pods]
    plain = service("plain", *OTHER_CLUSTER_IPS, externalIPs=list(PLAINS))
    deployment.apply(direct_service(), *endpoint_slices("web", pods, PORTS), plain, *endpoint_slices("plain", pods))
    await deployment.start("--direct-return")
    drop_answers_of(node3)
    await eventually(lambda: answer_all(client, cluster))
    await answer_all(visitor, cluster)
    await answer_all(node1, cluster)
    for vip in PLAINS:
        answer = await client.http(vip, 8080)
        assert answer.peer == (node3.ip6 if ":" in vip else node3.ip)
    for vip in VIPS:
        with pytest.raises(ConnectionRefusedError):
            await client.http(vip, 8081)
        assert vip not in " ".join(node3.addresses("kube-ipvs0"))

    await explain_all(node3)

    stream = await client.open_stream(VIP, 8080)
    prepared = [inside(pod) for pod in pods]
    routes = node1.run("ip", "route", "show", "table", "all"), node1.run("ip", "rule")
    await deployment.stop()
    await deployment.start("--direct-return")
    await goes_on(stream)
    await stream.close()
    assert [inside(pod) for pod in pods] == prepared
    assert (node1.run("ip", "route", "show", "table", "all"), node1.run("ip", "rule")) == routes

    pods[0].run("ip", "address", "delete", f"{VIP}/32", "dev", "kroute-dsr4")
    pods[0].run("ip", "rule", "delete", "from", VIP)
    await eventually(lambda: _assert_same([inside(pods[0])], prepared[:1]), 30)
    deployment.apply(*endpoint_slices("web", pods[1:], PORTS))
    await eventually(lambda: _answered_by(client, {pods[1].name}))
    deployment.apply(direct_service(annotations={}), *endpoint_slices("web", pods, PORTS))
    await eventually(lambda: _assert_same([inside(pod) for pod in pods], before), within=20)
    node3.run("nft", "delete", "table", "inet", "watch")
    for vip in VIPS:
        await eventually(partial(_peer, client, vip, node3.ip6 if ":" in vip else node3.ip))


async def test_source_ranges_hold_and_a_hash_keeps_a_client_on_its_pod(deployment: Deployment) -> None:
    cluster = deployment.cluster
    pods, client = pods_of(cluster), cluster.client
    node3, snapshot = cluster.node("node3"), cluster.node("node3").snapshot()
    balanced: dict[str, Any] = {"ingress": VIPS, "ports": PORTS}
    open_to_all = service("web", *CLUSTER_IPS, annotations=TUNNEL | {"kroute.io/scheduler": "sh"}, **balanced)
    deployment.apply(open_to_all, *endpoint_slices("web", pods, PORTS))
    await deployment.start("--direct-return")
    for vip in VIPS:
        await eventually(partial(_kept_on_one, client, vip))
    deployment.apply(
        service(
            "web", *CLUSTER_IPS, annotations=TUNNEL, **balanced, loadBalancerSourceRanges=["192.0.2.0/24", "fd01::/64"]
        )
    )
    for vip in VIPS:
        await eventually(partial(_is_dropped, client, vip))
    deployment.apply(service("web", *CLUSTER_IPS, annotations=TUNNEL, **balanced, sessionAffinity="ClientIP"))
    for vip in VIPS:
        await eventually(partial(_kept_on_one, client, vip))
    before = [inside(pod) for pod in pods]
    await deployment.cleanup()
    assert all("kroute" in it for it in before)
    assert not any("kroute" in inside(pod) or VIP in inside(pod) for pod in pods)
    assert "27506" not in node3.run("ip", "rule") + node3.run("ip", "-6", "rule")
    assert not snapshot.diff(node3.snapshot())


async def test_a_pod_that_cannot_be_prepared_gets_no_connection_and_costs_no_other(deployment: Deployment) -> None:
    """A link of kroute's name that is not kroute's stays as it is; the pod serves once it is gone."""
    cluster = deployment.cluster
    first, second = pods_of(cluster)
    client, node1 = cluster.client, cluster.node("node1")
    third = await node1.pod("web-third", http=8080, udp=5353)
    client.run("ip", "route", "replace", VIP, "via", node1.ip)
    first.run("ip", "link", "add", "kroute-dsr4", "type", "dummy")
    with process_in(third):
        deployment.apply(direct_service(), *endpoint_slices("web", [first, second, third], PORTS))
        await deployment.start("--direct-return")
        await eventually(lambda: _answered_by(client, {second.name, third.name}), within=20)
        assert "dummy" in first.run("ip", "-d", "link", "show", "kroute-dsr4")
        first.run("ip", "link", "delete", "kroute-dsr4")
        await eventually(lambda: _answered_by(client, {first.name, second.name, third.name}), within=60)


@pytest.mark.parametrize("mark", ["", "0x2000"], ids=["own mark", "mark of portmap"])
async def test_beside_a_host_port_of_portmaps_calls_keep_their_source(deployment: Deployment, mark: str) -> None:
    """The plugin masquerades what leaves with the mark 0x2000, which was the default of --direct-return-mark.

    Nothing leaves with kroute's mark, whatever it is: so calls keep their source even with one mark for both.
    """
    cluster = deployment.cluster
    node1, client, pods = cluster.node("node1"), cluster.client, pods_of(cluster)
    visitor = await node1.pod("visitor")
    run_portmap(await node1.pod("by-host-port", http=8080), HOST_PORT, 8080)
    assert "0x2000/0x2000" in node1.run("iptables-save", "-t", "nat")
    client.run("ip", "route", "replace", VIP, "via", node1.ip)
    plain = service("plain", *OTHER_CLUSTER_IPS, externalIPs=list(PLAINS))
    deployment.apply(direct_service(), *endpoint_slices("web", pods, PORTS), plain, *endpoint_slices("plain", pods))
    await deployment.start("--direct-return", *(("--direct-return-mark", mark) if mark else ()))
    await eventually(lambda: answer_all(client, cluster))
    await answer_all(visitor, cluster)
    for vip in (*CLUSTER_IPS, *OTHER_CLUSTER_IPS):
        answers = [await visitor.http(vip, 8080) for _ in range(4)]
        assert {it.host for it in answers} == {pod.name for pod in pods}
        assert {it.peer for it in answers} == {visitor.ip6 if ":" in vip else visitor.ip}
    for address in (node1.ip, node1.ip6):
        assert (await client.http(address, HOST_PORT)).host == "by-host-port"
    _, report = await ask_json(
        node1, "check", *deployment.source, "--direct-return", *(("--direct-return-mark", mark) if mark else ())
    )
    told = [it for it in report["items"] if it["check"] == "marks"]
    assert {it["level"] for it in told} == {"WARNING" if mark else "OK"}
    assert all("CNI-HOSTPORT" in it["message"] for it in told if mark)


async def test_an_agent_with_another_mark_leaves_no_rule_with_the_old_one(deployment: Deployment) -> None:
    """An upgrade from a version whose default was 0x2000, and its rollback."""
    cluster = deployment.cluster
    node1, client, pods = cluster.node("node1"), cluster.client, pods_of(cluster)
    deployment.apply(direct_service(), *endpoint_slices("web", pods, PORTS))
    for flags, mark, other in ((("--direct-return-mark", "0x2000"), 0x2000, 0x4), ((), 0x4, 0x2000)) * 2:
        await deployment.start("--direct-return", *flags)
        await eventually(lambda: answer_all(client, cluster))
        rules = [node1.run("ip", it, "rule", "show", "table", "27506").split() for it in ("-4", "-6")]
        assert [it[it.index("fwmark") + 1] for it in rules] == [f"{mark:#x}/{mark:#x}"] * 2
        assert [it.count("fwmark") for it in rules] == [1, 1]
        written = node1.run("nft", "list", "ruleset") + firewall_rules(node1)
        assert f"{other:#x}/{other:#x}" not in written
        assert f"| {other:#010x}" not in written
        await deployment.stop()


def firewall_rules(node: Node) -> str:
    """The rules of the legacy tables, if there are any."""
    return "".join(node.run(f"{it}-legacy-save") for it in ("iptables", "ip6tables") if backend() == "iptables")


async def _answered_by(client: Host, names: set[str]) -> bool:
    assert set(await client.spread(VIP, 8080, 9)) == names
    return True


async def _kept_on_one(client: Host, vip: str) -> None:
    assert len(await client.spread(vip, 8080, 6)) == 1


async def _is_dropped(client: Host, vip: str) -> bool:
    try:
        await client.http(vip, 8080, timeout=2)
    except TimeoutError:
        return True
    raise AssertionError(f"{vip} answers")


async def _peer(client: Host, vip: str, expected: str) -> bool:
    assert (await client.http(vip, 8080, timeout=2)).peer == expected
    return True


def _assert_same(found: list[str], expected: list[str]) -> None:
    assert found == expected
