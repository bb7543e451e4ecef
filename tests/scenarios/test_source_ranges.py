"""`loadBalancerSourceRanges`: of clients outside, pods and the node itself, only those in the ranges get through."""

import asyncio
import itertools
from collections import Counter
from functools import partial
from ipaddress import ip_address, ip_network

import pytest

from tests.lab.allocation import Addresses
from tests.lab.deployment import Deployment, eventually
from tests.lab.firewall_state import entries
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.world import FAMILIES, Family, World, routed
from tests.lab.xtables_lock import held

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
OTHER_CLUSTER_IPS = tuple(family.other_service_ip for family in FAMILIES)
BALANCED = Addresses("203.0.113.10", "2001:db8::10")
NODE_PORT = 30080
HELD_FOR = 60.0
TRIES = 10
"""How often an excluded client has tried at least while the lock was held, each time for a second at most."""
DROPPED_AFTER = 1.0
"""Seconds without an answer after which a call is taken to be dropped; an answer comes within milliseconds."""


def web(*ranges: str, **spec: list[str]) -> Object:
    return service(
        "web",
        *CLUSTER_IPS,
        node_ports={"TCP": NODE_PORT},
        ingress=list(BALANCED),
        loadBalancerSourceRanges=list(ranges),
        **spec,
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


async def keeps_trying(caller: Host, family: Family, tries: Counter[tuple[Host, Family]]) -> None:
    while True:
        await is_kept_out(caller, family)
        tries[caller, family] += 1


async def all_serve(caller: Host, *addresses: str) -> None:
    for address in addresses:
        assert (await caller.http(address, 8080)).host.startswith("web-")


def only(host: Host, family: Family) -> str:
    """The range that holds one host."""
    return f" {family.of(host)}/{128 if family.name == 'IPv6' else 32} "


@pytest.mark.parametrize("allowed", ["client", "pod", "node"])
async def test_only_clients_in_the_ranges_get_through(world: World, deployment: Deployment, allowed: str) -> None:
    node1 = world.cluster.node("node1")
    callers: dict[str, Host] = {"client": world.cluster.client, "pod": world.visitor, "node": node1}
    every_way = list(itertools.product(callers.items(), FAMILIES))
    deployment.apply(web(*(only(callers[allowed], it) for it in FAMILIES)), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    with routed(world.cluster.client, BALANCED, node1):
        for (name, caller), family in every_way:
            await (gets_through if name == allowed else is_dropped)(caller, family)
            assert (await caller.http(family.of(node1), NODE_PORT)).host.startswith("web-"), "node ports are for all"
        assert await deployment.agents["node1"].kill() == -9
        for (name, caller), family in every_way:
            await (gets_through if name == allowed else is_dropped)(caller, family)
        await deployment.start(nodes=("node1",))
    for ip in CLUSTER_IPS:
        assert (await world.visitor.http(ip, 8080)).host.startswith("web-"), "and so is the ClusterIP"


async def test_ranges_are_followed_live(world: World, deployment: Deployment) -> None:
    pod = world.visitor
    deployment.apply(web("192.0.2.0/24", "2001:db8:1::/48"), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    for family in FAMILIES:
        await is_dropped(pod, family)
    of_the_pod = [only(pod, family) for family in FAMILIES]
    for ranges in (of_the_pod, ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"], ["0.0.0.0/0", "::/0"], []):
        deployment.apply(web(*ranges))
        for family in FAMILIES:
            await eventually(partial(gets_through, pod, family))
        deployment.apply(web("192.0.2.0/24", "2001:db8:1::/48"))
        for family in FAMILIES:
            await eventually(partial(is_dropped, pod, family))


async def test_while_ranges_take_the_place_of_others_the_same_clients_get_through(
    world: World, deployment: Deployment, family: Family
) -> None:
    """The pod is in each list, by networks of different lengths; the node is in none."""
    node1, pod = world.cluster.node("node1"), world.visitor
    bits = 128 if family.name == "IPv6" else 32
    around = [ip_network(f"{family.of(pod)}/{bits - it}", strict=False) for it in (0, 1, 3)]
    assert not any(ip_address(family.of(node1)) in it for it in around)
    deployment.apply(web(str(around[0])), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    tries = Counter[tuple[Host, Family]]()
    async with asyncio.TaskGroup() as group:
        attack = group.create_task(keeps_trying(node1, family, tries))
        for turn in range(12):
            unused = [f"2001:db8:{turn}:{it:x}::/64" if bits == 128 else f"198.18.{turn}.{it}/32" for it in range(250)]
            deployment.apply(web(str(around[turn % 3]), *unused))
            while (family.of(BALANCED), 6, 8080, unused[-1]) not in {it.element for it in entries(node1)}:
                await gets_through(pod, family)
        while tries[node1, family] <= TRIES:
            await gets_through(pod, family)
        attack.cancel()


async def test_ranges_hold_on_external_ips_of_the_load_balancer_and_each_family_has_its_own(
    world: World, deployment: Deployment
) -> None:
    ipv4, ipv6 = FAMILIES
    pod, node1 = world.visitor, world.cluster.node("node1")
    deployment.apply(web("192.0.2.0/24", externalIPs=list(BALANCED)), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    for caller in (pod, node1):
        await is_dropped(caller, ipv4)
        await gets_through(caller, ipv6)
    assert "IPv6 clients are not restricted" in deployment.agents["node1"].log.read_text()
    deployment.apply(web("192.0.2.0/24", only(node1, ipv6), externalIPs=list(BALANCED)))
    await eventually(lambda: is_dropped(pod, ipv6))
    await gets_through(node1, ipv6)
    await is_dropped(pod, ipv4)


@pytest.mark.legacy
async def test_a_lock_held_for_a_minute_at_the_first_start_opens_the_port_to_nobody_and_holds_up_nothing_else(
    world: World, deployment: Deployment
) -> None:
    """The agents become ready before the lock is free: readiness waits no longer, but restricted ports stay closed.

    Both families are in one test, because of the minute.
    """
    client, node1, pod = world.cluster.client, world.cluster.node("node1"), world.visitor
    loop, tries = asyncio.get_running_loop(), Counter[tuple[Host, Family]]()
    ways = [(caller, family) for caller in (pod, node1) for family in FAMILIES]
    deployment.apply(web(*(only(client, family) for family in FAMILIES)), *endpoint_slices("web", world.web))
    with routed(client, BALANCED, node1):
        async with asyncio.TaskGroup() as group:
            attacks = [group.create_task(keeps_trying(*way, tries)) for way in ways]
            with held():
                free_at = loop.time() + HELD_FOR
                await deployment.start()
                late = [service("late", *OTHER_CLUSTER_IPS), *endpoint_slices("late", world.web)]
                deployment.apply(*late)
                await eventually(lambda: all_serve(pod, *OTHER_CLUSTER_IPS))
                while loop.time() < free_at or min(tries[way] for way in ways) <= TRIES:
                    await all_serve(pod, *CLUSTER_IPS, *OTHER_CLUSTER_IPS)
                    for family in FAMILIES:
                        assert (await pod.http(family.of(node1), NODE_PORT)).host.startswith("web-")
                        await is_kept_out(client, family)
            for family in FAMILIES:
                await eventually(partial(gets_through, client, family), within=30)
            for attack in attacks:
                attack.cancel()
        for family in FAMILIES:
            for outsider in (pod, node1):
                await is_dropped(outsider, family)
