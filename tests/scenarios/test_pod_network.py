"""kroute connects pods: three nodes in two subnets, with the real plugins of CNI and packets through real tunnels.

The router between the subnets knows no pods. Where tunnels are in UDP it forwards nothing else between nodes but UDP.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab.answers import ask_json
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import Deployment, eventually
from tests.lab.feed import feed_for
from tests.lab.firewall import backend
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.pod_network import FAR, GATEWAYS, PLACES, Runtime, in_two_subnets, routes_of
from tests.lab.routers import BirdProcess
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import Family
from tests.scenarios.conftest import FAMILIES
from tests.scenarios.test_network_policies import Policies, described, hangs, reaches
from tests.unit.planning.policies.cluster import ingress, namespace, pods_with

PORT, NODE_PORT = 8080, 30080
LARGE = 20_000
"""Bytes of a request; many packets of any MTU here."""
CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
OVERLAYS = [
    ("subnet", "ipip"),
    ("full", "ipip"),
    ("subnet", "fou"),
    ("full", "fou"),
]


class Network(NamedTuple):
    """A cluster whose pods kroute connects. `flags` are those of kroute."""

    cluster: Cluster
    deployment: Deployment
    runtimes: dict[str, Runtime]
    flags: tuple[str, ...]

    async def start(self, *more: str, nodes: Iterable[str] = ()) -> None:
        for name in nodes or self.cluster.nodes:
            directory = str(self.runtimes[name].directory)
            await self.deployment.start(*self.flags, "--cni-directory", directory, *more, nodes=(name,))

    async def pods(self) -> list[Pod]:
        """A pod on each node, of the name web-NODE."""
        made = []
        for name, runtime in self.runtimes.items():
            await eventually(runtime.configuration)
            made.append(await runtime.pod(f"web-{name}", http=PORT))
        return made


@asynccontextmanager
async def network(
    scratch: Path, *flags: str, prepare: Callable[[Cluster], None] = lambda _: None
) -> AsyncIterator[Network]:
    cluster = in_two_subnets()
    try:
        prepare(cluster)
        runtimes = {name: Runtime(cluster, node, scratch / name) for name, node in cluster.nodes.items()}
        deployment = Deployment(cluster, feed_for(cluster, scratch))
        usual = "--firewall", backend(), "--pod-network", "--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}"
        yield Network(cluster, deployment, runtimes, (*usual, *flags))
    finally:
        cluster.close()


def forward_udp_alone(cluster: Cluster) -> None:
    """Have the router drop IP in IP between nodes, as the networks of some clouds do."""
    cluster.client.run("nft", "add table inet filter")
    cluster.client.run("nft", "add chain inet filter forward { type filter hook forward priority 0; }")
    cluster.client.run("nft", "add rule inet filter forward meta l4proto { 4, 41 } drop")


async def all_reach_each_other(pods: Iterable[Pod], families: Iterable[Family] = FAMILIES) -> None:
    """Each pod gets an answer of each, which sees the caller's own address; large requests too."""
    pods = list(pods)
    for caller in pods:
        for called in pods:
            for family in families:
                answer = await caller.http(family.of(called), PORT)
                assert (answer.host, answer.peer) == (called.name, family.of(caller))
                assert await caller.http_status(family.of(called), PORT, path="/" + "x" * LARGE) == 200


@pytest.mark.nftables
@pytest.mark.parametrize(("overlay", "encap"), OVERLAYS)
async def test_pods_of_all_nodes_reach_each_other_and_the_outside(tmp_path: Path, overlay: str, encap: str) -> None:
    async with network(tmp_path, "--overlay", overlay, "--overlay-encap", encap) as here:
        if encap == "fou":
            forward_udp_alone(here.cluster)
        await here.start()
        pods = await here.pods()
        await all_reach_each_other(pods)
        router = await here.cluster.client.serve(http=9000)
        for node, pod in zip(here.cluster.nodes.values(), pods, strict=True):
            for family in FAMILIES:
                answer = await pod.http(family.of(router), 9000)
                assert answer.peer == family.of(node), "what is outside sees the node's address"
                for other in pods:
                    assert (await node.http(family.of(other), PORT)).host == other.name
        tunnels = here.cluster.node("node1").run("ip", "-br", "link").count("kroute-")
        assert tunnels == 1 + (2 if overlay == "subnet" else 4), "the bridge, and a tunnel of each family for each node"


@pytest.mark.each_firewall
async def test_services_and_network_policies_reach_pods_through_tunnels(tmp_path: Path) -> None:
    async with network(tmp_path, "--network-policies") as here:
        policies = Policies(here.deployment)
        await here.start()
        pods = await here.pods()
        near, web, far = pods
        here.deployment.apply(namespace("shop"), *map(described, pods))
        here.deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", [far]))
        await policies.settled()
        await all_reach_each_other(pods)
        for family in FAMILIES:
            for caller in (near, here.cluster.node("node1")):
                assert (await eventually(partial(caller.http, family.service_ip, 8080))).host == far.name
        router = await here.cluster.client.serve(http=9000)
        for family in FAMILIES:
            assert (await near.http(family.of(router), 9000)).peer == family.of(here.cluster.node("node1"))
        await policies.apply(ingress(pods_with(app=near.name), selector={"matchLabels": {"app": far.name}}))
        for family in FAMILIES:
            await reaches(near, family.of(far))
            await hangs(web, family.of(far))
            assert (await near.http(family.service_ip, 8080)).host == far.name


