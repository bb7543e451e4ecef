"""What each kind of overlay network between the nodes adds: an MTU of pods that is smaller than the wire's.

The kernel leaves checksums to the tunnel's device. A thorough run also has field scenarios on each
(`test_scenarios_on_overlays.py`).
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
from tests.scenarios.test_network_policies import Policies, described, hangs, reaches
from tests.scenarios.test_s13_external_traffic import NODE_PORT, PORTS, TARGET_PORTS
from tests.unit.planning.policies.cluster import ingress, namespace, pods_with

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


async def test_policies_judge_what_is_in_the_tunnel(world: World, deployment: Deployment) -> None:
    client, web = world.web[1:]
    deployment.apply(namespace("shop"), *map(described, [*world.web, world.visitor]))
    policies = Policies(deployment)
    await policies.start()
    await policies.apply(ingress(pods_with(app="visitor"), selector={"matchLabels": {"app": "web-3"}}))
    for family in FAMILIES:
        await hangs(client, family.of(web))
        await reaches(world.visitor, family.of(web))


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
