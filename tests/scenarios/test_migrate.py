"""From kube-proxy and from kube-router to kroute and back, with 100 connections that stay open throughout."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import pytest

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import OpenStream
from tests.lab.kernel_state import Snapshot
from tests.lab.kube_proxy_rules import Served
from tests.lab.load import Way, constant_load
from tests.lab.objects import endpoint_slices, service
from tests.lab.other_proxies import (
    kube_proxy_leftovers,
    kube_router_leftovers,
    wiped,
)
from tests.lab.other_proxy_rules import DSR_MARK, NEIGHBOUR_CHAINS
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.scenarios.conftest import FAMILIES, World
from tests.scenarios.test_s17_only_what_is_ours import FOREIGN

pytestmark = pytest.mark.legacy

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
NODE_PORT = 31080
STREAMS = 100
FLAGS = {
    "kube-proxy": ("--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}", "--strict-arp", "off"),
    "kube-router": ("--run-router=false", "--nodeport-bindon-all-ip=false"),
}
LINKS = {"kube-proxy": "kube-ipvs0", "kube-router": "kube-dummy-if"}

_OF_LINKS = re.compile(r"^\d+: |link/ether [0-9a-f:]+ |.*/kube-(?:dummy-if|ipvs0)/addr_gen_mode.*")
"""Parts of a snapshot that differ when a link is created again. `addr_gen_mode` differs because kroute sets it."""
_UP = re.compile(
    r".*kube-ipvs0: <.*|multicast ff00::/8 dev kube-ipvs0 .*|(?<= scope )(?:link|global)(?= kube-ipvs0)"
    r"| nodad| noprefixroute"
)
"""What differs on kube-proxy's link after kroute has used it: it is up, its IPv4 addresses have scope link, and the
others the flags with which kroute binds them."""

Build = Callable[[Node, Iterable[Served]], None]


@pytest.fixture
def node1(world: World) -> Iterator[Node]:
    """A node with foreign objects on it, and with the sysctls of a node that had a proxy.

    Request it before `deployment`, so that kroute is removed before the node is wiped.
    """
    node = world.cluster.node("node1")
    with wiped(node):
        for add, _ in FOREIGN:
            node.run(*add.split())
        node.run("iptables-legacy-restore", "--noflush", stdin=NEIGHBOUR_CHAINS)
        yield node


def services_of(world: World) -> list[Served]:
    """Return the Service `web` as another proxy serves it: in both families, with a node port."""
    return [
        Served(
            family.service_ip,
            8080,
            [(family.of(pod), 8080) for pod in world.web],
            NODE_PORT,
            local=[family.of(world.web[0])],
        )
        for family in FAMILIES
    ]


def apply_web(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}), *endpoint_slices("web", world.web))


def ways_to(world: World, node: Node) -> list[Way]:
    """Return every kind of caller: a pod and the node itself by ClusterIP, a client outside by node port."""
    ipv4, ipv6 = CLUSTER_IPS
    return [
        Way(world.visitor, ipv4, 8080),
        Way(world.visitor, ipv6, 8080),
        Way(world.cluster.client, node.ip, NODE_PORT),
        Way(world.cluster.client, node.ip6, NODE_PORT),
        Way(node, ipv4, 8080),
        Way(node, ipv6, 8080),
        Way(world.web[0], ipv4, 8080),
    ]


async def open_streams(ways: list[Way]) -> list[OpenStream]:
    return [
        await way.client.open_stream(way.address, way.port, interval=1.0, patience=20)
        for way in (ways[number % len(ways)] for number in range(STREAMS))
    ]


async def go_on(streams: list[OpenStream]) -> None:
    """Wait until every stream has moved a byte that was sent after this call."""
    echoed = [stream.echoed for stream in streams]

    def all_moved() -> None:
        assert not [stream.failure for stream in streams if stream.failure]
        assert all(stream.echoed > before + 1 for stream, before in zip(streams, echoed, strict=True))

    await eventually(all_moved, within=20)


async def migrate(
    node: Node, *arguments: str, expect: int = 0, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    process = await node.kroute("migrate", *arguments, environment=environment)
    code = await process.wait()
    text = process.log.read_text()
    assert code == expect, text
    return text


def assert_only_kroute_came(before: Snapshot, after: Snapshot, link: str) -> None:
    """Assert that the other proxy's objects are gone, and that every earlier one still exists. `link` is kroute's."""
    commands = before.parts.keys() - {"sysctl"}
    assert not [line for it in commands for line in before.parts[it] if line not in after.parts[it]]
    new = [line for it in commands for line in after.parts[it] if line not in before.parts[it]]
    assert new
    theirs = "|".join(["KUBE-", "kube-router", *(set(LINKS.values()) - {link})])
    assert not [line for line in new if re.search(theirs, line)]


async def take_over(deployment: Deployment, node: Node, proxy: str, *flags: str) -> None:
    """Run both steps of the migration, with the start of the agent between them."""
    await migrate(node, "--from", proxy, "--take-over", *flags)
    await deployment.start(*FLAGS[proxy], *flags, nodes=(node.name,))
    assert f"nothing of {proxy}'s is left" in await migrate(node, "--from", proxy, "--take-over")


@asynccontextmanager
async def kept_addresses(node: Node, link: str, *, is_adopted: bool) -> AsyncIterator[None]:
    """Assert that an adopted link is the same one afterwards, and that no address was taken off it meanwhile."""
    number = json.loads(node.run("ip", "-json", "link", "show", link))[0]["ifindex"]
    monitor = await asyncio.create_subprocess_exec(
        "ip", "netns", "exec", node.namespace.name, "ip", "monitor", "address", stdout=asyncio.subprocess.PIPE
    )
    yield
    monitor.terminate()
    told, _ = await monitor.communicate()
    if is_adopted:
        assert json.loads(node.run("ip", "-json", "link", "show", link))[0]["ifindex"] == number
        assert not [line for line in told.decode().splitlines() if line.startswith("Deleted") and link in line]


def alike(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without what changes with each creation of a link, and with hashed lists in order.

    The size of IPVS's connection table is left out too: it stays, because changing it would make the kernel rehash its
    open connections.
    """
    parts = {
        name: [same for line in lines if "conn_lfactor" not in line and (same := _UP.sub("", _OF_LINKS.sub("", line)))]
        for name, lines in snapshot.parts.items()
    }
    return Snapshot(parts | {name: sorted(parts[name]) for name in ("ipset save", "ipvsadm -Sn")})


