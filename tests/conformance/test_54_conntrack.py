"""conntrack 140 to 673: clients that keep their source port, and packets that belong to no known connection."""

import re
from functools import partial
from typing import Any

import pytest

from tests.conformance.conftest import AddPod
from tests.conformance.table import row
from tests.lab.allocation import Addresses, Allocator
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.stray_packets import send_out_of_window
from tests.lab.udp_client import UdpClient
from tests.lab.world import Family, World

PORT, TARGET_PORT, OTHER_TARGET_PORT = 80, 5353, 5454


def endpoints(*pods: Host, target_port: int = TARGET_PORT, **conditions: bool) -> list[Object]:
    return endpoint_slices("svc-udp", pods, {"UDP": target_port}, **conditions)


def udp_service(ips: Addresses, **spec: Any) -> Object:
    return service("svc-udp", *ips, ports={"UDP": PORT}, **spec)


async def answered_by(client: UdpClient, name: str, within: float = 30.0) -> None:
    """Expect an answer of this pod; the client sends from the same port until it comes."""

    async def answers() -> None:
        answer = await client.ask()
        assert answer.host == name, f"{client} was answered by {answer}"

    await eventually(answers, within)


async def survives_a_pod_cycle(kroute: Deployment, add_pod: AddPod, node: str, client: UdpClient) -> None:
    """Expect that a client moves from a node's first pod to the one that replaces it."""
    with client:
        first = await add_pod(node, "pod-server-1", udp=TARGET_PORT)
        kroute.apply(*endpoints(first))
        await answered_by(client, first.name)
        second = await add_pod(node, "pod-server-2", udp=TARGET_PORT)
        kroute.apply(*endpoints(first, second))
        kroute.apply(*endpoints(second))
        first.node.remove_pod(first)
        await answered_by(client, second.name)


@row("conntrack 140")
async def test_conntrack_140_preserve_udp_traffic_when_server_pod_cycles_node_port(
    world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    node_port = free.node_port()
    kroute.apply(udp_service(free.cluster_ips(), node_ports={"UDP": node_port}))
    client = UdpClient(world.visitor, family.of(world.nodes[1]), node_port)
    await survives_a_pod_cycle(kroute, add_pod, "node2", client)


@row("conntrack 218")
async def test_conntrack_218_preserve_udp_traffic_when_server_pod_cycles_cluster_ip(
    world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    ips = free.cluster_ips()
    kroute.apply(udp_service(ips))
    await survives_a_pod_cycle(kroute, add_pod, "node2", UdpClient(world.visitor, family.of(ips), PORT))


@row("conntrack 297")
async def test_conntrack_297_preserve_udp_traffic_when_server_pod_cycles_internal_traffic_policy_local(
    world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    """The client's node has one pod at a time, as with a DaemonSet; between the two no pod serves there."""
    ips = free.cluster_ips()
    kroute.apply(udp_service(ips, internalTrafficPolicy="Local"))
    elsewhere = await add_pod("node3", "elsewhere", udp=TARGET_PORT)
    first = await add_pod("node1", "pod-server-1", udp=TARGET_PORT)
    with UdpClient(world.visitor, family.of(ips), PORT) as client:
        kroute.apply(*endpoints(first, elsewhere))
        await answered_by(client, first.name)
        kroute.apply(*endpoints(elsewhere))
        first.node.remove_pod(first)

        async def is_refused() -> None:
            with pytest.raises(ConnectionRefusedError):
                await client.ask()

        await eventually(is_refused)
        second = await add_pod("node1", "pod-server-2", udp=TARGET_PORT)
        kroute.apply(*endpoints(elsewhere, second))
        await answered_by(client, second.name)


@row("conntrack 391")
async def test_conntrack_391_preserve_udp_traffic_when_server_pod_cycles_client_is_host_network(
    world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    ips = free.cluster_ips()
    kroute.apply(udp_service(ips))
    await survives_a_pod_cycle(kroute, add_pod, "node2", UdpClient(world.nodes[0], family.of(ips), PORT))


@row("conntrack 481")
async def test_conntrack_481_preserve_udp_traffic_when_initial_unready_endpoints_get_ready(
    world: World, kroute: Deployment, family: Family, free: Allocator
) -> None:
    ips, pod = free.cluster_ips(), world.web[1]
    kroute.apply(udp_service(ips), *endpoints(pod, ready=False, serving=False))
    with UdpClient(world.visitor, family.of(ips), PORT) as client:

        async def is_refused() -> None:
            with pytest.raises(ConnectionRefusedError):
                await client.ask()

        await eventually(is_refused)
        kroute.apply(*endpoints(pod, ready=True, serving=True))
        await answered_by(client, pod.name)


@row("conntrack 552")
async def test_conntrack_552_drop_invalid_conntrack_entries(
    world: World, kroute: Deployment, family: Family, free: Allocator
) -> None:
    """A server on the client's node, and one on another, sends packets out of the window: they cause no reset.

    If such a packet reached the client with the pod's own address, the client would reset a connection that it does not
    know, and the server would close its own connection.
    """
    for pod in world.web[:2]:
        ips, name = free.cluster_ips(), f"boom-server-{pod.name}"
        kroute.apply(service(name, *ips), *endpoint_slices(name, [pod]))

        connection = await eventually(partial(world.visitor.connect, family.of(ips), 8080))
        answer = await connection.ask()
        assert answer.host == pod.name
        assert answer.peer == family.of(world.visitor)
        before = invalid_packets(world.nodes[0])
        for _ in range(10):
            send_out_of_window(pod, answer)
            assert (await connection.ask()).host == pod.name
        assert invalid_packets(world.nodes[0]) > before, "the connection tracker took none of them for invalid"
        await connection.close()
        kroute.delete(service(name, *ips), *endpoint_slices(name, [pod]))


@row("conntrack 673")
async def test_conntrack_673_clean_up_udp_entries_when_the_target_port_changes_node_port(
    world: World, kroute: Deployment, family: Family, free: Allocator, add_pod: AddPod
) -> None:
    node_port = free.node_port()
    pod = await add_pod("node2", "pod-server-1", udp=TARGET_PORT)
    await pod.serve(udp=OTHER_TARGET_PORT)
    kroute.apply(udp_service(free.cluster_ips(), node_ports={"UDP": node_port}), *endpoints(pod))
    with UdpClient(world.visitor, family.of(world.nodes[0]), node_port) as client:

        async def is_answered_at(target_port: int) -> None:
            assert (await client.ask()).port == target_port

        await eventually(partial(is_answered_at, TARGET_PORT))
        kroute.apply(*endpoints(pod, target_port=OTHER_TARGET_PORT))
        await eventually(partial(is_answered_at, OTHER_TARGET_PORT))


def invalid_packets(node: Node) -> int:
    """Return how many packets the node's connection tracker has counted as invalid."""
    return sum(map(int, re.findall(r"\binvalid=(\d+)", node.run("conntrack", "-S"))))