@pytest.mark.each_firewall
@pytest.mark.parametrize("overlay", ["subnet", "full"])
async def test_every_nodes_port_leads_to_pods_of_every_node(tmp_path: Path, overlay: str) -> None:
    async with network(tmp_path, "--overlay", overlay) as here:
        await here.start()
        pods = await here.pods()
        await every_nodes_port_leads_to_each(pods, here)


@pytest.mark.each_firewall
async def test_pods_reach_nodes_behind_tunnels_and_services_of_what_is_in_their_network(tmp_path: Path) -> None:
    async with network(tmp_path, "--overlay", "full") as here:
        await here.start()
        pods = await here.pods()
        for node in here.cluster.nodes.values():
            await node.serve(http=PORT)
        for called in here.cluster.nodes.values():
            spec = service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT})
            here.deployment.apply(spec, *endpoint_slices("web", [called]))
            for caller in pods:
                for family in FAMILIES:
                    for node in here.cluster.nodes.values():
                        await is_answered_by(called, caller, family.of(node))
                    await is_answered_by(called, caller, family.of(called), PORT)
                    await is_answered_by(called, caller, family.service_ip, PORT)


async def every_nodes_port_leads_to_each(pods: Collection[Pod], here: Network) -> None:
    """From every pod, every node and outside, by each node's address; each pod in turn is all that the Service has."""
    spec = service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}, sessionAffinity="ClientIP")
    for called in pods:
        here.deployment.apply(spec, *endpoint_slices("web", [called]))
        for caller in (*pods, *here.cluster.nodes.values(), here.cluster.client):
            for node in here.cluster.nodes.values():
                for family in FAMILIES:
                    await is_answered_by(called, caller, family.of(node))


async def is_answered_by(called: Host, caller: Host, address: str, port: int = NODE_PORT) -> None:
    """The Service has this pod alone now; another may still answer, or nobody yet."""
    answered = ""
    for _ in range(50):
        try:
            answered = (await caller.http(address, port, timeout=15)).host
        except TimeoutError:
            raise AssertionError(f"{caller.name} gets no answer of {called.name} by {address}") from None
        except OSError:
            answered = ""
        if answered == called.name:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"{caller.name} gets answers of {answered or 'nobody'} by {address}, not of {called.name}")


@pytest.mark.nftables
async def test_a_restart_writes_nothing_and_a_cleanup_leaves_what_was_there(tmp_path: Path) -> None:
    async with network(tmp_path) as here:
        node = here.cluster.node("node1")
        node.namespace.ip("route add 10.77.0.0/24 via 192.168.123.77 proto 108 metric 5\n")
        before = node.snapshot(), sorted(routes_of(node))
        await here.start()
        pods = await here.pods()
        written = sorted(routes_of(node)), links(node), here.runtimes["node1"].configuration()
        stream = await pods[0].open_stream(pods[2].ip, PORT)
        agent = here.deployment.agents["node1"]
        assert await agent.terminate() == 0
        await here.start(nodes=["node1"])
        await asyncio.sleep(0)
        assert (sorted(routes_of(node)), links(node), here.runtimes["node1"].configuration()) == written
        await stream.close()
        node.remove_pod(pods[0])
        assert await here.deployment.agents.pop("node1").terminate() == 0
        cleanup = await node.kroute("cleanup", "--cni-directory", str(here.runtimes["node1"].directory))
        assert await cleanup.wait() == 0, cleanup.log.read_text()
        node.namespace.ip("link delete kroute-pods\n")
        assert (node.snapshot(), sorted(routes_of(node))) == before
        assert not list(here.runtimes["node1"].directory.iterdir())


def links(node: Host) -> str:
    return node.run("ip", "-br", "link")


@pytest.mark.nftables
async def test_routes_of_others_stay_and_a_hostile_node_takes_nothing(tmp_path: Path) -> None:
    async with network(tmp_path) as here:
        node1, node2 = here.cluster.node("node1"), here.cluster.node("node2")
        theirs = "172.20.104.0/24 via 192.168.123.248 dev eth0"
        node1.namespace.ip("route add 172.20.104.0/24 via 192.168.123.248\n")
        here.deployment.apply(*(hostile(number, cidr) for number, cidr in enumerate(HOSTILE)))
        await here.start()
        pods = await here.pods()
        await all_reach_each_other(pods)
        assert theirs in [route.strip() for route in routes_of(node1)]
        assert not [route for node in (node1, node2) for route in routes_of(node) if "192.168.123.66" in route]
        _, shown = await ask_json(node1, "show", "pod-routes")
        assert {(it["node"], it["way"], it["inKernel"]) for it in shown["items"]} == {
            ("node2", "direct", True),
            (FAR, "tunnel", True),
        }
        assert len([sentence for sentence in shown["problems"] if "of Node zz-hostile" in sentence]) == len(HOSTILE)
        far = here.cluster.node(FAR)
        [own] = [it for it in here.deployment.node_objects if it["metadata"]["name"] == FAR]
        here.deployment.delete(own)
        await eventually(partial(has_no_route_to, node1, "172.20.135.0/24"), within=30)
        assert far.name not in links(node1)
        node1.run("ip", "link", "set", "eth0", "down")
        node1.run("ip", "link", "set", "eth0", "up")
        await eventually(partial(has_route_to, node1, "proto 108 src"), within=30)


