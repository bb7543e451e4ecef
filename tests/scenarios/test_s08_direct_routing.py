"""S8 and S9: nodes behind an LVS director that owns an external IP serve it, and answer the client directly.

The director forwards frames unchanged (direct routing), so every node behind it has the address too. Only the director
answers ARP for it; a node that did so would take the director's clients.
"""

import contextlib
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.topology import Place
from tests.lab.world import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
CALLS = 6
ETH_P_ALL = 3


@dataclass(frozen=True)
class Vip:
    """The external IP, in both families."""

    ip: str = "192.168.123.201"
    ip6: str = "fd00:192:168:123::201"


VIP = Vip()


@pytest.fixture(scope="module")
def director(world: World) -> Iterator[Host]:
    """A machine on the nodes' wire that has the external IP and forwards to node2 and node3."""
    host = world.cluster.host("director", Place(60))
    backends = [world.cluster.node(name) for name in ("node2", "node3")]
    for family in FAMILIES:
        virtual = family.at(family.of(VIP), 80)
        length = 128 if family.name == "IPv6" else 32
        host.run("ip", "address", "add", f"{family.of(VIP)}/{length}", "dev", "eth0")
        host.run("ipvsadm", "-A", "-t", virtual, "-s", "rr")
        for backend in backends:
            host.run("ipvsadm", "-a", "-t", virtual, "-r", family.at(family.of(backend), 80), "-g")
    host.sysctl("net.ipv4.ip_forward", 1)
    host.sysctl("net.ipv6.conf.all.forwarding", 1)
    yield host
    world.cluster.remove_host(host)


@pytest.fixture(params=[0, 1], ids=["rp_filter 0", "rp_filter 1"])
def rp_filter(world: World, request: pytest.FixtureRequest) -> Iterator[int]:
    """Set each node's reverse path filter: off, and strict, as distributions set it."""
    for node in world.nodes:
        node.sysctl("net.ipv4.conf.all.rp_filter", request.param)
    yield request.param
    for node in world.nodes:
        node.sysctl("net.ipv4.conf.all.rp_filter", 0)


def objects(world: World, policy: str) -> list[Object]:
    external = [VIP.ip, VIP.ip6]
    web = service("web", *CLUSTER_IPS, ports={"TCP": 80}, externalIPs=external, externalTrafficPolicy=policy)
    return [web, *endpoint_slices("web", world.web)]


def mac_of(host: Host) -> str:
    return re.findall(r"link/ether (\S+)", host.run("ip", "link", "show", "dev", "eth0"))[0]


@contextlib.contextmanager
def overheard(host: Host) -> Iterator[list[bytes]]:
    """Yield a list that has every frame that reached the host's eth0, once the block has ended."""
    frames: list[bytes] = []
    with host.namespace.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as ear:
        ear.bind(("eth0", ETH_P_ALL))
        yield frames
        with contextlib.suppress(BlockingIOError):
            while True:
                frames.append(ear.recv(65535))


def sources(frames: list[bytes], family: Family) -> list[str]:
    """Return the sources of this family's TCP packets. Others do not count: neighbour discovery uses the VIP, too."""
    if family.name == "IPv4":
        tcp = [it for it in frames if it[:1] == b"\x45" and it[9] == socket.IPPROTO_TCP]
        return [socket.inet_ntop(socket.AF_INET, it[12:16]) for it in tcp]
    tcp = [it for it in frames if len(it) >= 40 and it[0] >> 4 == 6 and it[6] == socket.IPPROTO_TCP]
    return [socket.inet_ntop(socket.AF_INET6, it[8:24]) for it in tcp]


@pytest.mark.usefixtures("rp_filter")
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
async def test_s8_nodes_behind_a_director_serve_and_answer_the_client_directly(
    world: World, deployment: Deployment, director: Host, policy: str
) -> None:
    client = world.cluster.client
    deployment.apply(*objects(world, policy))
    await deployment.start()
    for family in FAMILIES:
        vip = family.of(VIP)
        with overheard(director) as frames:
            answers = [await client.http(vip, 80) for _ in range(CALLS)]
        by_way_of_director = sources(frames, family).count(family.of(client))
        assert by_way_of_director >= CALLS, "the client's packets come by way of the director"
        assert vip not in sources(frames, family), "an answer went through the director"
        for node in ("node2", "node3"):
            servers = world.cluster.node(node).ipvs()[f"TCP {family.at(vip, 80)}"].real_servers
            assert sum(server.active + server.inactive for server in servers.values()) >= CALLS // 2
        if policy == "Local":
            assert {(it.host, it.peer) for it in answers} == {(host, family.of(client)) for host in ("web-2", "web-3")}


async def test_s8_only_the_director_answers_for_the_address(
    world: World, deployment: Deployment, director: Host
) -> None:
    deployment.apply(*objects(world, "Cluster"))
    await deployment.start()
    client = world.cluster.client
    replies = client.run("busybox", "arping", "-c", "3", "-I", "eth0", VIP.ip)
    assert set(re.findall(r"\[([0-9a-f:]{17})\]", replies)) == {mac_of(director)}
    for _ in range(3):
        client.run("ip", "neighbour", "flush", "to", VIP.ip6, "dev", "eth0")
        await client.http(VIP.ip6, 80)
        assert mac_of(director) in client.run("ip", "neighbour", "show", "to", VIP.ip6, "dev", "eth0")


async def test_without_strict_arp_nodes_steal_the_address(world: World, deployment: Deployment, director: Host) -> None:
    deployment.apply(*objects(world, "Cluster"))
    await deployment.start("--strict-arp", "off")
    replies = world.cluster.client.run("busybox", "arping", "-c", "3", "-I", "eth0", VIP.ip)
    assert set(re.findall(r"\[([0-9a-f:]{17})\]", replies)) > {mac_of(director)}


@pytest.mark.usefixtures("rp_filter")
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
async def test_s9_a_node_reaches_the_address_without_the_director(
    world: World, deployment: Deployment, director: Host, policy: str
) -> None:
    deployment.apply(*objects(world, policy))
    await deployment.start()
    for family in FAMILIES:
        with overheard(director) as frames:
            for node in world.nodes:
                await eventually(partial(node.http, family.of(VIP), 80))
        assert not {family.of(node) for node in world.nodes} & set(sources(frames, family))
