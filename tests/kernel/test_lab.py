"""The lab itself: packets take their intended paths, and it has the problems that kroute solves."""

import asyncio
import contextlib
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import eventually
from tests.lab.firewall import has_legacy, has_nf_tables, legacy_refusals, of_this_kernel, tool
from tests.lab.kernel_state import RealServer
from tests.lab.kroute_process import KrouteEndedError
from tests.lab.namespaces import CommandError

VIP, VIP6 = "10.254.0.10", "fd00:10:254::10"
REFUSED = {"ip_tables": "ENOPROTOOPT", "ip6_tables": "ENOPROTOOPT", "ip_set": "EINVAL"}
LEGACY_CHANGES = ("+create LAB-SET hash:ip", "+-A POSTROUTING -j MASQUERADE", "+:LAB-CHAIN -")
NFT_CHANGES = (" masquerade", "+\tchain LAB-CHAIN {")
EVERYONE_TWICE = Counter({"web-1": 2, "web-2": 2, "web-3": 2})


async def pod_on_each_node(cluster: Cluster) -> list[Pod]:
    return [
        await node.pod(f"web-{number}", http=8080, udp=5353, sctp=9999)
        for number, node in enumerate(cluster.nodes.values(), 1)
    ]


def dummy_interface(node: Node, *addresses: str) -> None:
    node.namespace.ip(
        "link add lab-dummy type dummy\nlink set lab-dummy up\n"
        + "".join(f"address add {address} dev lab-dummy\n" for address in addresses)
    )


def virtual_server(node: Node, flag: str, vip: str, port: int, real_servers: list[str]) -> None:
    lines = [f"-A {flag} {vip}:{port} -s rr", *(f"-a {flag} {vip}:{port} -r {server} -m" for server in real_servers)]
    node.run("ipvsadm", "-R", stdin="\n".join(lines))


def source_route(node: Node, vip: str) -> None:
    node.run(
        *("ip", "route", "replace", "local", vip, "dev", "lab-dummy", "table", "local"),
        *("proto", "kernel", "scope", "host", "src", node.ip),
    )


@pytest.mark.parametrize("family", ["ip", "ip6"])
async def test_a_pod_reaches_pods_on_every_node_and_is_seen_as_itself(cluster: Cluster, family: str) -> None:
    pods = await pod_on_each_node(cluster)
    client = await cluster.node("node1").pod("client-pod")
    for pod in pods:
        for ask, port in ((client.http, 8080), (client.udp, 5353), (client.sctp, 9999)):
            answer = await ask(getattr(pod, family), port)
            assert (answer.host, answer.address, answer.peer) == (
                pod.name,
                getattr(pod, family),
                getattr(client, family),
            )


@pytest.mark.parametrize("family", ["ip", "ip6"])
async def test_a_node_reaches_pods_of_its_own_and_of_others(cluster: Cluster, family: str) -> None:
    node = cluster.node("node3")
    for pod in await pod_on_each_node(cluster):
        answer = await node.http(getattr(pod, family), 8080)
        assert answer.host == pod.name
        if pod.node is not node:
            assert answer.peer == getattr(node, family)


async def test_a_client_reaches_the_nodes_and_nothing_behind_them(cluster: Cluster) -> None:
    node = await cluster.node("node2").serve(http=22)
    pod = await cluster.node("node2").pod("web", http=8080)
    assert (await cluster.client.http(node.ip, 22)).peer == cluster.client.ip
    assert (await cluster.client.http(node.ip6, 22)).peer == cluster.client.ip6
    with pytest.raises(OSError, match="unreachable"):
        await cluster.client.http(pod.ip, 8080)


async def test_without_forwarding_on_the_nodes_pods_are_cut_off(cluster: Cluster) -> None:
    web = await cluster.node("node1").pod("web", http=8080)
    client = await cluster.node("node2").pod("client-pod")
    cluster.node("node1").sysctl("net.ipv4.ip_forward", 0)
    with pytest.raises(TimeoutError):
        await client.http(web.ip, 8080, timeout=1)


async def test_a_closed_port_refuses_and_a_vanished_pod_does_not_answer(cluster: Cluster) -> None:
    node = cluster.node("node1")
    pod = await node.pod("web", http=8080)
    with pytest.raises(ConnectionRefusedError):
        await node.http(pod.ip, 8081)
    with pytest.raises(ConnectionRefusedError):
        await node.udp(pod.ip, 5353)
    node.remove_pod(pod)
    with pytest.raises((TimeoutError, OSError)) as caught:
        await node.http(pod.ip, 8080, timeout=1)
    assert not isinstance(caught.value, ConnectionRefusedError)