@pytest.mark.nftables
async def test_a_stranger_puts_nothing_into_the_pods_network_by_a_tunnel(tmp_path: Path) -> None:
    """A packet that the node at the other end sends by hand arrives; the same one of anybody else does not."""
    async with network(tmp_path) as here:
        await here.start()
        pod = (await here.pods())[0]
        with pod.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind((pod.ip, LISTENED))
            node1, far = here.cluster.node("node1"), here.cluster.node(FAR)
            for sender, word in (
                (here.cluster.client, b"stranger"),
                (here.cluster.node("node2"), b"neighbour"),
                (far, b"far"),
            ):
                with sender.namespace.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IPIP) as tunnel:
                    tunnel.sendto(datagram("172.20.135.77", pod.ip, LISTENED, word), (node1.ip, 0))

            def received() -> bytes:
                try:
                    return listener.recv(100)
                except BlockingIOError:
                    raise AssertionError("nothing yet") from None

            assert await eventually(received, within=30) == b"far", "those that were sent before have not arrived"


LISTENED = 7000


def datagram(source: str, destination: str, port: int, payload: bytes) -> bytes:
    """An IPv4 packet of UDP, without checksum of UDP."""
    udp = struct.pack("!HHHH", port, port, 8 + len(payload), 0) + payload
    ends = socket.inet_aton(source) + socket.inet_aton(destination)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0) + ends
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return header[:10] + struct.pack("!H", checksum) + header[12:] + udp


HOSTILE = "0.0.0.0/0", "172.20.0.0/16", "172.20.104.0/25", "192.168.123.0/24", "10.254.0.0/16", "::/0", "nonsense"


def hostile(number: int, cidr: str) -> Object:
    """A Node that claims what is not its own."""
    addresses = [{"type": "InternalIP", "address": it} for it in ("192.168.123.66", "fd00:192:168:123::66")]
    metadata = {"name": f"zz-hostile{number}", "creationTimestamp": "2030-01-01T00:00:00Z"}
    spec, status = {"podCIDRs": [cidr]}, {"addresses": addresses}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def has_no_route_to(node: Node, network: str) -> None:
    assert not has_any(node, network)


def has_route_to(node: Host, text: str) -> None:
    assert has_any(node, text)


def has_any(node: Host, text: str) -> bool:
    return any(text in route for route in routes_of(node))


def learning_router(cluster: Cluster) -> str:
    """The configuration of a router between both subnets that learns what its neighbours announce."""
    sessions = "\n".join(
        f"protocol bgp {name} {{ local {own_end(name)} as 65000; neighbor {node.ip} as 64512; connect delay time 1;\n"
        "  ipv4 { import all; export none; }; ipv6 { import all; export none; }; }"
        for name, node in cluster.nodes.items()
    )
    kernel = "\n".join(f"protocol kernel kernel{it} {{ ipv{it} {{ export all; }}; }}" for it in (4, 6))
    return f"log stderr all;\nrouter id {GATEWAYS[0]};\nprotocol device {{ }}\n{kernel}\n{sessions}\n"


def own_end(node: str) -> str:
    """The router's address in the subnet of a node."""
    return GATEWAYS[1] if node == FAR else GATEWAYS[0]


@pytest.mark.nftables
async def test_routers_that_learn_pods_networks_connect_subnets_without_tunnels(tmp_path: Path) -> None:
    async with network(tmp_path, "--overlay", "off", "--announce", "--advertise-pod-cidr") as here:
        running = [BirdProcess.router(here.cluster.client, tmp_path / "router", learning_router(here.cluster))]
        try:
            for name, node in here.cluster.nodes.items():
                directory = tmp_path / f"bird-{name}"
                directory.mkdir()
                flags = "--peer-router-ips", own_end(name), "--peer-router-asns", "65000"
                await here.start(*flags, "--bird-directory", str(directory), nodes=[name])
                await eventually((directory / "kroute.conf").stat)
                running.append(BirdProcess(node, directory, directory / "kroute.conf"))
                running[-1].start()
            for place in PLACES.values():
                for pods in place.pod_networks:
                    await eventually(partial(has_route_to, here.cluster.client, f"{pods} via"), within=60)
            await all_reach_each_other(await here.pods())
            assert all(links(node).count("kroute-") == 1 for node in here.cluster.nodes.values()), "the bridge alone"
        finally:
            for process in running:
                process.kill()