@pytest.mark.drawn(4)
@pytest.mark.parametrize("link", ["kube-ipvs0", "kube-dummy-if"], ids=lambda link: f"on {link}")
@pytest.mark.parametrize(
    ("proxy", "build"),
    [("kube-proxy", kube_proxy_leftovers), ("kube-router", kube_router_leftovers)],
    ids=["kube-proxy", "kube-router"],
)
async def test_connections_live_through_the_take_over_and_back(
    world: World, node1: Node, deployment: Deployment, proxy: str, build: Build, link: str
) -> None:
    """With the other proxy's own link as the dummy interface, it is adopted in place; else the addresses move."""
    flags = ("--dummy-interface", link)
    apply_web(world, deployment)
    before = node1.snapshot()
    build(node1, services_of(world))
    theirs = alike(node1.snapshot())
    ways = ways_to(world, node1)
    streams = await open_streams(ways)
    async with constant_load(ways, pace=1.0) as load:
        found = json.loads(await migrate(node1, "--from", proxy, "-o", "json"))
        assert len(found["toAdopt"]) == len(node1.ipvs()) - 1
        assert found["others"] == ["TCP 203.0.113.7:80"]
        async with kept_addresses(node1, LINKS[proxy], is_adopted=link == LINKS[proxy]):
            await take_over(deployment, node1, proxy, *flags)
        await go_on(streams)
        for way in ways:
            assert (await way.client.http(way.address, way.port, timeout=20)).host.startswith("web-")
        assert_only_kroute_came(before, node1.snapshot(), link)
        await deployment.stop()
        build(node1, services_of(world))
        await migrate(node1, "--to", proxy, "--hand-over", *flags)
        deployment.give_up("node1")
        await go_on(streams)
    assert not load.failures
    assert all(load.calls[way] for way in ways)
    # With both links there, kube-router's `ip route replace` replaces kroute's route, and the kernel's own stays.
    if (proxy, link) != ("kube-router", "kube-ipvs0"):
        assert not theirs.diff(alike(node1.snapshot()))
    for stream in streams:
        await stream.close()