async def test_a_host_calls_a_service_in_vain_unless_the_route_names_the_nodes_address(cluster: Cluster) -> None:
    """Scenario S1: without the route a packet's source is the VIP, which other nodes take for their own address."""
    pods = await pod_on_each_node(cluster)
    for node in cluster.nodes.values():
        dummy_interface(node, f"{VIP}/32")
        virtual_server(node, "-t", VIP, 8080, [f"{pod.ip}:8080" for pod in pods])
    node = cluster.node("node3")
    assert [(await node.http(pod.ip, 8080)).host for pod in pods] == ["web-1", "web-2", "web-3"]
    results = await asyncio.gather(*(node.http(VIP, 8080) for _ in range(6)), return_exceptions=True)
    assert Counter(getattr(result, "host", "nobody") for result in results) == {"web-3": 2, "nobody": 4}

    source_route(node, VIP)

    assert node.local_routes()[VIP] == node.ip
    assert await node.spread(VIP, 8080, 6) == EVERYONE_TWICE
    assert {(await node.http(VIP, 8080)).peer for _ in range(3)} >= {node.ip}


@pytest.mark.parametrize(
    ("protocol", "flag", "port"), [("http", "-t", 8080), ("udp", "-u", 5353), ("sctp", "--sctp-service", 9999)]
)
@pytest.mark.parametrize("family", ["ip", "ip6"])
async def test_a_pod_reaches_a_service_over(cluster: Cluster, family: str, protocol: str, flag: str, port: int) -> None:
    pods = await pod_on_each_node(cluster)
    node = cluster.node("node1")
    client = await node.pod("client-pod")
    dummy_interface(node, f"{VIP}/32", f"{VIP6}/128")
    vip, brackets = (VIP, "{}") if family == "ip" else (VIP6, "[{}]")
    servers = [f"{brackets.format(getattr(pod, family))}:{port}" for pod in pods]
    virtual_server(node, flag, brackets.format(vip), port, servers)
    assert await client.spread(vip, port, 6, protocol) == EVERYONE_TWICE


async def test_the_ipvs_table_of_a_node_is_its_own_and_reads_as_it_was_written(cluster: Cluster) -> None:
    node = cluster.node("node1")
    node.run("ipvsadm", "-A", "-t", f"{VIP}:80", "-s", "rr", "-p", "600")
    node.run("ipvsadm", "-a", "-t", f"{VIP}:80", "-r", "172.20.104.2:8080", "-m", "-w", "3")
    node.run("ipvsadm", "-A", "-u", f"[{VIP6}]:53", "-s", "rr")
    node.run("ipvsadm", "-A", "-f", "7", "-s", "rr")
    table = node.ipvs()
    assert set(table) == {f"TCP {VIP}:80", f"UDP [{VIP6}]:53", "FWM 7"}
    server = table[f"TCP {VIP}:80"]
    assert (server.scheduler, server.flags) == ("rr", "persistent 600")
    assert server.real_servers == {"172.20.104.2:8080": RealServer("Masq", 3, 0, 0)}
    assert cluster.node("node2").ipvs() == {}


async def test_a_stream_counts_every_byte_and_tells_of_a_break(cluster: Cluster) -> None:
    node = cluster.node("node1")
    pod = await cluster.node("node2").pod("web", http=8080)
    stream = await node.open_stream(pod.ip, 8080, interval=0.01)

    def is_flowing() -> None:
        assert stream.echoed >= 20

    def is_broken() -> None:
        assert stream.failure is not None

    await eventually(is_flowing)
    assert stream.failure is None
    await pod.stop_serving(reset=True)
    await eventually(is_broken)
    with pytest.raises(AssertionError, match="broke at byte"):
        await stream.close()


async def test_an_open_connection_stays_with_its_server(cluster: Cluster) -> None:
    pods = await pod_on_each_node(cluster)
    node = cluster.node("node1")
    dummy_interface(node, f"{VIP}/32")
    source_route(node, VIP)
    virtual_server(node, "-t", VIP, 8080, [f"{pod.ip}:8080" for pod in pods])
    connection = await node.connect(VIP, 8080)
    assert len({await connection.ask() for _ in range(6)}) == 1
    await connection.close()


