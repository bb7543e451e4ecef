"""The firewall's backend is the one that is named; it is repaired at once, and replaced without a lost connection."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
NODE_PORT = 30080
NEVER = ("--resync-period", "3600s")
"""What is repaired then is repaired because the kernel has reported it."""
OURS = ("ip kroute", "ip6 kroute")

FOREIGN = """\
table inet neighbour {
    set allowed {
        type ipv4_addr . inet_service
        elements = { 192.0.2.1 . 80 comment "one", 192.0.2.2 . 443 }
    }
    map marks {
        type ipv4_addr : mark
        flags interval
        elements = { 198.51.100.0/24 : 0x7 }
    }
    counter seen {
        packets 3 bytes 42
    }
    chain work {
        ip daddr . tcp dport @allowed counter name seen accept comment "theirs"
    }
    chain forward {
        type filter hook forward priority filter - 5; policy accept;
        ct state invalid jump work
    }
}
table ip kroute-neighbour {
    chain postrouting {
        type nat hook postrouting priority srcnat - 5; policy accept;
        oif "lo" masquerade
    }
}
"""
FOREIGN_TABLES = ("inet neighbour", "ip kroute-neighbour")


@contextmanager
def neighbour(node: Node) -> Iterator[None]:
    """Tables of another program, beside kroute's, with names and priorities like them."""
    node.run("nft", "-f", "-", stdin=FOREIGN)
    try:
        yield
    finally:
        for table in FOREIGN_TABLES:
            node.run("nft", "delete", "table", *table.split())


def text_of(node: Node, table: str) -> str:
    return node.run("nft", "list", "table", *table.split())


def tables(node: Node) -> set[str]:
    return {line.removeprefix("table ") for line in node.run("nft", "list", "tables").splitlines()}


def web(world: World, deployment: Deployment) -> None:
    """Apply a Service with ClusterIPs and a node port."""
    made = service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT})
    deployment.apply(made, *endpoint_slices("web", world.web))


async def answers(world: World, node: Node, family: Family) -> None:
    """Assert that a client elsewhere reaches pods of other nodes with the node's own address as its source."""
    client = world.cluster.client
    found = [await client.http(family.of(node), NODE_PORT) for _ in range(6)]
    assert {it.host for it in found} == {pod.name for pod in world.web}
    elsewhere = {it.peer for it in found if it.host != world.web[0].name}
    assert elsewhere == {family.of(world.masquerade_of(node))}


def bridge_of(node: Node, family: Family) -> set[str]:
    """Return the sources of what is masqueraded to a pod of the node itself."""
    own = {address.partition("/")[0] for address in node.addresses("cbr0")}
    return {address for address in own if (":" in address) == (family.name == "IPv6")}


@asynccontextmanager
async def calling(world: World, node: Node, family: Family) -> AsyncIterator[list[str]]:
    """Call the node port again and again meanwhile. Yields the sources that pods have seen, and what went wrong."""
    seen: list[str] = []

    async def call() -> None:
        while True:
            try:
                seen.append((await world.cluster.client.http(family.of(node), NODE_PORT)).peer)
            except OSError as error:
                seen.append(str(error))

    caller = asyncio.create_task(call())
    try:
        yield seen
    finally:
        caller.cancel()


async def test_nftables_serves_masquerades_and_is_shown(world: World, deployment: Deployment, family: Family) -> None:
    web(world, deployment)
    await deployment.start("--firewall", "nftables", "--masquerade-all", nodes=("node1",))
    node1 = world.cluster.node("node1")
    await answers(world, node1, family)
    assert (await world.visitor.http(family.service_ip, 8080)).host in {pod.name for pod in world.web}
    assert set(OURS) <= tables(node1)
    assert '"backend": "nftables"' in deployment.agents["node1"].log.read_text()
    shown = await node1.kroute("show")
    assert await shown.wait() == 0
    assert "firewall: nftables (the setting `firewall` names it)" in shown.log.read_text()


