"""C16, C19, C20 and C21: what other parts of a cluster need of the network, while kroute runs."""

import itertools

import pytest

from tests.conformance.conftest import Serve
from tests.conformance.expect import answers_with, served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment
from tests.lab.objects import endpoint_slices, port, service
from tests.lab.world import FAMILIES, World

WEB = {"web-1", "web-2", "web-3"}


@row("C16")
async def test_c16_proxy_through_a_service_and_a_pod(world: World, kroute: Deployment, free: Allocator) -> None:
    """The API server runs in a node's own network. It calls pods at their own addresses, and through a Service."""
    ips, master = free.cluster_ips(), world.nodes[0]
    kroute.apply(service("proxied", *ips), *endpoint_slices("proxied", world.web))
    await served_by(master, ips, 8080, WEB)
    for pod in world.web:
        assert {answer.host for answer in await answers_with(master, pod, 8080)} == {pod.name}


@row("C19")
async def test_c19_dns_is_reached_over_udp_and_tcp_from_every_pod_and_node(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    """Stand-ins for DNS servers serve behind the Service kube-dns: the content of answers does not concern a proxy."""
    ips = free.cluster_ips()
    kroute.apply(
        service("kube-dns", *ips, ports=[port("dns", 53, "UDP"), port("dns-tcp", 53)]),
        *endpoint_slices("kube-dns", world.web[:2], [port("dns", 5353, "UDP"), port("dns-tcp", 8080)]),
    )
    for client in (world.visitor, *world.web, *world.nodes):
        await served_by(client, ips, 53, {"web-1", "web-2"}, "udp")
        await served_by(client, ips, 53, {"web-1", "web-2"})


@row("C20")
async def test_c20_secure_master_service_is_reached_from_every_pod_and_node(
    world: World, kroute: Deployment, free: Allocator, host_network: Serve
) -> None:
    ips = free.cluster_ips()
    master = await host_network("node1", http=6443)
    kroute.apply(
        service("kubernetes", *ips, ports=[port("https", 443)]),
        *endpoint_slices("kubernetes", [master], [port("https", 6443)]),
    )
    for client in (world.visitor, *world.web, *world.nodes):
        await served_by(client, ips, 443, {"node1"})


@row("C21")
@pytest.mark.parametrize(("protocol", "number"), [("http", 8080), ("udp", 5353)])
async def test_c21_intra_pod_and_node_pod_communication(
    protocol: str, number: int, world: World, kroute: Deployment, free: Allocator
) -> None:
    targets = {"TCP": 8080, "UDP": 5353}
    kroute.apply(service("beside", *free.cluster_ips(), ports=targets), *endpoint_slices("beside", world.web, targets))
    await served_by(world.visitor, world.web[0], number, {"web-1"}, protocol)
    for client in (world.visitor, *world.web, *world.nodes):
        for pod, family in itertools.product(world.web, FAMILIES):
            answer = await getattr(client, protocol)(family.of(pod), number)
            assert answer.host == pod.name
            if client not in world.nodes:
                assert answer.peer == family.of(client)
