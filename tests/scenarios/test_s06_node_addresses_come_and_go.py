"""S6: node ports follow the node's addresses, such as one that keepalived moves from node to node.

In these tests only addresses of interfaces change, and no API object does. A proxy that computes node ports on API
changes, or from the preferred sources of routes, would never serve such an address. No resync comes meanwhile, which
would find them late.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import NamedTuple

import pytest

from tests.lab.allocation import Addresses
from tests.lab.cluster import Node
from tests.lab.deployment import EVENTS_ALONE, Deployment, eventually, goes_on
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, Family, World, routed

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
NODE_PORT = 30080
SHARED = Addresses("192.168.123.7", "fd00:192:168:123::7")
"""The address that only one node has at a time."""
SECOND = Addresses("192.168.123.8", "fd00:192:168:123::8")


class Arrival(NamedTuple):
    """How a node gets the shared address: with these prefix lengths, on this interface."""

    prefix: int
    prefix6: int
    interface: str = "eth0"

    def assigned(self, family: Family, verb: str, node: Node) -> None:
        """Add or delete it."""
        length = self.prefix6 if family.name == "IPv6" else self.prefix
        options = ["nodad"] if family.name == "IPv6" and verb == "add" else []
        node.run("ip", "address", verb, f"{family.of(SHARED)}/{length}", "dev", self.interface, *options)


ARRIVALS = {
    "as a secondary address": Arrival(24, 64),
    "as a host address": Arrival(32, 128),
    "on another interface": Arrival(32, 128, "vip0"),
}


@pytest.fixture
async def deployed(world: World, deployment: Deployment) -> AsyncIterator[Deployment]:
    """kroute on node2 and node3 with a node port that all pods serve; both nodes have an interface vip0."""
    nodes = [world.cluster.node(name) for name in ("node2", "node3")]
    for node in nodes:
        node.namespace.ip("link add vip0 type dummy\nlink set vip0 up\n")
    deployment.apply(service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}), *endpoint_slices("web", world.web))
    await deployment.start(*EVENTS_ALONE, nodes=("node2", "node3"))
    yield deployment
    for node in nodes:
        node.run("ip", "link", "del", "vip0")
        for addresses in (SHARED, SECOND):
            for address in addresses:
                node.run("ip", "address", "flush", "to", address)


def reachable(client: Host, node: Node, family: Family, arrival: Arrival) -> AbstractContextManager[None]:
    """Tell the client who has the address: by what a gratuitous ARP teaches, or by a route if it is not on the wire."""
    if arrival.interface != "eth0":
        return routed(client, family.of(SHARED), family.of(node))
    client.run("ip", "neighbour", "flush", "to", family.of(SHARED))
    return nullcontext()


def serves(node: Node, family: Family, addresses: Addresses) -> None:
    assert f"TCP {family.at(family.of(addresses), NODE_PORT)}" in node.ipvs()


def does_not_serve(node: Node, family: Family, addresses: Addresses) -> None:
    assert f"TCP {family.at(family.of(addresses), NODE_PORT)}" not in node.ipvs()


@pytest.mark.parametrize("arrival", ARRIVALS.values(), ids=ARRIVALS)
async def test_s6_a_node_port_follows_an_address_from_node_to_node(
    arrival: Arrival, deployed: Deployment, world: World
) -> None:
    """If addresses were not followed, every call would be refused at first: the address has no virtual server."""
    client, old, new = world.cluster.client, world.cluster.node("node2"), world.cluster.node("node3")

    async def answers(family: Family) -> None:
        assert (await client.http(family.of(SHARED), NODE_PORT)).host in {"web-1", "web-2", "web-3"}

    for family in FAMILIES:
        stream = await client.open_stream(family.of(old), NODE_PORT)
        arrival.assigned(family, "add", old)
        with reachable(client, old, family, arrival):
            await eventually(partial(answers, family))
        arrival.assigned(family, "del", old)
        arrival.assigned(family, "add", new)
        with reachable(client, new, family, arrival):
            await eventually(partial(answers, family))
        await eventually(partial(does_not_serve, old, family, SHARED))
        serves(new, family, SHARED)
        await goes_on(stream)
        await stream.close()


async def test_s6_an_address_that_comes_and_goes_in_a_burst_ends_as_it_is(deployed: Deployment, world: World) -> None:
    """If events were merged wrongly, the virtual server would be left over, or be missing in the end."""
    node2, arrival = world.cluster.node("node2"), ARRIVALS["as a secondary address"]
    for family in FAMILIES:
        for _ in range(10):
            arrival.assigned(family, "add", node2)
            arrival.assigned(family, "del", node2)
        arrival.assigned(family, "add", node2)
        await eventually(partial(serves, node2, family, SHARED))
        arrival.assigned(family, "del", node2)
        await eventually(partial(does_not_serve, node2, family, SHARED))


async def test_s6_an_interface_that_goes_takes_its_node_ports_with_it(deployed: Deployment, world: World) -> None:
    """Some kernels send no event for the IPv4 addresses of a deleted interface."""
    node2, arrival = world.cluster.node("node2"), ARRIVALS["on another interface"]
    for family in FAMILIES:
        arrival.assigned(family, "add", node2)
        await eventually(partial(serves, node2, family, SHARED))
    node2.run("ip", "link", "del", "vip0")
    for family in FAMILIES:
        await eventually(partial(does_not_serve, node2, family, SHARED))
    node2.namespace.ip("link add vip0 type dummy\nlink set vip0 up\n")


@pytest.fixture
def detecting(world: World) -> Iterator[Node]:
    """node2 with duplicate address detection; the client has the shared address already."""
    node2, client = world.cluster.node("node2"), world.cluster.client
    with ExitStack() as stack:
        client.run("ip", "address", "add", f"{SHARED.ip6}/64", "dev", "eth0", "nodad")
        stack.callback(client.run, "ip", "address", "del", f"{SHARED.ip6}/64", "dev", "eth0")
        before = node2.sysctl("net.ipv6.conf.eth0.accept_dad")
        node2.sysctl("net.ipv6.conf.eth0.accept_dad", 1)
        stack.callback(node2.sysctl, "net.ipv6.conf.eth0.accept_dad", before)
        yield node2


async def test_s6_a_duplicate_address_is_not_served_and_one_that_passed_detection_is(
    detecting: Node, deployed: Deployment
) -> None:
    """If tentative addresses counted, both would be served, and the duplicate's owner would lose its clients."""
    ipv6 = FAMILIES[1]
    detecting.run("ip", "address", "add", f"{SHARED.ip6}/64", "dev", "eth0")

    def has_failed() -> None:
        [link] = json.loads(detecting.run("ip", "-json", "-6", "address", "show", "dev", "eth0", "to", SHARED.ip6))
        assert [it for it in link["addr_info"] if it.get("dadfailed")], link

    await eventually(has_failed)
    detecting.run("ip", "address", "add", f"{SECOND.ip6}/64", "dev", "eth0")
    await eventually(lambda: serves(detecting, ipv6, SECOND))
    does_not_serve(detecting, ipv6, SHARED)


async def test_s6_a_deprecated_address_is_served(deployed: Deployment, world: World) -> None:
    """The node takes it as source of no new connection; clients that still call it must be answered."""
    node2, client, ipv6 = world.cluster.node("node2"), world.cluster.client, FAMILIES[1]
    address = f"{SECOND.ip6}/64"
    node2.run("ip", "address", "add", address, "dev", "eth0", "nodad", "preferred_lft", "0")

    async def answers() -> None:
        assert (await client.http(SECOND.ip6, NODE_PORT)).host in {"web-1", "web-2", "web-3"}

    await eventually(answers)
    assert node2.local_routes()[ipv6.service_ip] == node2.ip6
