"""C5 to C8: the type of a live Service changes from and to ExternalName."""

from tests.conformance.expect import refused, served_by, unrouted
from tests.conformance.table import row
from tests.lab.allocation import Addresses, Allocator
from tests.lab.deployment import Deployment
from tests.lab.objects import Object, endpoint_slices, external_name, service
from tests.lab.world import World

WEB = {"web-1", "web-2", "web-3"}


def cluster_ip(ips: Addresses) -> Object:
    return service("typed", *ips, ports={"TCP": 80})


def node_port(ips: Addresses, number: int) -> Object:
    return service("typed", *ips, ports={"TCP": 80}, node_ports={"TCP": number})


NAME = external_name("typed", "elsewhere.example.org")


@row("C5")
async def test_c05_change_the_type_from_externalname_to_clusterip(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(NAME, *endpoint_slices("typed", world.web))
    kroute.apply(cluster_ip(ips))
    await served_by(world.visitor, ips, 80, WEB)


@row("C6")
async def test_c06_change_the_type_from_externalname_to_nodeport(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, number = free.cluster_ips(), free.node_port()
    kroute.apply(NAME, *endpoint_slices("typed", world.web))
    kroute.apply(node_port(ips, number))
    await served_by(world.visitor, ips, 80, WEB)
    await served_by(world.cluster.client, world.nodes[1], number, WEB)


@row("C7")
async def test_c07_change_the_type_from_clusterip_to_externalname(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(cluster_ip(ips), *endpoint_slices("typed", world.web))
    await served_by(world.visitor, ips, 80, WEB)
    kroute.apply(NAME)
    await unrouted(world.visitor, ips, 80)


@row("C8")
async def test_c08_change_the_type_from_nodeport_to_externalname(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, number = free.cluster_ips(), free.node_port()
    kroute.apply(node_port(ips, number), *endpoint_slices("typed", world.web))
    await served_by(world.cluster.client, world.nodes[1], number, WEB)
    kroute.apply(NAME)
    await refused(world.cluster.client, world.nodes[1], number)
    await unrouted(world.visitor, ips, 80)
