"""The health check node ports of service.go and loadbalancer.go: to which nodes a load balancer sends clients."""

from functools import partial

from tests.conformance.expect import WITHIN, answers_with, each_of, refused, served_by
from tests.conformance.table import row
from tests.lab.allocation import Addresses, Allocator
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.world import FAMILIES, TwoAddresses, World, routed

TERMINATING = {"ready": False, "serving": True, "terminating": True}


class Balanced:
    """A LoadBalancer Service `balanced` with a node port and a health check node port."""

    def __init__(self, free: Allocator) -> None:
        self.ingress = free.external_ips()
        self.node_port = free.node_port()
        self.health_check = free.node_port()
        self._cluster_ips: Addresses = free.cluster_ips()

    def with_policy(self, policy: str) -> Object:
        """Return the Service; with policy Cluster it has no health check node port."""
        local = {"healthCheckNodePort": self.health_check} if policy == "Local" else {}
        ports = {"node_ports": {"TCP": self.node_port}, "ingress": self.ingress}
        return service("balanced", *self._cluster_ips, **ports, externalTrafficPolicy=policy, **local)


async def health_is(world: World, port: int, statuses: tuple[int, ...]) -> None:
    """Expect these answers of the nodes, in their order; the client sends the request of a cloud's load balancer."""

    async def answers() -> None:
        for family in FAMILIES:
            found = [await world.cluster.client.http_status(family.of(node), port) for node in world.nodes]
            assert tuple(found) == statuses

    await eventually(answers, WITHIN)


async def nothing_at(world: World, port: int) -> None:
    for node in world.nodes:
        await refused(world.cluster.client, node, port)


async def sees_its_own_address(client: Host, address: TwoAddresses, port: int) -> None:
    assert [answer.peer for answer in await answers_with(client, address, port)] == [*each_of(client)]


async def served_with_own_address(world: World, node: Node, port: int, pod: str) -> None:
    """Expect that the node's own pod answers the client outside, and sees the client's address."""
    await served_by(world.cluster.client, node, port, {pod})
    await sees_its_own_address(world.cluster.client, node, port)


@row("service 2823")
async def test_service_2823_fail_health_check_node_port_if_there_are_only_terminating_endpoints(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    balanced = Balanced(free)
    kroute.apply(balanced.with_policy("Local"), *endpoint_slices("balanced", world.web[1:2]))
    await health_is(world, balanced.health_check, (503, 200, 503))
    kroute.apply(*endpoint_slices("balanced", world.web[1:2], **TERMINATING))
    await health_is(world, balanced.health_check, (503, 503, 503))


@row("service 3833")
async def test_service_3833_nodeport_and_healthchecknodeport_when_external_traffic_policy_changes(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    balanced, client = Balanced(free), world.cluster.client
    node1, node2, node3 = world.nodes
    for _ in range(2):
        kroute.apply(balanced.with_policy("Cluster"), *endpoint_slices("balanced", world.web[1:2]))
        for node in world.nodes:
            await served_by(client, node, balanced.node_port, {"web-2"})
        await nothing_at(world, balanced.health_check)
        kroute.apply(balanced.with_policy("Local"))
        await health_is(world, balanced.health_check, (503, 200, 503))
        for node in (node1, node3):
            await refused(client, node, balanced.node_port)
        # With policy Cluster node2 served already, so an answer alone does not show that the client's address is kept.
        seen = partial(served_with_own_address, world, node2, balanced.node_port, "web-2")
        await eventually(seen, WITHIN)


@row("loadbalancer 1016")
async def test_loadbalancer_1016_esipp_work_for_type_loadbalancer(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    balanced, client = Balanced(free), world.cluster.client
    kroute.apply(balanced.with_policy("Local"), *endpoint_slices("balanced", world.web[1:2]))
    with routed(client, balanced.ingress, world.nodes[1]):
        await served_by(client, balanced.ingress, 8080, {"web-2"})
        await sees_its_own_address(client, balanced.ingress, 8080)


@row("loadbalancer 1081")
async def test_loadbalancer_1081_esipp_only_target_nodes_with_endpoints(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    """On each node in turn: the node with the endpoint is healthy and serves the LoadBalancer address, others don't."""
    balanced, client = Balanced(free), world.cluster.client
    kroute.apply(balanced.with_policy("Local"))
    for number, pod in enumerate(world.web):
        kroute.apply(*endpoint_slices("balanced", [pod]))
        healthy = tuple(200 if each == number else 503 for each in range(3))
        await health_is(world, balanced.health_check, healthy)
        for node in world.nodes:
            with routed(client, balanced.ingress, node):
                if node is pod.node:
                    await served_by(client, balanced.ingress, 8080, {pod.name})
                else:
                    await refused(client, balanced.ingress, 8080)


@row("loadbalancer 1174")
async def test_loadbalancer_1174_esipp_target_all_nodes_with_endpoints(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    balanced, client = Balanced(free), world.cluster.client
    kroute.apply(balanced.with_policy("Local"), *endpoint_slices("balanced", world.web))
    await health_is(world, balanced.health_check, (200, 200, 200))
    for node, pod in zip(world.nodes, world.web, strict=True):
        await served_with_own_address(world, node, balanced.node_port, pod.name)
        with routed(client, balanced.ingress, node):
            await served_by(client, balanced.ingress, 8080, {pod.name})


@row("loadbalancer 1221")
async def test_loadbalancer_1221_esipp_work_from_pods(world: World, kroute: Deployment, free: Allocator) -> None:
    """A pod reaches the LoadBalancer address from a node without an endpoint, and keeps its source address."""
    balanced = Balanced(free)
    kroute.apply(balanced.with_policy("Local"), *endpoint_slices("balanced", world.web[1:2]))
    for client in (world.visitor, world.web[2]):
        await served_by(client, balanced.ingress, 8080, {"web-2"})
        await sees_its_own_address(client, balanced.ingress, 8080)
    for node in world.nodes:
        await served_by(node, balanced.ingress, 8080, {"web-2"})
