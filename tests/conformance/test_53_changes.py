"""networking 325 to 458 and 548: changes of a Service, affinity, large requests, and rules that are deleted."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.conformance.expect import refused, served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment, eventually
from tests.lab.firewall_state import delete_rules, rules
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.servers import Answer
from tests.lab.udp_client import UdpClient
from tests.lab.world import Family, World

WEB = {"web-1", "web-2", "web-3"}
PORTS = {"TCP": 80, "UDP": 90}
TARGETS = {"TCP": 8080, "UDP": 5353}
BOTH = pytest.mark.parametrize(("protocol", "kind"), [("http", "TCP"), ("udp", "UDP")], ids=["http", "udp"])
BRIDGE_CALLS_IP6TABLES = "net.bridge.bridge-nf-call-ip6tables"
"""kroute's chains, and jumps to them; not rules that only look up kroute's sets."""
CONFIRM_COUNT = 15
"""How many requests of one client in a row one pod must answer: AffinityConfirmCount of the end-to-end tests."""
LARGE = 2000
"""Bytes of a large request: more than one packet carries on the lab's wires."""


@row("networking 325", "networking 342")
@BOTH
async def test_networking_325_update_endpoints(
    protocol: str, kind: str, world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, node_ports = free.cluster_ips(), {each: free.node_port() for each in PORTS}
    kroute.apply(
        service("changing", *ips, ports=PORTS, node_ports=node_ports),
        *endpoint_slices("changing", world.web, TARGETS),
    )
    places = ((ips, PORTS[kind]), (world.nodes[0], node_ports[kind]))
    for place in places:
        await served_by(world.visitor, *place, WEB, protocol)
    kroute.apply(*endpoint_slices("changing", world.web[1:], TARGETS))
    for place in places:
        await served_by(world.visitor, *place, WEB - {"web-1"}, protocol)


@row("networking 360", "networking 381", "networking 391")
@BOTH
async def test_networking_360_update_node_port(
    protocol: str, kind: str, world: World, kroute: Deployment, free: Allocator
) -> None:
    """The node ports serve; then the Service loses them, and its ClusterIP still serves."""
    ips, node_ports = free.cluster_ips(), {each: free.node_port() for each in PORTS}
    kroute.apply(
        service("changing", *ips, ports=PORTS, node_ports=node_ports),
        *endpoint_slices("changing", world.web, TARGETS),
    )
    for client in (world.visitor, world.cluster.client, world.nodes[0]):
        for node in world.nodes:
            await served_by(client, node, node_ports[kind], WEB, protocol)
    kroute.apply(service("changing", *ips, ports=PORTS))
    for client in (world.visitor, world.cluster.client, world.nodes[0]):
        for node in world.nodes:
            await refused(client, node, node_ports[kind], protocol)
    await served_by(world.visitor, ips, PORTS[kind], WEB, protocol)


@row("networking 413", "networking 431")
@BOTH
async def test_networking_413_client_ip_based_session_affinity(
    protocol: str, kind: str, world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(
        service("sticky", *ips, ports=PORTS, sessionAffinity="ClientIP"),
        *endpoint_slices("sticky", world.web, TARGETS),
    )

    async def one_backend(client: Host, vip: str) -> str:
        answered = await client.spread(vip, PORTS[kind], CONFIRM_COUNT, protocol)
        assert len(answered) == 1, f"{client} reached {answered}"
        return answered.popitem()[0]

    clients = (world.visitor, *world.web, *world.nodes)
    for vip in ips:
        chosen = {await eventually(partial(one_backend, client, vip)) for client in clients}
        assert len(chosen) > 1, f"every client reached {chosen}"


@row("networking 448")
async def test_networking_448_large_requests_http(
    world: World, kroute: Deployment, family: Family, free: Allocator
) -> None:
    ips, node_port = free.cluster_ips(), free.node_port()
    kroute.apply(service("large", *ips, node_ports={"TCP": node_port}), *endpoint_slices("large", world.web))
    path = "/?" + "x" * LARGE
    for place in ((family.of(ips), 8080), (family.of(world.nodes[1]), node_port)):
        await served_by(world.visitor, *place, WEB)
        for _ in world.web:
            assert await world.visitor.http_status(*place, path=path) == 200


@pytest.fixture
def routed_pods(world: World) -> Iterator[None]:
    """Turn br_netfilter off on the pods' bridges, as with a CNI plugin that routes. Pods of one node then cannot reach
    each other through a Service.

    With br_netfilter IPVS refuses an IPv6 datagram longer than the MTU ("packet too big", EMSGSIZE at the sender). It
    seems to see one long packet in place of the fragments (ip_vs_xmit.c, __mtu_check_toobig_v6). The node's own
    processes get the same error.
    """
    for node in world.nodes:
        node.sysctl(BRIDGE_CALLS_IP6TABLES, 0)
    yield
    for node in world.nodes:
        node.sysctl(BRIDGE_CALLS_IP6TABLES, 1)


@row("networking 458")
@pytest.mark.usefixtures("routed_pods")
async def test_networking_458_large_requests_udp(
    world: World, kroute: Deployment, family: Family, free: Allocator
) -> None:
    ips, node_port = free.cluster_ips(), free.node_port()
    kroute.apply(
        service("large", *ips, ports={"UDP": 90}, node_ports={"UDP": node_port}),
        *endpoint_slices("large", world.web[1:], {"UDP": 5353}),
    )
    remote = {pod.name for pod in world.web[1:]}

    async def is_answered(address: str, port: int) -> Answer:
        with UdpClient(world.visitor, address, port) as client:
            return await client.ask(b"x" * LARGE)

    for place in ((family.of(ips), 90), (family.of(world.nodes[1]), node_port)):
        await served_by(world.visitor, *place, remote, "udp")
        assert {(await eventually(partial(is_answered, *place))).host for _ in world.web} == remote


@row("networking 548")
async def test_networking_548_recreate_its_iptables_rules_if_they_are_deleted(
    world: World, kroute: Deployment, family: Family, free: Allocator
) -> None:
    """kroute's chains and the jumps to them are deleted from every table; foreign rules stay."""
    node1, client = world.nodes[0], world.cluster.client
    ips, node_port = free.cluster_ips(), free.node_port()
    kroute.apply(
        service("ruled", *ips, node_ports={"TCP": node_port}, externalTrafficPolicy="Cluster"),
        *endpoint_slices("ruled", world.web),
    )
    await served_by(client, family.of(node1), node_port, WEB)
    await served_by(world.web[0], family.of(ips), 8080, WEB)
    before = rules(node1, family.name)
    assert before, "there is nothing to delete"
    delete_rules(node1, family.name)

    def all_are_back() -> None:
        assert rules(node1, family.name) == before

    await eventually(all_are_back)
    await served_by(client, family.of(node1), node_port, WEB)
    await served_by(world.web[0], family.of(ips), 8080, WEB)
