"""C9 to C12, and the affinity of LoadBalancer Services: one client, one pod."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from tests.conformance.expect import each_of, served_by
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import TwoAddresses, World, routed

WEB = {"web-1", "web-2", "web-3"}
CONFIRM_COUNT = 15
"""How many requests of one client in a row one pod must answer: AffinityConfirmCount of the end-to-end tests."""

STICKY = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}}


async def sticks(client: Host, address: TwoAddresses, port: int) -> None:
    """Expect that one pod answers all requests of a client, soon after affinity has been turned on."""

    async def one_pod(at: str) -> None:
        answered = await client.spread(at, port, CONFIRM_COUNT)
        assert len(answered) == 1, f"{client} reached {answered}"

    for each in each_of(address):
        await eventually(partial(one_pod, each))


async def each_sticks(clients: Iterable[Host], address: TwoAddresses, port: int) -> None:
    for client in clients:
        await sticks(client, address, port)


@row("C9")
async def test_c09_session_affinity_work_for_service_with_type_clusterip(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(service("sticky", *ips, **STICKY), *endpoint_slices("sticky", world.web))
    clients = (world.visitor, world.nodes[0], *world.web)
    await each_sticks(clients, ips, 8080)
    for vip in ips:
        chosen = {next(iter(await client.spread(vip, 8080, 1))) for client in clients}
        assert len(chosen) > 1, f"every client reached {chosen}"


@row("C10")
async def test_c10_switch_session_affinity_for_service_with_type_clusterip(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips = free.cluster_ips()
    kroute.apply(service("sticky", *ips, **STICKY), *endpoint_slices("sticky", world.web))
    await sticks(world.visitor, ips, 8080)
    kroute.apply(service("sticky", *ips))
    await served_by(world.visitor, ips, 8080, WEB)
    kroute.apply(service("sticky", *ips, **STICKY))
    await sticks(world.visitor, ips, 8080)


@row("C11")
async def test_c11_session_affinity_work_for_nodeport_service(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    number = free.node_port()
    kroute.apply(
        service("sticky", *free.cluster_ips(), node_ports={"TCP": number}, **STICKY),
        *endpoint_slices("sticky", world.web),
    )
    await each_sticks((world.cluster.client, world.visitor, world.nodes[0]), world.nodes[1], number)


@row("C12")
async def test_c12_switch_session_affinity_for_nodeport_service(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, number, node2 = free.cluster_ips(), free.node_port(), world.nodes[1]
    kroute.apply(service("sticky", *ips, node_ports={"TCP": number}, **STICKY), *endpoint_slices("sticky", world.web))
    await sticks(world.cluster.client, node2, number)
    kroute.apply(service("sticky", *ips, node_ports={"TCP": number}))
    await served_by(world.cluster.client, node2, number, WEB)
    kroute.apply(service("sticky", *ips, node_ports={"TCP": number}, **STICKY))
    await sticks(world.cluster.client, node2, number)


@row("loadbalancer 565")
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
async def test_loadbalancer_565_session_affinity_with_each_policy_and_switch_it(
    policy: str, world: World, kroute: Deployment, free: Allocator, add_pod: Any
) -> None:
    ips, ingress = free.cluster_ips(), free.external_ips()
    second = await add_pod("node1", "second", http=8080)
    local = {"web-1", second.name}
    fields = {"ingress": ingress, "externalTrafficPolicy": policy}
    kroute.apply(service("sticky", *ips, **fields, **STICKY), *endpoint_slices("sticky", [*world.web, second]))
    with routed(world.cluster.client, ingress, world.nodes[0]):
        await sticks(world.cluster.client, ingress, 8080)
        kroute.apply(service("sticky", *ips, **fields))
        await served_by(world.cluster.client, ingress, 8080, local if policy == "Local" else WEB | local)
        kroute.apply(service("sticky", *ips, **fields, **STICKY))
        await sticks(world.cluster.client, ingress, 8080)