async def test_direct_server_return_of_kube_routers_goes_with_its_marks_rules_and_routes(
    world: World, node1: Node, deployment: Deployment
) -> None:
    apply_web(world, deployment)
    kube_router_leftovers(node1, services_of(world), dsr=True)
    found = json.loads(await migrate(node1, "--from", "kube-router", "-o", "json"))
    assert found["marks"] == [DSR_MARK]
    assert len(found["policyRules"]) == 2
    assert found["routes"] == ["IPv4 route local default dev lo table 78"]
    assert f"FWM {DSR_MARK}" in node1.ipvs()
    await take_over(deployment, node1, "kube-router")
    assert f"FWM {DSR_MARK}" not in node1.ipvs()
    rules = node1.run("ip", "rule")
    assert "32764" not in rules
    assert "lookup 79" not in rules
    assert "lookup 77" in rules
    assert not node1.run("ip", "route", "show", "table", "78")
    assert "MARK" not in node1.run("iptables-legacy-save", "-t", "mangle")


async def test_a_chain_that_another_program_uses_stays(world: World, node1: Node, deployment: Deployment) -> None:
    apply_web(world, deployment)
    kube_proxy_leftovers(node1, services_of(world))
    node1.run("iptables-legacy", "-t", "nat", "-A", "FOREIGN", "-s", "198.51.100.7", "-j", "KUBE-MARK-MASQ")
    assert "another program's rule leads to it" in await migrate(node1, "--from", "kube-proxy")
    await take_over(deployment, node1, "kube-proxy")
    rules = node1.run("iptables-legacy-save", "-t", "nat")
    assert "-A FOREIGN -s 198.51.100.7/32 -j KUBE-MARK-MASQ" in rules
    assert "-A KUBE-MARK-MASQ -j MARK" in rules
    assert "KUBE-SERVICES" not in rules


async def test_legacy_rules_are_seen_without_the_tools_and_what_they_need_is_said(
    world: World, node1: Node, deployment: Deployment
) -> None:
    apply_web(world, deployment)
    kube_proxy_leftovers(node1, services_of(world))
    by_tool = json.loads(await migrate(node1, "--from", "kube-proxy", "-o", "json"))
    assert by_tool["warnings"] == []
    said = await migrate(node1, "--from", "kube-proxy", "-o", "json", environment={"PATH": "/nonexistent"})
    found, end = json.JSONDecoder().raw_decode(said)
    assert [(it["variant"], it["table"], sorted(it["chains"])) for it in found["tables"]] == [
        (it["variant"], it["table"], sorted(it["chains"])) for it in by_tool["tables"]
    ]
    [warning] = found["warnings"]
    assert warning.startswith("this process cannot remove kube-proxy's chains from IPv4 legacy ")
    assert warning in said[end:]


async def test_a_proxy_that_still_runs_is_not_taken_over_from(
    world: World, node1: Node, deployment: Deployment
) -> None:
    apply_web(world, deployment)
    kube_proxy_leftovers(node1, services_of(world))
    running = await asyncio.create_subprocess_exec("kube-proxy", "600", executable="/bin/sleep")
    try:
        refusal = await migrate(node1, "--from", "kube-proxy", "--take-over", expect=1)
        assert f"kube-proxy still runs on this node (process {running.pid})" in refusal
        assert not (node1.state_dir / "ledger").exists()
        assert "adopt virtual server" in await migrate(node1, "--from", "kube-proxy", "--take-over", "--force")
    finally:
        running.kill()
        await running.wait()


