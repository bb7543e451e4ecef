"""mh and sh send a client to the same pod by every node, though each node heard of the pods in an order of its own."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import pytest

from tests.lab.allocation import Addresses
from tests.lab.cluster import Node
from tests.lab.crowd import NETWORKS, clients
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.udp_client import UdpClient
from tests.lab.world import FAMILIES, Family, World, routed
from tests.scenarios.refusals import unlimited_errors

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
EXTERNAL = Addresses("203.0.113.10", "2001:db8::10")
PORTS = {"TCP": 80, "UDP": 53}
TARGET_PORTS = {"TCP": 8080, "UDP": 5353}
CLIENTS = 24
MOST_BETWEEN_THE_OLD = 3
"""Maglev moves few clients from one real server that stays to another: here 1 or 2 of 100."""


def web(scheduler: str) -> Object:
    return service(
        "web",
        *CLUSTER_IPS,
        ports=PORTS,
        externalIPs=list(EXTERNAL),
        annotations={"kroute.io/scheduler": scheduler},
    )


@pytest.fixture
def crowd(world: World) -> Iterator[Host]:
    """The client outside of the cluster, with all addresses of the crowd's networks, which each node can answer."""
    client = world.cluster.client
    client.run("sysctl", "-qw", "net.ipv6.ip_nonlocal_bind=1")
    for network, gateway in zip(NETWORKS, (client.ip, client.ip6), strict=True):
        client.run("ip", "route", "replace", "local", network, "dev", "lo")
        for node in world.nodes:
            node.run("ip", "route", "replace", network, "via", gateway)
    try:
        with unlimited_errors(world.nodes):
            yield client
    finally:
        client.run("sysctl", "-qw", "net.ipv6.ip_nonlocal_bind=0")
        for network in NETWORKS:
            client.run("ip", "route", "del", "local", network, "dev", "lo")
            for node in world.nodes:
                node.run("ip", "route", "del", network)


async def pods_of(client: Host, family: Family, nodes: Sequence[Node], *, protocol: str = "TCP") -> dict[str, str]:
    """Which pod answers each address of the crowd; a router spreads the addresses over the nodes, as by ECMP."""
    ask, at = (client.http, PORTS["TCP"]) if protocol == "TCP" else (client.udp, PORTS["UDP"])
    sources = [source for source, _ in clients(family.name, CLIENTS)]
    found: dict[str, str] = {}
    for number, node in enumerate(nodes):
        part = sources[number :: len(nodes)]
        with routed(client, family.of(EXTERNAL), family.of(node)):
            answers = await asyncio.gather(*(ask(family.of(EXTERNAL), at, source=(it, 0)) for it in part))
        found |= {source: answer.host for source, answer in zip(part, answers, strict=True)}
    return found


async def arrive(world: World, deployment: Deployment, scheduler: str) -> None:
    """Let each node hear of the pods in an order of its own: node1 from the last to the first, node3 all at once."""
    deployment.apply(web(scheduler), *endpoint_slices("web", world.web[2:], TARGET_PORTS))
    await deployment.start(nodes=("node1",))
    for first, nodes in ((1, ("node2",)), (0, ("node3",))):
        deployment.apply(*endpoint_slices("web", world.web[first:], TARGET_PORTS))
        for name in deployment.agents:
            await eventually(lambda name=name, first=first: has_pods(world.cluster.node(name), 3 - first))
        await deployment.start(nodes=nodes)


def has_pods(node: Node, count: int) -> None:
    tables = [it for key, it in node.ipvs().items() if EXTERNAL.ip in key or EXTERNAL.ip6 in key]
    assert [len(it.real_servers) for it in tables] == [count] * 4


@pytest.fixture
async def arrived(request: pytest.FixtureRequest, world: World, deployment: Deployment) -> str:
    await arrive(world, deployment, request.param)
    return request.param


def listed(node: Node, family: Family) -> list[str]:
    """The real servers of the external IP's TCP port, as the kernel lists them."""
    return list(node.ipvs()[f"TCP {family.at(family.of(EXTERNAL), 80)}"].real_servers)


@pytest.mark.parametrize("arrived", ["mh", "sh"], indirect=True)
async def test_every_node_sends_a_client_to_the_same_pod(
    arrived: str, world: World, crowd: Host, family: Family
) -> None:
    """No node has seen the others' connections: the table alone decides."""
    assert len({tuple(listed(node, family)) for node in world.nodes}) == 1
    for protocol in PORTS:
        one, *others = [await pods_of(crowd, family, [node], protocol=protocol) for node in world.nodes]
        assert others == [one, one], protocol
        assert set(one.values()) == {"web-1", "web-2", "web-3"}


@pytest.mark.parametrize("arrived", ["mh"], indirect=True)
async def test_a_client_keeps_its_pod_when_the_node_that_it_came_by_is_taken_off_the_routers_list(
    arrived: str, world: World, crowd: Host, family: Family
) -> None:
    """Half of the clients come by another node then. TCP is opened anew. UDP keeps its socket, and the nodes that its
    datagrams come by next have neither an IPVS connection nor a conntrack entry of it.
    """
    before = await pods_of(crowd, family, world.nodes)
    assert await pods_of(crowd, family, world.nodes[1:]) == before
    with contextlib.closing(UdpClient(crowd, family.of(EXTERNAL), PORTS["UDP"])) as socket:
        answered = []
        for node in world.nodes:
            with routed(crowd, family.of(EXTERNAL), family.of(node)):
                answered.append((await socket.ask()).host)
    assert len(set(answered)) == 1


async def test_a_newcomer_in_the_middle_costs_no_connection_and_few_of_the_others_clients(
    world: World, deployment: Deployment, crowd: Host, family: Family
) -> None:
    """All real servers behind it in the plan's order are deleted and added again, under open connections."""
    first, _, last = world.web
    deployment.apply(web("mh"), *endpoint_slices("web", (first, last), TARGET_PORTS))
    await deployment.start()
    before = await pods_of(crowd, family, world.nodes)
    with routed(crowd, family.of(EXTERNAL), family.of(world.nodes[0])):
        streams = [await crowd.open_stream(family.of(EXTERNAL), PORTS["TCP"]) for _ in range(8)]
        deployment.apply(*endpoint_slices("web", world.web, TARGET_PORTS))
        for node in world.nodes:
            await eventually(lambda node=node: has_pods(node, 3))
        for stream in streams:
            await goes_on(stream)
            await stream.close()
    after = await pods_of(crowd, family, world.nodes)
    between_the_old = [it for it in before if after[it] not in {before[it], "web-2"}]
    assert "web-2" in after.values()
    assert len(between_the_old) <= MOST_BETWEEN_THE_OLD
    assert len({tuple(listed(node, family)) for node in world.nodes}) == 1
