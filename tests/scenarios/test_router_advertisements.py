"""A node that learns its IPv6 default route from a router keeps it, and goes on hearing the router.

The kernel deletes what routers have advertised in the moment in which it is told to forward, and hears them no more
unless an interface's `accept_ra` is 2 (net/ipv6/route.c, rt6_purge_dflt_routers; ipv6_accept_ra in addrconf).
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, World

FORWARDING, ACCEPT = "net.ipv6.conf.all.forwarding", "net.ipv6.conf.eth0.accept_ra"
ALL_NODES = "ff02::1"
_ADVERTISEMENT = struct.Struct("!BBHBBHII")
"""Type, code, checksum, hop limit, flags, the router's lifetime in seconds, and two times of no matter (RFC 4861)."""


def advertise(router: Host, lifetime: int) -> None:
    """Say on the wire that this host is a router for so many seconds; 0: it is none any more."""
    index = int(router.run("ip", "-o", "link", "show", "eth0").partition(":")[0])
    with closing(router.namespace.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)) as sender:
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        sender.sendto(_ADVERTISEMENT.pack(134, 0, 0, 64, 0, lifetime, 0, 0), (ALL_NODES, 0, 0, index))


def learned(node: Node) -> str:
    return node.run("ip", "-6", "route", "show", "default", "proto", "ra")


def has_router(node: Node) -> None:
    assert "dev eth0" in learned(node)


def has_no_router(node: Node) -> None:
    assert not learned(node)


@contextmanager
def listening(node: Node) -> Iterator[None]:
    """The node does not forward IPv6, and hears routers, for the length of a `with`."""
    before = {name: node.sysctl(name) for name in (FORWARDING, ACCEPT)}
    node.sysctl(FORWARDING, 0)
    node.sysctl(ACCEPT, 1)
    try:
        yield
    finally:
        for name, value in before.items():
            node.sysctl(name, value)


@pytest.fixture
def learner(world: World) -> Iterator[Node]:
    """A node with a route from a router: the client outside of the cluster."""
    node, router = world.nodes[0], world.cluster.client
    with listening(node):
        advertise(router, 1800)
        try:
            yield node
        finally:
            advertise(router, 0)
            node.run("ip", "-6", "route", "flush", "proto", "ra")


async def test_a_default_route_that_a_router_advertises_outlives_the_begin_of_forwarding(
    world: World, deployment: Deployment, learner: Node
) -> None:
    router = world.cluster.client
    await eventually(lambda: has_router(learner))
    deployment.apply(service("web", *(it.service_ip for it in FAMILIES)), *endpoint_slices("web", world.web))
    await deployment.start(nodes=(learner.name,))
    assert learner.sysctl(FORWARDING) == "1"
    has_router(learner)
    advertise(router, 0)
    await eventually(lambda: has_no_router(learner))
    advertise(router, 1800)
    await eventually(lambda: has_router(learner))
    await deployment.stop()
    await deployment.cleanup()
    assert (learner.sysctl(FORWARDING), learner.sysctl(ACCEPT)) == ("0", "1")
