"""The traffic policies of service.go, and the fallback to terminating endpoints."""

from collections.abc import Iterable

from tests.conformance.conftest import Serve
from tests.conformance.expect import answers_with, each_of, refused, served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import TwoAddresses, World

TERMINATING = {"ready": False, "serving": True, "terminating": True}


async def served_to_some(
    address: TwoAddresses, port: int, names: set[str], to: Iterable[Host], not_to: Iterable[Host] = ()
) -> None:
    """Expect that `names` answer the clients in `to`, and that those in `not_to` are refused."""
    for client in to:
        await served_by(client, address, port, names)
    for client in not_to:
        await refused(client, address, port)


@row("service 2528")
async def test_service_2528_internal_traffic_policy_local_pod_to_pod(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(service("local", *ips, internalTrafficPolicy="Local"), *endpoint_slices("local", world.web[:1]))
    await served_to_some(ips, 8080, {"web-1"}, to=[world.visitor, world.web[0]], not_to=world.web[1:])


@row("service 2597")
async def test_service_2597_internal_traffic_policy_local_pod_hostnetwork_to_pod(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(service("local", *ips, internalTrafficPolicy="Local"), *endpoint_slices("local", world.web[:1]))
    await served_to_some(ips, 8080, {"web-1"}, to=world.nodes[:1], not_to=world.nodes[1:])


@row("service 2668")
async def test_service_2668_internal_traffic_policy_local_pod_and_node_to_pod_hostnetwork(
    world: World, kroute: Deployment, free: Allocator, host_network: Serve
) -> None:
    ips = free.cluster_ips()
    endpoint = await host_network("node1", http=8080)
    kroute.apply(service("local", *ips, internalTrafficPolicy="Local"), *endpoint_slices("local", [endpoint]))
    here, elsewhere = [world.visitor, world.nodes[0]], [*world.web[1:], *world.nodes[1:]]
    await served_to_some(ips, 8080, {"node1"}, to=here, not_to=elsewhere)


@row("service 2771")
async def test_service_2771_external_traffic_policy_local_for_type_nodeport(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    number, client = free.node_port(), world.cluster.client
    kroute.apply(
        service("local", *free.cluster_ips(), node_ports={"TCP": number}, externalTrafficPolicy="Local"),
        *endpoint_slices("local", world.web[1:2]),
    )
    await served_by(client, world.nodes[1], number, {"web-2"})
    assert [answer.peer for answer in await answers_with(client, world.nodes[1], number)] == [*each_of(client)]
    for node in (world.nodes[0], world.nodes[2]):
        await refused(client, node, number)


@row("service 2920")
async def test_service_2920_fallback_to_terminating_endpoints_internal_traffic_policy_cluster(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(service("ending", *ips), *endpoint_slices("ending", world.web[1:2], **TERMINATING))
    for client in (world.visitor, *world.web):
        await served_by(client, ips, 8080, {"web-2"})
    kroute.apply(*endpoint_slices("ending", world.web[2:], name="ready"))
    for client in (world.visitor, *world.web):
        await served_by(client, ips, 8080, {"web-3"})


@row("service 2994")
async def test_service_2994_fallback_to_local_terminating_endpoints_internal_traffic_policy_local(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    """A ready endpoint on another node does not count on a node that has only terminating ones."""
    ips = free.cluster_ips()
    kroute.apply(
        service("ending", *ips, internalTrafficPolicy="Local"),
        *endpoint_slices("ending", world.web[1:2], **TERMINATING),
    )
    await served_to_some(ips, 8080, {"web-2"}, to=[world.web[1]], not_to=[world.visitor, world.web[2]])
    kroute.apply(*endpoint_slices("ending", world.web[2:], name="ready"))
    await served_to_some(ips, 8080, {"web-3"}, to=[world.web[2]], not_to=[world.visitor])
    await served_by(world.web[1], ips, 8080, {"web-2"})


@row("service 3073")
async def test_service_3073_fallback_to_terminating_endpoints_external_traffic_policy_cluster(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    number = free.node_port()
    kroute.apply(
        service("ending", *free.cluster_ips(), node_ports={"TCP": number}),
        *endpoint_slices("ending", world.web[1:2], **TERMINATING),
    )
    for node in world.nodes:
        await served_by(world.cluster.client, node, number, {"web-2"})
    kroute.apply(*endpoint_slices("ending", world.web[2:], name="ready"))
    for node in world.nodes:
        await served_by(world.cluster.client, node, number, {"web-3"})


@row("service 3149")
async def test_service_3149_fallback_to_local_terminating_endpoints_external_traffic_policy_local(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    number, client = free.node_port(), world.cluster.client
    kroute.apply(
        service("ending", *free.cluster_ips(), node_ports={"TCP": number}, externalTrafficPolicy="Local"),
        *endpoint_slices("ending", world.web[1:2], **TERMINATING),
    )
    node1, node2, node3 = (node for node in world.nodes)
    await served_by(client, node2, number, {"web-2"})
    for node in (node1, node3):
        await refused(client, node, number)
    kroute.apply(*endpoint_slices("ending", world.web[2:], name="ready"))
    await served_by(client, node3, number, {"web-3"})
    await served_by(client, node2, number, {"web-2"})
    await refused(client, node1, number)
