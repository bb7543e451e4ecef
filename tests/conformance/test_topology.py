"""Traffic that follows the hints of endpoints, and the other tests in test/e2e/network that concern a proxy."""

from collections.abc import Sequence

import pytest

from tests.conformance.expect import answers_with, each_of, served_by
from tests.conformance.table import row
from tests.lab import objects
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment
from tests.lab.objects import Endpoint, endpoint_slices, service
from tests.lab.world import TwoAddresses, World

ZONES = ("zone-a", "zone-b", "zone-b")
"""The zones of node1, node2 and node3."""

READY = {"ready": True}
OTHER_RANGE = ("10.96.100.10", "fd00:10:96::a")
"""ClusterIPs of a second ServiceCIDR."""


def hinted(world: World, distribution: str) -> list[Endpoint]:
    """Return the endpoints of all nodes with the EndpointSlice controller's hints for `spec.trafficDistribution`."""
    return [
        Endpoint(
            pod, READY, zone, for_zones=(zone,), for_nodes=(pod.node.name,) if distribution == "PreferSameNode" else ()
        )
        for pod, zone in zip(world.web, ZONES, strict=True)
    ]


async def served_from(world: World, vip: TwoAddresses, served: Sequence[set[str]]) -> None:
    """Expect that these endpoints answer the pods on each node, in the nodes' order."""
    for client, names in zip((world.visitor, *world.web[1:]), served, strict=True):
        await served_by(client, vip, 8080, names)


@row("traffic_distribution 350")
@pytest.mark.parametrize("distribution", ["PreferClose", "PreferSameZone"])
async def test_traffic_distribution_350_prefer_same_zone(
    distribution: str, world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, endpoints = free.cluster_ips(), hinted(world, distribution)
    kroute.apply(
        *(objects.node(node, zone) for node, zone in zip(world.nodes, ZONES, strict=True)),
        service("near", *ips, trafficDistribution=distribution),
        *endpoint_slices("near", endpoints),
    )
    await served_from(world, ips, [{"web-1"}, {"web-2", "web-3"}, {"web-2", "web-3"}])
    kroute.apply(*endpoint_slices("near", endpoints[1:]))
    await served_from(world, ips, [{"web-2", "web-3"}] * 3)


@row("traffic_distribution 350")
async def test_traffic_distribution_350_prefer_same_node(world: World, kroute: Deployment, free: Allocator) -> None:
    ips, endpoints = free.cluster_ips(), hinted(world, "PreferSameNode")
    kroute.apply(
        *(objects.node(node, zone) for node, zone in zip(world.nodes, ZONES, strict=True)),
        service("near", *ips, trafficDistribution="PreferSameNode"),
        *endpoint_slices("near", endpoints),
    )
    await served_from(world, ips, [{"web-1"}, {"web-2"}, {"web-3"}])
    kroute.apply(*endpoint_slices("near", endpoints[:2]))
    await served_from(world, ips, [{"web-1"}, {"web-2"}, {"web-2"}])


@row("topology_hints 55")
async def test_topology_hints_55_distribute_endpoints_evenly_and_traffic_stays_in_its_zone(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    """Each node has its own zone, each endpoint is hinted to its zone; if one hint is missing, all are ignored."""
    ips, zones = free.cluster_ips(), [f"zone-{node.name}" for node in world.nodes]
    endpoints = [Endpoint(pod, READY, zone, for_zones=(zone,)) for pod, zone in zip(world.web, zones, strict=True)]
    kroute.apply(
        *(objects.node(node, zone) for node, zone in zip(world.nodes, zones, strict=True)),
        service("zoned", *ips, annotations={"service.kubernetes.io/topology-mode": "Auto"}),
        *endpoint_slices("zoned", endpoints),
    )
    await served_from(world, ips, [{"web-1"}, {"web-2"}, {"web-3"}])
    kroute.apply(*endpoint_slices("zoned", [*endpoints[:2], Endpoint(world.web[2], READY, zones[2])]))
    await served_from(world, ips, [{"web-1", "web-2", "web-3"}] * 3)


@row("no_snat 67")
async def test_no_snat_67_send_traffic_to_pods_without_snat(world: World, kroute: Deployment, free: Allocator) -> None:
    ips = free.cluster_ips()
    kroute.apply(service("beside", *ips), *endpoint_slices("beside", world.web))
    await served_by(world.visitor, ips, 8080, {"web-1", "web-2", "web-3"})
    for client in (world.visitor, *world.web):
        for pod in world.web:
            if client is not pod:
                for answer, own in zip(await answers_with(client, pod, 8080), each_of(client), strict=True):
                    assert (answer.host, answer.peer) == (pod.name, own)


@row("pod_lifecycle 60")
async def test_pod_lifecycle_60_connect_to_and_from_other_pods_from_a_terminating_pod(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, other = free.cluster_ips(), free.cluster_ips()
    kroute.apply(
        service("ending", *ips),
        service("other", *other),
        *endpoint_slices("ending", world.web[:1], ready=False, serving=True, terminating=True),
        *endpoint_slices("other", world.web[1:]),
    )
    await served_by(world.web[1], ips, 8080, {"web-1"})
    await served_by(world.web[1], world.web[0], 8080, {"web-1"})
    await served_by(world.web[0], other, 8080, {"web-2", "web-3"})
    await served_by(world.web[0], world.web[1], 8080, {"web-2"})


@row("service_cidrs 69")
async def test_service_cidrs_69_create_services_and_serve_on_different_service_cidrs(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    first = free.cluster_ips()
    kroute.apply(
        service("first", *first),
        service("second", *OTHER_RANGE),
        *endpoint_slices("first", world.web),
        *endpoint_slices("second", world.web),
    )
    for vip in (*first, *OTHER_RANGE):
        for client in (world.visitor, *world.web, world.nodes[1]):
            await served_by(client, vip, 8080, {"web-1", "web-2", "web-3"})
