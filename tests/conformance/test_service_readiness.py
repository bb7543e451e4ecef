"""Endpoints in service.go that are not ready, that terminate, or that do not exist."""

from tests.conformance.expect import refused, served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import TwoAddresses, World

BOTH = {"TCP": 80, "UDP": 80}
TARGETS = {"TCP": 8080, "UDP": 5353}


@row("service 1792")
async def test_service_1792_create_endpoints_for_unready_pods(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    """With publishNotReadyAddresses a proxy sees the endpoints as ready, whatever the state of their pods."""
    ips = free.cluster_ips()
    for publish in (False, True, False):
        kroute.apply(
            service("unready", *ips, publishNotReadyAddresses=publish),
            *endpoint_slices("unready", world.web[1:2], ready=publish, serving=False, terminating=False),
        )
        if publish:
            await served_by(world.visitor, ips, 8080, {"web-2"})
        else:
            await refused(world.visitor, ips, 8080)


@row("service 1948")
async def test_service_1948_connect_to_terminating_and_unready_endpoints_if_publishnotreadyaddresses_is_true(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, number = free.cluster_ips(), free.node_port()
    kroute.apply(
        service("publishing", *ips, node_ports={"TCP": number}, publishNotReadyAddresses=True),
        *endpoint_slices("publishing", world.web[1:2], ready=True, serving=False, terminating=True),
    )
    for client in (world.visitor, world.web[2]):
        await served_by(client, ips, 8080, {"web-2"})
        for node in world.nodes:
            await served_by(client, node, number, {"web-2"})


@row("service 2068")
async def test_service_2068_not_connect_to_terminating_and_unready_endpoints_if_publishnotreadyaddresses_is_false(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, number = free.cluster_ips(), free.node_port()
    kroute.apply(service("waiting", *ips, node_ports={"TCP": number}), *endpoint_slices("waiting", world.web[1:2]))
    await served_by(world.visitor, ips, 8080, {"web-2"})
    kroute.apply(*endpoint_slices("waiting", world.web[1:2], ready=False, serving=False, terminating=True))
    for client in (world.visitor, world.web[2]):
        await refused(client, ips, 8080)
        for node in world.nodes:
            await refused(client, node, number)


@row("service 2419")
async def test_service_2419_rejected_when_no_endpoints_exist(world: World, kroute: Deployment, free: Allocator) -> None:
    ips, number = free.cluster_ips(), free.node_port()
    kroute.apply(service("nobody", *ips, ports=BOTH, node_ports=dict.fromkeys(BOTH, number)))
    await all_refuse(world, ips, number)


@row("service 2464")
async def test_service_2464_rejected_for_evicted_pods(world: World, kroute: Deployment, free: Allocator) -> None:
    ips, number = free.cluster_ips(), free.node_port()
    kroute.apply(
        service("evicted", *ips, ports=BOTH, node_ports=dict.fromkeys(BOTH, number)),
        *endpoint_slices("evicted", world.web[1:2], TARGETS),
    )
    await served_by(world.visitor, ips, 80, {"web-2"})
    kroute.apply(*endpoint_slices("evicted", (), TARGETS))
    await all_refuse(world, ips, number)


async def all_refuse(world: World, vip: TwoAddresses, node_port: int) -> None:
    """Expect that pods, nodes and a client outside are refused at once, over TCP and UDP."""
    node2 = world.nodes[1]
    for protocol in ("http", "udp"):
        for client in (world.visitor, world.web[1], *world.nodes):
            await refused(client, vip, 80, protocol)
        for client in (world.visitor, world.web[1], *world.nodes, world.cluster.client):
            await refused(client, node2, node_port, protocol)
