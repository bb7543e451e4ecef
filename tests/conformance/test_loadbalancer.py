"""LoadBalancer Services in loadbalancer.go, without the cloud's part: the tests write the addresses into the status."""

from typing import Any

import pytest

from tests.conformance.conftest import AddPod
from tests.conformance.expect import dropped, refused, served_by, unrouted
from tests.conformance.table import row
from tests.lab.allocation import Allocator
from tests.lab.cluster import Pod
from tests.lab.deployment import Deployment, eventually
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.udp_client import UdpClient
from tests.lab.world import Family, World, routed

WEB = {"web-1", "web-2", "web-3"}


async def changes_type_and_ports(world: World, kroute: Deployment, free: Allocator, protocol: str, call: str) -> None:
    """ClusterIP, NodePort, LoadBalancer, other ports, no endpoints, endpoints again, ClusterIP."""
    target, ips, ingress = {"TCP": 8080, "UDP": 5353}[protocol], free.cluster_ips(), free.external_ips()
    number, other = free.node_port(), free.node_port()
    node2, client, vip = world.nodes[1], world.cluster.client, ingress

    def mutable(port: int, **fields: Any) -> Object:
        return service("mutable", *ips, ports={protocol: port}, **fields)

    kroute.apply(mutable(80), *endpoint_slices("mutable", world.web, {protocol: target}))
    await served_by(world.visitor, ips, 80, WEB, call)
    with routed(client, vip, node2):
        kroute.apply(mutable(80, node_ports={protocol: number}))
        await served_by(client, node2, number, WEB, call)
        kroute.apply(mutable(80, node_ports={protocol: number}, ingress=ingress))
        await served_by(client, vip, 80, WEB, call)
        kroute.apply(mutable(80, node_ports={protocol: other}, ingress=ingress))
        await served_by(client, node2, other, WEB, call)
        await refused(client, node2, number, call)
        kroute.apply(mutable(81, node_ports={protocol: other}, ingress=ingress))
        await served_by(client, vip, 81, WEB, call)
        await refused(client, vip, 80, call)
        kroute.apply(*endpoint_slices("mutable", (), {protocol: target}))
        await refused(client, vip, 81, call)
        await refused(client, node2, other, call)
        kroute.apply(*endpoint_slices("mutable", world.web, {protocol: target}))
        await served_by(client, vip, 81, WEB, call)
        kroute.apply(mutable(81))
        await refused(client, node2, other, call)
        # The kernel does not tell a UDP socket of a missing route (icmp_err_convert: not fatal).
        await (unrouted if protocol == "TCP" else dropped)(client, vip, 81, call)
    await served_by(world.visitor, ips, 81, WEB, call)


@row("loadbalancer 132")
async def test_loadbalancer_132_change_the_type_and_ports_of_a_tcp_service(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    await changes_type_and_ports(world, kroute, free, "TCP", "http")


@row("loadbalancer 270")
async def test_loadbalancer_270_change_the_type_and_ports_of_a_udp_service(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    await changes_type_and_ports(world, kroute, free, "UDP", "udp")


@row("loadbalancer 422")
async def test_loadbalancer_422_only_allow_access_from_service_loadbalancer_source_ranges(
    world: World, kroute: Deployment, free: Allocator, add_pod: AddPod
) -> None:
    """The ranges: one pod, then another, then two halves that hold everybody, then none, which admits everybody."""
    ips, ingress = free.cluster_ips(), free.external_ips()
    vip, one, other = ingress, world.visitor, await add_pod("node2", "other")
    halves = ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"]

    def ranged(*ranges: str) -> Object:
        return service("ranged", *ips, ingress=ingress, loadBalancerSourceRanges=list(ranges))

    def only(pod: Pod) -> tuple[str, str]:
        return f"{pod.ip}/32", f"{pod.ip6}/128"

    kroute.apply(ranged(*only(one)), *endpoint_slices("ranged", world.web))
    await served_by(one, vip, 8080, WEB)
    await dropped(other, vip, 8080)
    kroute.apply(ranged(*only(other)))
    await served_by(other, vip, 8080, WEB)
    await dropped(one, vip, 8080)
    for ranges in (halves, []):
        kroute.apply(ranged(*ranges))
        for pod in (one, other):
            await served_by(pod, vip, 8080, WEB)
        kroute.apply(ranged("192.0.2.0/24", "2001:db8:1::/48"))
        await dropped(one, vip, 8080)


@row("loadbalancer 642")
async def test_loadbalancer_642_create_a_loadbalancer_service_without_nodeport_and_change_it(
    world: World, kroute: Deployment, free: Allocator
) -> None:
    ips, ingress, number = free.cluster_ips(), free.external_ips(), free.node_port()
    client, node2 = world.cluster.client, world.nodes[1]
    without = service("balanced", *ips, ingress=ingress, allocateLoadBalancerNodePorts=False)
    with routed(client, ingress, node2):
        kroute.apply(without, *endpoint_slices("balanced", world.web))
        await served_by(client, ingress, 8080, WEB)
        await refused(client, node2, number)
        kroute.apply(service("balanced", *ips, ingress=ingress, node_ports={"TCP": number}))
        await served_by(client, node2, number, WEB)
        await served_by(client, ingress, 8080, WEB)
        kroute.apply(without)
        await refused(client, node2, number)
        await served_by(client, ingress, 8080, WEB)


@row("loadbalancer 707")
@pytest.mark.parametrize("node", ["node3", "node2"], ids=["other-node", "same-node"])
async def test_loadbalancer_707_preserve_udp_traffic_when_server_pod_cycles(
    node: str, world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    ingress, client = free.external_ips(), world.cluster.client
    first = await add_pod("node2", "server-1", udp=5353)
    second = await add_pod(node, "server-2", udp=5353)
    kroute.apply(
        service("cycling", *free.cluster_ips(), ports={"UDP": 80}, ingress=ingress),
        *endpoint_slices("cycling", [first], {"UDP": 5353}),
    )

    vip = family.of(ingress)
    with routed(client, vip, family.of(world.nodes[0])), UdpClient(client, vip, 80) as flow:

        async def answered_by(name: str) -> None:
            assert (await flow.ask()).host == name

        await eventually(lambda: answered_by("server-1"), 60)
        first.node.remove_pod(first)
        kroute.apply(*endpoint_slices("cycling", [second], {"UDP": 5353}))
        await eventually(lambda: answered_by("server-2"), 60)