async def test_nothing_is_removed_before_an_agent_serves_what_was_adopted(
    world: World, node1: Node, deployment: Deployment
) -> None:
    apply_web(world, deployment)
    kube_proxy_leftovers(node1, services_of(world))
    await deployment.start(*FLAGS["kube-proxy"], "--other-proxies", "ignore", nodes=("node1",))
    refusal = await migrate(node1, "--from", "kube-proxy", "--take-over", expect=1)
    assert "stop kroute's agent" in refusal
    assert "10.254.0.10/32" in node1.addresses("kube-ipvs0")
    await deployment.stop()
    await take_over(deployment, node1, "kube-proxy")
    assert not (await migrate(node1, "--from", "kube-proxy")).startswith("What")
    assert set(await world.visitor.spread(CLUSTER_IPS[0], 8080, 6)) == {pod.name for pod in world.web}


async def test_a_node_is_not_handed_over_to_a_proxy_that_does_not_serve(
    world: World, node1: Node, deployment: Deployment
) -> None:
    apply_web(world, deployment)
    await deployment.start(*FLAGS["kube-proxy"], nodes=("node1",))
    now = ("--to", "kube-proxy", "--hand-over", "--wait", "0s")
    assert "already running" in await migrate(node1, *now, expect=1)
    await deployment.stop()
    before = node1.snapshot()
    refusal = await migrate(node1, *now, expect=1)
    assert "kube-proxy does not serve 2 of kroute's addresses yet" in refusal
    assert "is not served by kube-proxy" in await migrate(node1, "--to", "kube-proxy")
    assert not before.diff(node1.snapshot())


async def test_where_kroute_never_ran_a_hand_over_touches_nothing(
    world: World, node1: Node, deployment: Deployment
) -> None:
    """Its dummy interface has the name of kube-proxy's own link."""
    kube_proxy_leftovers(node1, services_of(world))
    before = node1.snapshot()
    for proxy in ("kube-proxy", "kube-router"):
        assert "nothing of kroute's is on this node" in await migrate(
            node1, "--to", proxy, "--hand-over", "--wait", "0s"
        )
    assert not before.diff(node1.snapshot())


async def test_an_external_ip_that_kube_proxy_left_unbound_is_bound_for_it(
    world: World, node1: Node, deployment: Deployment
) -> None:
    """kube-proxy binds no external IP that another interface has. Until the hand-over, kroute's interface has it."""
    external_ip, flags = "203.0.113.80", ("--dummy-interface", "kroute0")
    deployment.apply(service("web", *CLUSTER_IPS, externalIPs=[external_ip]), *endpoint_slices("web", world.web))
    await deployment.start(*FLAGS["kube-proxy"], *flags, nodes=("node1",))
    stream = await node1.open_stream(external_ip, 8080)
    await deployment.stop()
    served = [*services_of(world), Served(external_ip, 8080, [(pod.ip, 8080) for pod in world.web])]
    kube_proxy_leftovers(node1, served)
    node1.run("ip", "address", "del", f"{external_ip}/32", "dev", "kube-ipvs0")
    assert f"bind {external_ip} to kube-ipvs0" in await migrate(node1, "--to", "kube-proxy", "--hand-over", *flags)
    deployment.give_up("node1")
    assert f"{external_ip}/32" in node1.addresses("kube-ipvs0")
    await go_on([stream])
    await stream.close()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("proxy", "build"),
    [("kube-proxy", kube_proxy_leftovers), ("kube-router", kube_router_leftovers)],
    ids=["kube-proxy", "kube-router"],
)
async def test_cleanup_on_a_node_that_is_another_proxys_touches_nothing(
    world: World, node1: Node, proxy: str, build: Build
) -> None:
    build(node1, services_of(world))
    before = node1.snapshot()
    cleanup = await node1.kroute("cleanup", "--dummy-interface", LINKS[proxy])
    assert await cleanup.wait() == 0
    assert "nothing to undo" in cleanup.log.read_text()
    assert not before.diff(node1.snapshot())
