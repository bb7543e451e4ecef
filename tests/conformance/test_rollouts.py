"""Requests under load while the pods of a Service are replaced."""

from functools import partial

from tests.conformance.conftest import AddPod
from tests.conformance.expect import WITHIN, served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment, eventually
from tests.lab.load import Way, constant_load
from tests.lab.objects import Endpoint, Object, endpoint_slices, service
from tests.lab.world import Family, World, routed

READY = {"ready": True, "serving": True, "terminating": False}
STARTING = {"ready": False, "serving": False, "terminating": False}
TERMINATING = {"ready": False, "serving": True, "terminating": True}
ENOUGH = 0.95
"""The share of requests that must be answered during a rolling update, as in the end-to-end tests."""

CALLS = 20
"""How many calls each of the two callers makes in each state of a rollout."""

PACE = 0.02
"""Seconds between two calls of one caller."""


def has_chosen(node: Node, server: str, chosen: set[str]) -> None:
    """Expect that these real servers of a virtual server, and no others, get new connections."""
    row = node.ipvs().get(server)
    assert row is not None
    assert {name for name, it in row.real_servers.items() if it.weight} == chosen


async def rolling_update(
    policy: str, world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    """Replace the pods on node1, which gets the load balancer's traffic, one after the other.

    Callers are faster than a node that hears of changes may be, so each state begins when node1 has come to it.
    """
    ingress, client, others = free.external_ips(), world.cluster.client, world.web[1:]
    vip = family.of(ingress)
    server = f"TCP {family.at(vip, 8080)}"

    def endpoints(conditions: dict[Pod, dict[str, bool]]) -> list[Object]:
        members = [*(Endpoint(pod, state) for pod, state in conditions.items()), *others]
        return endpoint_slices("rolling", members)

    old = await add_pod("node1", "rolled-0", http=8080)
    kroute.apply(
        service("rolling", *free.cluster_ips(), ingress=ingress, externalTrafficPolicy=policy), *endpoints({old: READY})
    )
    with routed(client, vip, family.of(world.nodes[0])):
        await served_by(client, vip, 8080, {old.name, *(pod.name for pod in others if policy == "Cluster")})
        async with constant_load([Way(client, vip, 8080)] * 2, PACE) as load:
            for number in (1, 2):
                new = await add_pod("node1", f"rolled-{number}", http=8080)
                for conditions in ({old: READY, new: STARTING}, {old: TERMINATING, new: READY}, {new: READY}):
                    kroute.apply(*endpoints(conditions))
                    ready = [pod for pod, state in conditions.items() if state == READY]
                    members = {*ready, *(others if policy == "Cluster" else ())}
                    chosen = {family.at(family.of(pod), 8080) for pod in members}
                    await eventually(partial(has_chosen, world.nodes[0], server, chosen), within=WITHIN)
                    await load.goes_on(CALLS)
                old.node.remove_pod(old)
                old = new
    answered, failed = load.answered.total(), len(load.failures)
    assert answered / (answered + failed) >= ENOUGH, load.failures
    assert load.answered["rolled-2"], load.answered


@row("loadbalancer 975")
async def test_loadbalancer_975_no_connectivity_disruption_during_rolling_update_with_policy_cluster(
    world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    await rolling_update("Cluster", world, kroute, family, free, add_pod)


@row("loadbalancer 984")
async def test_loadbalancer_984_no_connectivity_disruption_during_rolling_update_with_policy_local(
    world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    await rolling_update("Local", world, kroute, family, free, add_pod)


@row("pod_lifecycle 110")
async def test_pod_lifecycle_110_zero_failed_requests_during_a_blue_green_deployment(
    world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    """Green pods become ready, the selector changes, blue pods terminate gracefully: every request is answered."""
    ips = free.cluster_ips()
    blue = [await add_pod(node, f"blue-{node}", http=8080) for node in world.cluster.nodes]
    green = [await add_pod(node, f"green-{node}", http=8080) for node in world.cluster.nodes]
    kroute.apply(service("coloured", *ips), *endpoint_slices("coloured", blue))
    await served_by(world.visitor, family.of(ips), 8080, {pod.name for pod in blue})
    async with constant_load([Way(world.visitor, family.of(ips), 8080)] * 2, PACE) as load:
        await load.goes_on(CALLS)
        kroute.apply(*endpoint_slices("coloured", green))
        await served_by(world.web[0], family.of(ips), 8080, {pod.name for pod in green})
        await load.goes_on(CALLS)
        for pod in blue:
            pod.node.remove_pod(pod)
        await load.goes_on(CALLS)
    assert load.failures == []
    assert load.answered.keys() == {pod.name for pod in (*blue, *green)}