async def test_the_libraries_of_another_backend_are_not_loaded(world: World, deployment: Deployment) -> None:
    web(world, deployment)
    await deployment.start("--firewall", "nftables", nodes=("node1",))
    await deployment.stop()
    node1 = world.cluster.node("node1")
    flags = (*deployment.source, "--node-name", "node1", "--firewall", "nftables")
    agent = deployment.agents["node1"] = await node1.kroute("run", *flags, fork=False)
    await agent.ready()
    assert "xtables" not in mapped(agent.pid)


def mapped(pid: int) -> str:
    """Return the files that a process has mapped, such as its libraries."""
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.drawn(4)
@pytest.mark.legacy
@pytest.mark.parametrize(("old", "new"), [("iptables", "nftables"), ("nftables", "iptables")])
async def test_another_backend_takes_over_under_open_streams(
    old: str, new: str, world: World, deployment: Deployment, family: Family
) -> None:
    web(world, deployment)
    await deployment.start("--firewall", old, "--masquerade-all", nodes=("node1",))
    node1 = world.cluster.node("node1")
    streams = [await it.open_stream(family.service_ip, 8080) for it in (world.visitor, node1)]
    streams.append(await world.cluster.client.open_stream(family.of(node1), NODE_PORT))
    async with calling(world, node1, family) as seen:
        assert await deployment.agents["node1"].terminate() == 0
        await deployment.start("--firewall", new, "--masquerade-all", nodes=("node1",))

        def is_replaced() -> None:
            assert _backends(node1) == {new}

        await eventually(is_replaced, within=20)
        calls = len(seen)

        def has_called() -> None:
            assert len(seen) > calls + 5

        await eventually(has_called)
    assert set(seen) <= {family.of(world.masquerade_of(node1)), *bridge_of(node1, family)}
    for stream in streams:
        await goes_on(stream)
        await stream.close()
    await answers(world, node1, family)


@pytest.mark.parametrize("damage", ["flush ruleset", "delete table ip kroute", "delete table ip6 kroute"])
async def test_what_somebody_deletes_is_back_at_once(damage: str, world: World, deployment: Deployment) -> None:
    web(world, deployment)
    await deployment.start("--firewall", "nftables", "--masquerade-all", *NEVER, nodes=("node1",))
    node1, log = world.cluster.node("node1"), deployment.agents["node1"].log
    before = {table: text_of(node1, table) for table in OURS}
    node1.run("nft", *damage.split())

    def is_repaired() -> None:
        assert '"repair"' in log.read_text()
        assert {table: text_of(node1, table) for table in OURS if table in tables(node1)} == before

    await eventually(is_repaired)
    for family in FAMILIES:
        await answers(world, node1, family)


async def test_cleanup_leaves_tables_of_others_byte_for_byte(world: World, deployment: Deployment) -> None:
    web(world, deployment)
    node1 = world.cluster.node("node1")
    with neighbour(node1):
        before = {table: text_of(node1, table) for table in FOREIGN_TABLES}
        await deployment.start("--firewall", "nftables", "--masquerade-all", nodes=("node1",))
        for family in FAMILIES:
            await answers(world, node1, family)
        assert {table: text_of(node1, table) for table in FOREIGN_TABLES} == before
        await deployment.cleanup()
        assert {table: text_of(node1, table) for table in FOREIGN_TABLES} == before
        assert not set(OURS) & tables(node1)


@pytest.mark.legacy
async def test_cleanup_removes_what_either_backend_has_left(world: World, deployment: Deployment) -> None:
    web(world, deployment)
    node1 = world.cluster.node("node1")
    before = node1.snapshot()
    for backend in ("iptables", "nftables"):
        await deployment.start("--firewall", backend, nodes=("node1",), wait=False)
        await eventually(lambda it=backend: _has(node1, it), within=20)
        assert await deployment.agents.pop("node1").kill() == -9
    await deployment.cleanup()
    assert _backends(node1) == set()
    changed = before.diff(node1.snapshot())
    assert not changed, changed


def _has(node: Node, backend: str) -> None:
    assert backend in _backends(node)


def _backends(node: Node) -> set[str]:
    """Return the backends that have something in the kernel of this node."""
    found = {"nftables"} if set(OURS) & tables(node) else set()
    if "KROUTE-" in node.run("ipset", "list", "-n") + node.run("iptables-legacy-save"):
        found.add("iptables")
    return found
