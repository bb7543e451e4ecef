"""Ports of Services in service.go: added, deleted, shared by protocols, named; and no listener on the node."""

from tests.conformance.conftest import AddPod
from tests.conformance.expect import answers_with, refused, served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, port, service
from tests.lab.world import World, routed

WEB = {"web-1", "web-2", "web-3"}
BOTH = {"TCP": 80, "UDP": 80}
TARGETS = {"TCP": 8080, "UDP": 5353}


def listeners(host: Host, number: int) -> str:
    """Return what `ss` shows of sockets that listen at a port, for every protocol that it knows."""
    return host.run("ss", "-H", "--listening", "--tcp", "--udp", "--sctp", "sport", "=", f":{number}")


@row("service 906")
async def test_service_906_updated_after_adding_or_deleting_ports(
    world: World, kroute: Deployment, free: Allocator, add_pod: AddPod
) -> None:
    ips = free.cluster_ips()
    pod = await add_pod("node2", "ported", http=8090)
    await pod.serve(http=8091)
    one, two = port("one", 80), port("two", 81)
    kroute.apply(
        service("ported", *ips, ports=[one]),
        *endpoint_slices("ported", [pod], [port("one", 8090), port("two", 8091)]),
    )
    await served_by(world.visitor, ips, 80, {"ported"})
    await refused(world.visitor, ips, 81)
    kroute.apply(service("ported", *ips, ports=[one, two]))
    for number, target in ((80, 8090), (81, 8091)):
        await served_by(world.visitor, ips, number, {"ported"})
        assert {answer.port for answer in await answers_with(world.visitor, ips, number)} == {target}
    kroute.apply(service("ported", *ips, ports=[two]))
    await refused(world.visitor, ips, 80)
    await served_by(world.visitor, ips, 81, {"ported"})


@row("service 1350")
async def test_service_1350_update_service_type_to_nodeport_listening_on_same_port_number_but_different_protocols(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, number, node2 = free.cluster_ips(), free.node_port(), world.nodes[1]
    kroute.apply(service("both", *ips, ports=BOTH), *endpoint_slices("both", world.web, TARGETS))
    await served_by(world.visitor, ips, 80, WEB)
    kroute.apply(service("both", *ips, ports=BOTH, node_ports={"TCP": number, "UDP": number}))
    for client in (world.cluster.client, world.visitor, world.nodes[0]):
        for protocol in ("http", "udp"):
            await served_by(client, node2, number, WEB, protocol)


@row("service 1696")
async def test_service_1696_release_nodeports_on_delete_and_nothing_listens_on_the_host(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, number, node2 = free.cluster_ips(), free.node_port(), world.nodes[1]
    web = service("released", *ips, node_ports={"TCP": number})
    kroute.apply(web, *endpoint_slices("released", world.web))
    await served_by(world.cluster.client, node2, number, WEB)
    assert [listeners(node, number) for node in world.nodes] == ["", "", ""]
    kroute.delete(web)
    await refused(world.cluster.client, node2, number)
    other = service("another", *free.cluster_ips(), node_ports={"TCP": number})
    kroute.apply(other, *endpoint_slices("another", world.web[:1]))
    await served_by(world.cluster.client, node2, number, {"web-1"})


@row("service 3701")
async def test_service_3701_same_port_with_different_protocols_for_loadbalancer_internal_traffic(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ingress = free.external_ips()
    kroute.apply(
        service("both", *free.cluster_ips(), ports=BOTH, ingress=ingress), *endpoint_slices("both", world.web, TARGETS)
    )
    for client in (world.visitor, *world.web):
        for protocol in ("http", "udp"):
            await served_by(client, ingress, 80, WEB, protocol)


@row("service 3776")
async def test_service_3776_basic_sctp_service_and_no_sctp_endpoint_on_the_node(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    """The kernel loads its SCTP module for the first socket. In this lab only pods open some, and no node does."""
    ips, number = free.cluster_ips(), free.node_port()
    kroute.apply(
        service("sctp", *ips, ports={"SCTP": 90}, node_ports={"SCTP": number}),
        *endpoint_slices("sctp", world.web, {"SCTP": 9090}),
    )
    await served_by(world.visitor, ips, 90, WEB, "sctp")
    await served_by(world.cluster.client, world.nodes[1], number, WEB, "sctp")
    for node in world.nodes:
        _, *endpoints = node.namespace.read("/proc/net/sctp/eps").splitlines()
        assert endpoints == []


@row("service 4044")
async def test_service_4044_ports_and_named_ports_exposed_by_restartable_init_containers(
    world: World, kroute: Deployment, free: Allocator, add_pod: AddPod
) -> None:
    ips = free.cluster_ips()
    pod = await add_pod("node3", "with-sidecar", http=8090)
    await pod.serve(http=8091)
    kroute.apply(
        service("sidecar", *ips, ports=[port("main", 80), port("sidecar", 81)]),
        *endpoint_slices("sidecar", [pod], [port("main", 8090), port("sidecar", 8091)]),
    )
    for number, target in ((80, 8090), (81, 8091)):
        await served_by(world.visitor, ips, number, {"with-sidecar"})
        assert {answer.port for answer in await answers_with(world.visitor, ips, number)} == {target}


@row("service 4116")
async def test_service_4116_named_targetports_that_resolve_to_different_ports_on_different_endpoints(
    world: World, kroute: Deployment, free: Allocator, add_pod: AddPod
) -> None:
    ips = free.cluster_ips()
    other = await add_pod("node2", "other-port", http=8090)
    kroute.apply(
        service("named", *ips, ports=[port("http", 80)]),
        *endpoint_slices("named", world.web[:1], [port("http", 8080)], name="one"),
        *endpoint_slices("named", [other], [port("http", 8090)], name="two"),
    )
    await served_by(world.visitor, ips, 80, {"web-1", "other-port"})
    for vip in ips:
        answers = [await world.visitor.http(vip, 80) for _ in range(4)]
        assert {(answer.host, answer.port) for answer in answers} == {("web-1", 8080), ("other-port", 8090)}


@row("service 1313")
async def test_service_1313_connect_via_externalip_not_assigned_to_a_node(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    external = free.external_ips()
    kroute.apply(
        service("external", *free.cluster_ips(), externalIPs=list(external)), *endpoint_slices("external", world.web)
    )
    for client in (world.visitor, *world.web):
        await served_by(client, external, 8080, WEB)
    with routed(world.cluster.client, external, world.nodes[1]):
        await served_by(world.cluster.client, external, 8080, WEB)