async def test_legacy_tables_and_sets_are_refused_where_the_kernel_is_for_nftables_and_there_elsewhere(
    cluster: Cluster,
) -> None:
    """The tools are installed everywhere, and say the same as the kernel, which is asked without them."""
    node, is_legacy = cluster.node("node1"), has_legacy()
    with node.namespace.inside():
        assert legacy_refusals() == ({} if is_legacy else REFUSED)
    assert of_this_kernel() == ("iptables" if is_legacy else "nftables")
    for command in ("iptables-legacy -t nat -L", "ip6tables-legacy -L", "ipset list", "modprobe ip_set"):
        with contextlib.nullcontext() if is_legacy else pytest.raises(CommandError):
            node.run(*command.split())
    with contextlib.nullcontext() if has_nf_tables() else pytest.raises(CommandError):
        node.run("nft", "add table ip lab-table")
        assert "table ip lab-table\n" in node.run("nft", "list tables")
        node.run("iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-m", "mark", "--mark", "1", "-j", "MASQUERADE")
        node.run("ip6tables-nft", "-A", "INPUT", "-m", "comment", "--comment", "of the lab", "-j", "DROP")
    assert is_legacy or has_nf_tables()


async def test_a_snapshot_shows_each_kind_of_change_and_nothing_else(cluster: Cluster) -> None:
    node = cluster.node("node1")
    if has_nf_tables():
        node.run("nft", "add table ip lab-table")
    before = node.snapshot()
    assert before.diff(node.snapshot()) == ""
    dummy_interface(node, f"{VIP}/32")
    virtual_server(node, "-t", VIP, 80, ["172.20.104.2:8080"])
    if has_nf_tables():
        node.run("nft", "add set ip lab-table lab-set { type ipv4_addr; }")
    node.run(tool("IPv4"), "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
    node.run(tool("IPv6"), "-N", "LAB-CHAIN")
    if has_legacy():
        node.run("ipset", "create", "LAB-SET", "hash:ip")
    node.sysctl("net.ipv4.vs.conntrack", 1)
    changes = before.diff(node.snapshot())
    for expected in (
        "+-A -t 10.254.0.10:80 -s rr",
        *(["+\tset lab-set {"] if has_nf_tables() else []),
        *(LEGACY_CHANGES if has_legacy() else NFT_CHANGES),
        "-net/ipv4/vs/conntrack = 0",
        "+net/ipv4/vs/conntrack = 1",
        "+local 10.254.0.10 dev lab-dummy table local",
        "10.254.0.10/32",
    ):
        assert expected in changes


async def test_a_command_that_fails_tells_what_it_said(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match=r"node1: ip link show nothing: exit 1: .*does not exist"):
        cluster.node("node1").run("ip", "link", "show", "nothing")


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "fresh"])
async def test_kroute_in_a_node_ends_as_a_process_ends(cluster: Cluster, fork: bool) -> None:
    node = cluster.node("node1")
    shown = await node.kroute("show", fork=fork)
    assert await shown.wait() == 0
    assert "Virtual server" in shown.log.read_text()
    mistaken = await node.kroute("show", "--nonsense", fork=fork)
    assert await mistaken.wait() == 2
    assert "--nonsense" in mistaken.tail()


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "fresh"])
async def test_kroute_in_a_node_gets_ready_is_killed_and_is_terminated(
    cluster: Cluster, tmp_path: Path, fork: bool
) -> None:
    node = cluster.node("node1")
    run = ("run", "--manifests", str(tmp_path), "--node-name", "node1", "--node-ip", node.ip)
    agent = await node.kroute(*run, fork=fork)
    await agent.ready()
    assert agent.running
    assert agent.rss() > 10 << 20
    assert node.addresses("kube-ipvs0") == []
    assert cluster.node("node2").run("ip", "-o", "link").count("kube-ipvs0") == 0
    assert await agent.kill() == -signal.SIGKILL
    assert not agent.running
    agent = await node.kroute(*run, fork=fork)
    await agent.ready()
    assert await agent.terminate() == 0
    with pytest.raises(KrouteEndedError, match=r"(?s)ended with 2 before it was ready:.*--nonsense"):
        await (await node.kroute("run", "--nonsense", fork=fork)).ready()
