"""`loadBalancerSourceRanges`: of clients outside, pods and the node itself, only those in the ranges get through."""

import asyncio

import pytest

from tests.lab.allocation import Addresses
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.world import FAMILIES, Family, World, routed
from tests.lab.xtables_lock import held

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
BALANCED = Addresses("203.0.113.10", "2001:db8::10")
NODE_PORT = 30080
DROPPED_AFTER = 1.0
"""Seconds without an answer after which a call is taken to be dropped; an answer comes within milliseconds."""


def web(*ranges: str) -> Object:
    return service(
        "web",
        *CLUSTER_IPS,
        node_ports={"TCP": NODE_PORT},
        ingress=list(BALANCED),
        loadBalancerSourceRanges=list(ranges),
    )


async def gets_through(caller: Host, family: Family) -> None:
    assert (await caller.http(family.of(BALANCED), 8080)).host.startswith("web-")


async def is_dropped(caller: Host, family: Family) -> None:
    """Expect PermissionError in the node's own process, and no answer anywhere else."""
    try:
        answer = await caller.http(family.of(BALANCED), 8080, timeout=DROPPED_AFTER)
    except (TimeoutError, PermissionError):
        return
    raise AssertionError(f"{caller} was answered: {answer}")


async def is_kept_out(caller: Host, family: Family) -> None:
    """While nothing serves the port, the caller may also be refused, or have no route."""
    try:
        answer = await caller.http(family.of(BALANCED), 8080, timeout=DROPPED_AFTER)
    except OSError:  # TimeoutError and PermissionError are subclasses
        return
    raise AssertionError(f"{caller} was answered: {answer}")


async def keeps_trying(caller: Host, family: Family) -> None:
    while True:
        await is_kept_out(caller, family)


def only(host: Host, family: Family) -> str:
    """The range that holds one host."""
    return f" {family.of(host)}/{128 if family.name == 'IPv6' else 32} "


@pytest.mark.parametrize("allowed", ["client", "pod", "node"])
async def test_only_clients_in_the_ranges_get_through(
    world: World, deployment: Deployment, family: Family, allowed: str
) -> None:
    node1 = world.cluster.node("node1")
    callers: dict[str, Host] = {"client": world.cluster.client, "pod": world.visitor, "node": node1}
    deployment.apply(web(only(callers[allowed], family)), *endpoint_slices("web", world.web))
    await deployment.start()
    with routed(world.cluster.client, family.of(BALANCED), family.of(node1)):
        for name, caller in callers.items():
            await (gets_through if name == allowed else is_dropped)(caller, family)
            assert (await caller.http(family.of(node1), NODE_PORT)).host.startswith("web-"), "node ports are for all"
    assert (await world.visitor.http(family.service_ip, 8080)).host.startswith("web-"), "and so is the ClusterIP"


async def test_ranges_are_followed_live(world: World, deployment: Deployment, family: Family) -> None:
    pod = world.visitor
    deployment.apply(web("192.0.2.0/24", "2001:db8:1::/48"), *endpoint_slices("web", world.web))
    await deployment.start()
    await is_dropped(pod, family)
    for ranges in ([only(pod, family)], ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"], ["0.0.0.0/0", "::/0"], []):
        deployment.apply(web(*ranges))
        await eventually(lambda: gets_through(pod, family))
        deployment.apply(web("192.0.2.0/24", "2001:db8:1::/48"))
        await eventually(lambda: is_dropped(pod, family))


async def test_a_lock_held_at_the_first_start_opens_the_port_to_nobody_and_holds_up_nothing_else(
    world: World, deployment: Deployment, family: Family
) -> None:
    """The agents become ready before the lock is free: readiness waits no longer, but restricted ports stay closed."""
    client, node1 = world.cluster.client, world.cluster.node("node1")
    deployment.apply(web(only(client, family)), *endpoint_slices("web", world.web))
    with routed(client, family.of(BALANCED), family.of(node1)):
        async with asyncio.TaskGroup() as group:
            attacks = [group.create_task(keeps_trying(caller, family)) for caller in (world.visitor, node1)]
            with held():
                await deployment.start()
                assert (await world.visitor.http(family.service_ip, 8080)).host.startswith("web-")
                assert (await client.http(family.of(node1), NODE_PORT)).host.startswith("web-")
                await is_kept_out(client, family)
            await eventually(lambda: gets_through(client, family), within=30)
            for attack in attacks:
                attack.cancel()
        for outsider in (world.visitor, node1):
            await is_dropped(outsider, family)
