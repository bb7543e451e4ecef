"""node-local-dns and kroute on one node: the cache has the DNS Service's ClusterIP while it runs, kroute has it else.

web-2 and web-3 stand for the cluster's DNS servers. The cache asks them at the ClusterIP of a second Service.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.lab.cluster import Node
from tests.lab.deployment import EVENTS_ALONE, Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.node_local_dns import DNS, LINK_LOCAL, node_local_dns
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, Family, World

DNS_IPS = tuple(family.service_ip for family in FAMILIES)
UPSTREAM_IPS = tuple(family.other_service_ip for family in FAMILIES)
PORTS, TARGET_PORTS = {"TCP": DNS, "UDP": DNS}, {"TCP": 8080, "UDP": 5353}
SERVERS = {"web-2", "web-3"}


@asynccontextmanager
async def cache(node: Node) -> AsyncIterator[None]:
    """node-local-dns; its answers bear the node's name."""
    with node_local_dns(node, DNS_IPS):
        for address in (LINK_LOCAL, *DNS_IPS):
            await node.serve(http=DNS, udp=DNS, address=address)
        try:
            yield
        finally:
            await node.stop_serving()


async def serve(world: World, deployment: Deployment) -> Node:
    for name, addresses in (("kube-dns", DNS_IPS), ("kube-dns-upstream", UPSTREAM_IPS)):
        deployment.apply(service(name, *addresses, ports=PORTS), *endpoint_slices(name, world.web[1:], TARGET_PORTS))
    await deployment.start(*EVENTS_ALONE)
    return world.cluster.node("node1")


async def asked(caller: Host, address: str) -> set[str]:
    """Who answers, over UDP and TCP."""
    asks = (caller.udp, caller.http)
    return {(await ask(address, DNS, timeout=1.5)).host for ask in asks}


async def answers(caller: Host, address: str, expected: set[str]) -> None:
    """Expect that no other host answers, as soon as kroute has noticed."""

    async def check() -> None:
        for _ in range(2):
            found = await asked(caller, address)
            assert found <= expected, found

    await eventually(check)


async def is_the_caches(node: Node, family: Family, world: World) -> None:
    """Pods and the node reach the cache, and the cache reaches the cluster's servers, all through kroute's rules."""
    for caller in (world.visitor, node):
        await answers(caller, family.service_ip, {"node1"})
    assert await asked(node, LINK_LOCAL) == {"node1"}
    assert await asked(node, family.other_service_ip) <= SERVERS
    assert family.service_ip not in "".join(node.addresses("kube-ipvs0"))
    assert not [key for key in node.ipvs() if family.at(family.service_ip, DNS) in key]


async def test_the_cache_takes_the_address_over_and_gives_it_back(
    world: World, deployment: Deployment, family: Family
) -> None:
    node1 = await serve(world, deployment)
    await answers(world.visitor, family.service_ip, SERVERS)
    async with cache(node1):
        await eventually(lambda: is_the_caches(node1, family, world))
        node2 = world.cluster.node("node2")
        assert await asked(node2, family.service_ip) <= SERVERS

    def is_back() -> None:
        assert family.service_ip in "".join(node1.addresses("kube-ipvs0"))

    await eventually(is_back)
    for caller in (world.visitor, node1):
        await answers(caller, family.service_ip, SERVERS)
    assert node1.local_routes()[family.service_ip] == family.of(node1)


async def test_a_start_beside_the_cache_leaves_the_address_alone_and_says_so(
    world: World, deployment: Deployment, family: Family
) -> None:
    node1 = world.cluster.node("node1")
    async with cache(node1):
        await serve(world, deployment)
        await is_the_caches(node1, family, world)
        log = deployment.agents["node1"].log.read_text()
        assert f"clusterIP '{family.service_ip}' is not served here: an interface of this node has the address" in log
    await answers(world.visitor, family.service_ip, SERVERS)
