"""UDP datagrams that are larger than the MTU, with br_netfilter on and off.

Over IPv6 the kernel loses those of pods on a bridge while br_netfilter is on (`docs/kernel-facts.md`).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.answers import ask_json
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
PORTS, TARGET_PORTS, NODE_PORT = {"UDP": 53}, {"UDP": 5353}, 30053
SIZE = 4000
"""Bytes; three packets on the wire."""
LOST = 1.5
CALLED = "net.bridge.bridge-nf-call-{}tables"


@pytest.fixture
def node1(world: World) -> Iterator[Node]:
    """The callers' node, whose br_netfilter the tests switch."""
    node = world.cluster.node("node1")
    before = {name: node.sysctl(name) for name in map(CALLED.format, ("ip", "ip6"))}
    yield node
    for name, value in before.items():
        node.sysctl(name, value)


async def serve(deployment: Deployment, world: World, *flags: str, pods: slice) -> None:
    web = service("web", *CLUSTER_IPS, ports=PORTS, node_ports={"UDP": NODE_PORT})
    deployment.apply(web, *endpoint_slices("web", world.web[pods], TARGET_PORTS))
    await deployment.start(*flags, nodes=("node1",))


def switch(node: Node, family: Family, value: int) -> None:
    node.sysctl(CALLED.format("ip6" if family.name == "IPv6" else "ip"), value)


async def is_lost(caller: Host, address: str) -> None:
    """Expect no answer, or the kernel's word that the datagram is too large."""
    with pytest.raises((TimeoutError, OSError)):
        await caller.udp(address, PORTS["UDP"], size=SIZE, timeout=LOST)


async def test_large_datagrams_of_pods_on_a_bridge_need_br_netfilter_off_over_ipv6(
    world: World, node1: Node, deployment: Deployment, family: Family
) -> None:
    await serve(deployment, world, pods=slice(2, 3))
    switch(node1, family, 1)
    assert (await world.visitor.udp(family.service_ip, PORTS["UDP"])).host == "web-3"
    if family.name == "IPv6":
        await is_lost(world.visitor, family.service_ip)
        switch(node1, family, 0)
    assert (await world.visitor.udp(family.service_ip, PORTS["UDP"], size=SIZE)).host == "web-3"


async def test_check_names_the_bridge_while_br_netfilter_is_on(node1: Node, tmp_path: Path) -> None:
    argv = ("check", "--manifests", str(tmp_path), "--node-name", "node1", "--node-ip", f"{node1.ip},{node1.ip6}")
    found = []
    for value in (1, 0):
        node1.sysctl(CALLED.format("ip6"), value)
        _, report = await ask_json(node1, *argv)
        found.append([it["message"] for it in report["items"] if it["check"] == "bridges"])
    assert found[0][0].startswith("IPv6 datagrams above the MTU from pods on cbr0 to Services are lost")
    assert found[1] == ["large IPv6 datagrams of pods reach Services"]


async def test_those_of_clients_elsewhere_pass_with_br_netfilter(
    world: World, node1: Node, deployment: Deployment, family: Family
) -> None:
    await serve(deployment, world, pods=slice(2, 3))
    switch(node1, family, 1)
    assert (await world.cluster.client.udp(family.of(node1), NODE_PORT, size=SIZE)).host == "web-3"


async def test_a_nodes_own_are_refused_until_the_kernel_knows_the_paths_mtu_which_over_ipv6_it_never_does(
    world: World, node1: Node, deployment: Deployment, family: Family
) -> None:
    await serve(deployment, world, pods=slice(2, 3))
    with pytest.raises(OSError, match="too long"):
        await node1.udp(family.service_ip, PORTS["UDP"], size=SIZE)
    if family.name == "IPv6":
        with pytest.raises(OSError, match="too long"):
            await node1.udp(family.service_ip, PORTS["UDP"], size=SIZE)
    else:
        assert (await node1.udp(family.service_ip, PORTS["UDP"], size=SIZE)).host == "web-3"


async def test_without_br_netfilter_pods_of_one_bridge_reach_each_other_when_all_is_masqueraded(
    world: World, node1: Node, deployment: Deployment, family: Family
) -> None:
    """Otherwise the pod answers the other directly, by the bridge, past IPVS."""
    await serve(deployment, world, "--masquerade-all", pods=slice(0, 1))
    switch(node1, family, 0)
    assert (await world.visitor.udp(family.service_ip, PORTS["UDP"], size=SIZE)).host == "web-1"
    await deployment.stop()
    await deployment.start(nodes=("node1",))
    await is_lost(world.visitor, family.service_ip)
