"""S1, S2, S11, S12 and S13 once more with each kind of overlay network between the nodes, and what tunnels add.

The MTU of pods is smaller than the wire's, and the kernel leaves checksums to the tunnel's device.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.lab.cluster import Cluster
from tests.lab.deployment import Deployment
from tests.lab.feed import feed_for
from tests.lab.objects import endpoint_slices, service
from tests.lab.overlays import IPIP, VXLAN, WIREGUARD, WIREGUARD_FOR_PODS_ONLY, carried
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import FAMILIES, World
from tests.scenarios.test_s01_host_reaches_remote_pods import (
    test_s1_all_pods_answer_a_host_and_see_its_own_address,
    test_s1_the_local_route_of_each_vip_has_the_nodes_address_as_source,
    test_s2_the_api_server_is_reached_from_every_node,
)
from tests.scenarios.test_s11_masquerading import (
    test_a_pod_that_is_sent_to_itself_gets_an_answer,
    test_exempt_sources_are_not_masqueraded,
    test_only_calls_from_outside_the_cluster_networks_are_masqueraded,
    test_s11_masquerade_all_shows_the_node_for_every_connection,
    test_s12_a_pod_sees_the_pod_that_called,
)
from tests.scenarios.test_s13_external_traffic import (
    NODE_PORT,
    PORTS,
    TARGET_PORTS,
    quick_errors,
    test_s13_cluster_any_node_serves_and_the_pod_sees_that_node,
    test_s13_local_follows_the_pod_to_the_node,
    test_s13_local_pods_and_processes_of_a_node_without_an_endpoint_are_served_by_the_clusters,
    test_s13_local_the_client_is_seen_as_itself_where_a_pod_is_and_refused_elsewhere,
    test_s13_the_policy_changes_while_clients_call,
)

__all__ = [
    "quick_errors",
    "test_a_pod_that_is_sent_to_itself_gets_an_answer",
    "test_exempt_sources_are_not_masqueraded",
    "test_only_calls_from_outside_the_cluster_networks_are_masqueraded",
    "test_s1_all_pods_answer_a_host_and_see_its_own_address",
    "test_s1_the_local_route_of_each_vip_has_the_nodes_address_as_source",
    "test_s2_the_api_server_is_reached_from_every_node",
    "test_s11_masquerade_all_shows_the_node_for_every_connection",
    "test_s12_a_pod_sees_the_pod_that_called",
    "test_s13_cluster_any_node_serves_and_the_pod_sees_that_node",
    "test_s13_local_follows_the_pod_to_the_node",
    "test_s13_local_pods_and_processes_of_a_node_without_an_endpoint_are_served_by_the_clusters",
    "test_s13_local_the_client_is_seen_as_itself_where_a_pod_is_and_refused_elsewhere",
    "test_s13_the_policy_changes_while_clients_call",
]

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
LARGE = 20_000
"""Bytes of a request; many packets of any MTU here."""


@pytest.fixture(scope="module", params=[VXLAN, IPIP, WIREGUARD], ids=lambda overlay: overlay.name)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The cluster of the tests above, with tunnels between its nodes."""
    made = World.build(request.param)
    try:
        yield made
    finally:
        made.cluster.close()


async def test_tunnels_carry_large_requests_of_pods_nodes_and_clients(world: World, deployment: Deployment) -> None:
    """A segment that were larger than the tunnel's MTU would be lost without a word to a client outside."""
    node1, remote = world.nodes[0], world.web[2:]
    node_ports = {"TCP": NODE_PORT.tcp, "UDP": NODE_PORT.udp}
    web = service("web", *CLUSTER_IPS, ports=PORTS, node_ports=node_ports)
    deployment.apply(web, *endpoint_slices("web", remote, TARGET_PORTS))
    await deployment.start(nodes=("node1",))
    for family in FAMILIES:
        before = carried(node1)
        for caller, address, port in (
            (world.visitor, family.service_ip, PORTS["TCP"]),
            (node1, family.service_ip, PORTS["TCP"]),
            (world.cluster.client, family.of(node1), NODE_PORT.tcp),
        ):
            assert await caller.http_status(address, port, path="/" + "x" * LARGE) == 200
        assert carried(node1) - before > 3 * LARGE


async def test_a_tunnel_that_takes_pods_addresses_only_needs_the_pods_networks_named(
    deployment_in_strict: Deployment,
) -> None:
    """flannel's WireGuard backend. The source route gives a node's call the node's own address, which a peer refuses.

    With `--cluster-cidr` such a call is masqueraded, with the address of the tunnel's device.
    """
    deployment = deployment_in_strict
    node1, [web] = deployment.cluster.node("node1"), deployment.cluster.node("node3").pods
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", [web]))
    await deployment.start(nodes=("node1",))
    for ip in CLUSTER_IPS:
        with pytest.raises(TimeoutError):
            await node1.http(ip, 8080, timeout=1.5)
    await deployment.stop()
    await deployment.start("--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}", nodes=("node1",))
    for ip in CLUSTER_IPS:
        assert (await node1.http(ip, 8080)).host == web.name


@pytest.fixture
async def deployment_in_strict(tmp_path: Path) -> AsyncIterator[Deployment]:
    """kroute in a cluster whose tunnels let a node send from its pods' addresses only."""
    async with Cluster.start() as cluster:
        await cluster.node("node3").pod("web", http=8080)
        await asyncio.to_thread(WIREGUARD_FOR_PODS_ONLY.lay, cluster)
        deployment = Deployment(cluster, feed_for(cluster, tmp_path))
        yield deployment
        await deployment.cleanup()
