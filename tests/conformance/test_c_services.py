"""C1 to C4: Services of type ClusterIP and NodePort, with one port and with several."""

from tests.conformance.expect import refused, served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment
from tests.lab.objects import endpoint_slices, port, service
from tests.lab.world import World


@row("C1")
async def test_c01_serve_a_basic_endpoint_from_pods(world: World, kroute: Deployment, free: Allocator) -> None:
    ips = free.cluster_ips()
    kroute.apply(service("basic", *ips, ports={"TCP": 80}))
    await refused(world.visitor, ips, 80)
    for pods in (world.web[:1], world.web[:2], world.web[1:2]):
        kroute.apply(*endpoint_slices("basic", pods))
        await served_by(world.visitor, ips, 80, {pod.name for pod in pods})
    kroute.apply(*endpoint_slices("basic", ()))
    await refused(world.visitor, ips, 80)


@row("C2")
async def test_c02_serve_multiport_endpoints_from_pods(world: World, kroute: Deployment, free: Allocator) -> None:
    ips = free.cluster_ips()
    first, second = world.web[1:]
    by_first = endpoint_slices("multi", [first], [port("one", 8080)], name="one")
    by_second = endpoint_slices("multi", [second], [port("two", 8080)], name="two")
    kroute.apply(service("multi", *ips, ports=[port("one", 80), port("two", 81)]), *by_first, *by_second)
    await served_by(world.visitor, ips, 80, {first.name})
    await served_by(world.visitor, ips, 81, {second.name})
    kroute.delete(*by_first)
    await refused(world.visitor, ips, 80)
    await served_by(world.visitor, ips, 81, {second.name})


@row("C3")
async def test_c03_serve_endpoints_on_same_port_and_different_protocols(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    targets = {"TCP": 8080, "UDP": 5353}
    kroute.apply(service("both", *ips, ports={"TCP": 80, "UDP": 80}), *endpoint_slices("both", world.web, targets))
    names = {pod.name for pod in world.web}
    await served_by(world.visitor, ips, 80, names)
    await served_by(world.visitor, ips, 80, names, "udp")
    kroute.apply(service("both", *ips, ports={"TCP": 80}))
    await refused(world.visitor, ips, 80, "udp")
    await served_by(world.visitor, ips, 80, names)
    kroute.apply(service("both", *ips, ports={"UDP": 80}))
    await refused(world.visitor, ips, 80)
    await served_by(world.visitor, ips, 80, names, "udp")


@row("C4")
async def test_c04_be_able_to_create_a_functioning_nodeport_service(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, node_port = free.cluster_ips(), free.node_port()
    kroute.apply(
        service("nodeport", *ips, ports={"TCP": 80}, node_ports={"TCP": node_port}),
        *endpoint_slices("nodeport", world.web[:2]),
    )
    names = {"web-1", "web-2"}
    await served_by(world.visitor, ips, 80, names)
    for node in world.nodes:
        for client in (world.visitor, world.cluster.client, *world.nodes):
            await served_by(client, node, node_port, names)
