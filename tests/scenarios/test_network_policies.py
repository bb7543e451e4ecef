"""Network policies, with packets: by the addresses of pods and by Services, on one node and between nodes."""

import asyncio
import itertools
import json
import re
import socket
import struct
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import pytest

from kroute.inspect import agent_socket
from kroute.telemetry import statistics
from tests.lab import policy_state
from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.firewall import backend
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.topology import WIRE, WIRE6
from tests.lab.world import FAMILIES, Family, World
from tests.unit.planning.policies.cluster import block, egress, ingress, namespace, pod, pods_with, policy, port

pytestmark = [pytest.mark.each_firewall, pytest.mark.feed_in_turn(1)]

HANGS_FOR = 1.0
"""Seconds without an answer after which a call is taken to hang; an answer comes within milliseconds."""
DENY = policy("deny", policyTypes=["Ingress", "Egress"])
DENY_INGRESS = policy("deny", policyTypes=["Ingress"])
NAMESPACES = namespace("shop", team="a"), namespace("elsewhere", team="b")
PORTS = {"TCP": 8080, "UDP": 5353}
HOST_PORT = 9000
FORGED_PORT = 7000


SETTINGS = "--network-policies", "--firewall", backend()
WATCHMAN = "watchman"
"""The name of a pod of each node, of their namespace and of its policy. Nothing has their addresses."""
FOLLOWED = ("198.18.255.1", "2001:db8:1::ff01"), ("198.18.255.9", "2001:db8:1::ff09")
"""The addresses of two pods of no node that the watchmen's policy lets in: by a label, and by one of a Namespace."""


class Policies:
    """Agents that enforce policies, and the objects that they get: pods and Namespaces at first.

    After every change the policy of the watchmen changes, too, and the labels of those that it names: a Pod and a
    Namespace. An API server tells of each kind by a watch of its own; a node whose tables have all three changes has
    what was before them.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._nodes = deployment.cluster.nodes
        self._turns = itertools.count(1)
        for number, name in enumerate(self._nodes, 1):
            ends = f"192.0.2.{number}", f"2001:db8::{number}"
            deployment.apply(pod(f"{WATCHMAN}-{name}", *ends, namespace=WATCHMAN, on=name))
        deployment.apply(pod("of-followed", *FOLLOWED[1], namespace="followed", on="nowhere"))

    async def start(self, *nodes: str, more: Sequence[str] = ()) -> None:
        """Start agents with these further flags on these nodes, or on all, and wait until they have written."""
        await self._deployment.start(*SETTINGS, *more, nodes=nodes)
        await self.settled()

    async def apply(self, *items: Object) -> None:
        self._deployment.apply(*items)
        await self.settled()

    async def delete(self, *items: Object) -> None:
        """Delete policies. A file that is missing counts as deleted some time later."""
        self._deployment.delete(*items)
        await self.settled()
        for name in self._deployment.agents:
            for item in items:
                await eventually(partial(has_no_group_of, self._nodes[name], item["metadata"]["name"]))

    async def settled(self) -> None:
        """Wait until all agents have written what was applied before."""
        turn = next(self._turns)
        networks = f"198.18.{turn // 256}.{turn % 256}", f"2001:db8:1::{turn:x}"
        label = {"turn": str(turn)}
        blocks = block(f"{networks[0]}/32"), block(f"{networks[1]}/128")
        peers = *blocks, pods_with(**label), {"namespaceSelector": {"matchLabels": label}}
        self._deployment.apply(
            pod("followed", *FOLLOWED[0], namespace=WATCHMAN, on="nowhere", **label),
            namespace("followed", **label),
            ingress(*peers, namespace=WATCHMAN, name=WATCHMAN),
        )
        for name in self._deployment.agents:
            await eventually(partial(has_elements, self._nodes[name], {*networks, *FOLLOWED[0], *FOLLOWED[1]}), 30)


def has_elements(node: Node, networks: set[str]) -> None:
    """Wait for these elements, and for the end of those before them: what is no longer allowed leaves sets last."""
    found = re.findall(r"(?:198\.18\.|2001:db8:1:)[\da-f.:]+", policy_state.written(node))
    assert {*found} == networks


def has_no_group_of(node: Node, policy: str) -> None:
    assert not re.search(rf'isolated by [^"]* {policy}\b', policy_state.written(node))


def described(host: Pod, namespace: str = "shop") -> Object:
    """The Pod object of a pod of the lab, with its name as a label."""
    ports = [port("web", 8080), port("dns", 5353, "UDP")]
    return pod(host.name, host.ip, host.ip6, namespace=namespace, on=host.node.name, ports=ports, app=host.name)


@pytest.fixture
def policies(world: World, deployment: Deployment) -> Policies:
    """Without policies and agents at first. web-3 is in another namespace than all other pods."""
    web = [described(one, "elsewhere" if one.name == "web-3" else "shop") for one in world.web]
    deployment.apply(*NAMESPACES, *web, described(world.visitor))
    return Policies(deployment)


async def reaches(client: Host, address: str, port: int = 8080, by: str = "http") -> None:
    await {"http": client.http, "udp": client.udp, "sctp": client.sctp}[by](address, port)


async def hangs(client: Host, address: str, port: int = 8080, by: str = "http") -> None:
    call = {"http": client.http, "udp": client.udp, "sctp": client.sctp}[by]
    with pytest.raises(TimeoutError):
        pytest.fail(f"{client.name} was answered by {(await call(address, port, timeout=HANGS_FOR)).host}")


def served(deployment: Deployment, number: int, *backends: Host, ports: dict[str, int] = PORTS) -> tuple[str, str]:
    """Make a Service with these endpoints; returns its addresses, by the order of FAMILIES."""
    addresses = f"10.254.0.{number}", f"fd00:10:254::{number}"
    name = f"service-{number}"
    deployment.apply(service(name, *addresses, ports=ports), *endpoint_slices(name, backends, ports))
    return addresses


def at(addresses: tuple[str, str], family: Family) -> str:
    return addresses[FAMILIES.index(family)]


async def test_nothing_reaches_denied_pods_nor_leaves_them_but_their_own_node_and_they_themselves_do(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, other, _ = world.web
    node1, node2 = world.cluster.node("node1"), world.cluster.node("node2")
    own, far = served(deployment, 20, web), served(deployment, 21, other)
    await policies.start()
    await policies.apply(DENY)
    for family in FAMILIES:
        calls = [hangs(client, family.of(web)) for client in (world.visitor, other, world.web[2], node2)]
        calls += [hangs(other, at(own, family)), hangs(world.visitor, at(own, family)), hangs(web, at(far, family))]
        calls += [hangs(web, family.of(other), 5353, "udp"), hangs(web, family.of(node1)), hangs(web, family.of(node2))]
        await asyncio.gather(*calls)
        await reaches(node1, family.of(web))
        await reaches(node1, at(own, family))
        await reaches(web, at(own, family))
        await reaches(web, at(own, family), 5353, "udp")
    await policies.delete(DENY)
    for family in FAMILIES:
        await reaches(other, family.of(web))
        await reaches(web, at(far, family))


async def test_pods_that_selectors_name_are_let_in_by_address_and_by_service(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, other, foreign = world.web
    addresses = served(deployment, 20, web)
    await policies.start()
    allowed: dict[str, tuple[Object, list[Host], list[Host]]] = {
        "a pod": (pods_with(app="visitor"), [world.visitor], [other, foreign]),
        "a pod of another node": (pods_with(app="web-2"), [other], [world.visitor, foreign]),
        "a namespace": ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, [foreign], [world.visitor, other]),
        "a pod of some namespaces": (
            {"namespaceSelector": {}, **pods_with(app="web-3")}, [foreign], [world.visitor, other],
        ),
    }  # fmt: skip
    for peer, within, without in allowed.values():
        await policies.apply(ingress(peer, selector={"matchLabels": {"app": "web-1"}}))
        for family in FAMILIES:
            places = family.of(web), at(addresses, family)
            await asyncio.gather(*(hangs(client, place) for client in without for place in places))
            await asyncio.gather(*(reaches(client, place) for client in within for place in places))


async def test_a_pod_calls_what_its_policy_names_and_nothing_else(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    """Behind a Service the policy is asked for the pod and its port; so it is for an endpoint on the node itself."""
    web, other, _ = world.web
    node1 = world.cluster.node("node1")
    near, far = served(deployment, 20, web), served(deployment, 21, other)
    await node1.serve(http=HOST_PORT)
    own = served(deployment, 22, node1, ports={"TCP": HOST_PORT})
    await policies.start()
    by_visitor = {"selector": {"matchLabels": {"app": "visitor"}}}
    await policies.apply(egress(pods_with(app="web-2"), ports=[{"port": "web"}], **by_visitor))
    for family in FAMILIES:
        await asyncio.gather(
            hangs(world.visitor, family.of(web)), hangs(world.visitor, at(near, family)),
            hangs(world.visitor, family.of(other), 5353, "udp"), hangs(world.visitor, at(far, family), 5353, "udp"),
            hangs(world.visitor, family.of(node1), HOST_PORT), hangs(world.visitor, at(own, family), HOST_PORT),
        )  # fmt: skip
        await reaches(world.visitor, family.of(other))
        await reaches(world.visitor, at(far, family))
        await reaches(web, family.of(other))
    hosts = [block(f"{node1.ip}/32"), block(f"{node1.ip6}/128")]
    await policies.apply(egress(*hosts, ports=[{"port": HOST_PORT}], **by_visitor))
    for family in FAMILIES:
        await hangs(world.visitor, family.of(other))
        await reaches(world.visitor, family.of(node1), HOST_PORT)
        await reaches(world.visitor, at(own, family), HOST_PORT)
    await node1.stop_serving()


async def test_networks_have_exceptions_and_ports_have_ends_and_names(world: World, policies: Policies) -> None:
    web, _, _ = world.web
    node1, node2, node3 = world.nodes
    await policies.start("node1")
    wire = [block(WIRE, f"{node2.ip}/32"), block(WIRE6, f"{node2.ip6}/128")]
    of_web = {"selector": {"matchLabels": {"app": "web-1"}}}
    every = "http", "udp", "sctp"
    number = {"http": 8080, "udp": 5353, "sctp": 9090}
    rules: list[tuple[list[Object], tuple[str, ...]]] = [
        ([], every),
        ([{"port": 8080}], ("http",)),
        ([{"port": 8000, "endPort": 9100}, {"protocol": "SCTP", "port": 9000, "endPort": 9090}], ("http", "sctp")),
        ([{"protocol": "UDP", "port": "dns"}], ("udp",)),
        ([{"protocol": "UDP"}, {"port": "web"}], ("udp", "http")),
        ([{"protocol": "UDP", "port": 1, "endPort": 5352}], ()),
    ]
    for ports, passing in rules:
        await policies.apply(ingress(*wire, ports=ports, **of_web))
        for family in FAMILIES:
            refused = [hangs(node3, family.of(web), number[by], by) for by in every if by not in passing]
            await asyncio.gather(*refused, *(hangs(node2, family.of(web), number[by], by) for by in every))
            for by in passing:
                await reaches(node3, family.of(web), number[by], by)
            await reaches(node1, family.of(web))


async def test_large_datagrams_to_allowed_ports_pass(world: World, policies: Policies) -> None:
    """Only the first fragment has a port. On the bridge of the two pods, and on the way to another node."""
    by_visitor = {"selector": {"matchLabels": {"app": "visitor"}}}
    await policies.start()
    await policies.apply(
        ingress(pods_with(app="visitor"), ports=[{"protocol": "UDP", "port": 5353}], name="in"),
        egress({"namespaceSelector": {}}, ports=[{"protocol": "UDP", "port": 5000, "endPort": 6000}], **by_visitor),
    )
    for family in FAMILIES:
        for web in world.web[:2]:
            assert (await world.visitor.udp(family.of(web), 5353, size=5000)).host == web.name
            await hangs(world.web[2], family.of(web), 5353, "udp")


async def test_a_node_port_shows_policies_the_client_on_the_pods_own_node_and_the_node_elsewhere(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    """Masquerading comes after the policies of the node that does it, and before those of the pod's node."""
    web, client, (node1, node2, _) = world.web[0], world.cluster.client, world.nodes
    web_service = service("web", "10.254.0.20", "fd00:10:254::20", node_ports={"TCP": 30080})
    deployment.apply(web_service, *endpoint_slices("web", [web]))
    await policies.start()
    for allowed, way, other in ((client, node1, node2), (node2, node2, node1)):
        await policies.apply(ingress(block(f"{allowed.ip}/32"), block(f"{allowed.ip6}/128")))
        for family in FAMILIES:
            await hangs(client, family.of(other), 30080)
            await reaches(client, family.of(way), 30080)


async def test_a_pod_that_claims_to_be_its_node_is_not_let_in(world: World, policies: Policies) -> None:
    web, node1 = world.web[0], world.cluster.node("node1")
    await policies.start("node1")
    for family in FAMILIES:
        number = socket.AF_INET6 if family.name == "IPv6" else socket.AF_INET
        with closing(web.namespace.socket(number, socket.SOCK_DGRAM)) as server:
            server.bind((family.of(web), FORGED_PORT))
            forge(world.visitor, number, family.of(node1), family.of(web))
            await eventually(lambda server=server: server.recv(100))
            await policies.apply(DENY_INGRESS)
            forge(world.visitor, number, family.of(node1), family.of(web))
            await eventually(partial(has_dropped, node1, family.name))
            with pytest.raises(BlockingIOError):
                server.recv(100)
            await policies.delete(DENY_INGRESS)


def forge(sender: Host, family: int, source: str, destination: str) -> None:
    """Send a datagram with the address of somebody else."""
    ends = socket.inet_pton(family, source) + socket.inet_pton(family, destination)
    datagram = struct.pack("!HHHH", FORGED_PORT, FORGED_PORT, 12, 0) + b"mine"
    words = struct.unpack(f"!{len(ends + datagram) // 2}H", ends + datagram)
    total = sum(words) + 17 + len(datagram)
    checksum = ~(total + (total >> 16)) & 0xFFFF
    datagram = datagram[:6] + struct.pack("!H", checksum) + datagram[8:]
    if family == socket.AF_INET:  # the kernel adds length and checksum
        header = struct.pack("!BBHHHBBH", 0x45, 0, 0, 1, 0, 64, 17, 0)
    else:
        header = struct.pack("!IHBB", 6 << 28, len(datagram), 17, 64)
    with closing(sender.namespace.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)) as raw:
        raw.sendto(header + ends + datagram, (destination, 0))


def has_dropped(node: Node, family: str) -> None:
    assert policy_state.dropped(node, family) > 0


UNTRACKED = f"""
add table inet untracked
add chain inet untracked in {{ type filter hook prerouting priority raw; }}
add chain inet untracked out {{ type filter hook output priority raw; }}
add rule inet untracked in udp dport {HOST_PORT} notrack
add rule inet untracked out udp sport {HOST_PORT} notrack
"""


async def test_what_conntrack_does_not_track_is_judged_too(world: World, policies: Policies) -> None:
    """As queries to NodeLocal DNSCache, which is on the node."""
    node1 = world.cluster.node("node1")
    await node1.serve(udp=HOST_PORT)
    await policies.start("node1")
    node1.run("nft", "-f", "-", stdin=UNTRACKED)
    by_visitor = {"selector": {"matchLabels": {"app": "visitor"}}}
    hosts = [block(f"{node1.ip}/32"), block(f"{node1.ip6}/128")]
    for number in (HOST_PORT + 1, HOST_PORT):
        await policies.apply(egress(*hosts, ports=[{"protocol": "UDP", "port": number}], **by_visitor))
        for family in FAMILIES:
            await (reaches if number == HOST_PORT else hangs)(world.visitor, family.of(node1), HOST_PORT, "udp")
    node1.run("nft", "delete table inet untracked")
    await node1.stop_serving()


async def test_a_connection_that_was_allowed_goes_on(world: World, deployment: Deployment, policies: Policies) -> None:
    web = world.web[0]
    addresses = served(deployment, 20, web)
    await policies.start("node1")
    places = [place for family in FAMILIES for place in (family.of(web), at(addresses, family))]
    streams = [await world.visitor.open_stream(place, 8080) for place in places]
    await policies.apply(DENY)
    await hangs(world.visitor, web.ip)
    for stream in streams:
        await goes_on(stream)
        await stream.close()


async def test_a_pod_whose_labels_change_is_let_in_and_shut_out(world: World, policies: Policies) -> None:
    web = world.web[0]
    await policies.start("node1")
    await policies.apply(ingress(pods_with(team="friends"), selector={"matchLabels": {"app": "web-1"}}))
    for family in FAMILIES:
        await hangs(world.visitor, family.of(web))
    as_friend = described(world.visitor)
    as_friend["metadata"]["labels"]["team"] = "friends"
    await policies.apply(as_friend)
    for family in FAMILIES:
        await eventually(partial(reaches, world.visitor, family.of(web)))
    await policies.apply(described(world.visitor))

    async def is_shut_out() -> None:
        for family in FAMILIES:
            await hangs(world.visitor, family.of(web))

    await eventually(is_shut_out)


async def test_pods_stay_isolated_without_an_agent_and_a_new_one_writes_nothing(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, node1 = world.web[0], world.cluster.node("node1")
    await policies.start("node1")
    await policies.apply(DENY_INGRESS)
    before = policy_state.written(node1)
    await deployment.stop()
    await hangs(world.visitor, web.ip)
    await deployment.start(*SETTINGS, nodes=("node1",))
    assert (await eventually(partial(adopted, node1)))["writes"] == 0
    await hangs(world.visitor, web.ip)
    assert policy_state.written(node1) == before
    plan = await node1.kroute("plan", *SETTINGS)
    assert await plan.wait() == 0, plan.log.read_text()


@pytest.mark.legacy
@pytest.mark.nftables
async def test_pods_stay_isolated_while_one_backend_replaces_the_other(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, node1 = world.web[0], world.cluster.node("node1")
    await policies.start("node1")
    await policies.apply(DENY_INGRESS)
    with (
        closing(web.namespace.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as server,
        closing(world.visitor.namespace.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as client,
    ):
        server.bind((web.ip6, FORGED_PORT))
        sending = asyncio.create_task(send_again_and_again(client, (web.ip6, FORGED_PORT)))
        for name in ("nftables", "iptables"):
            await deployment.stop()
            await deployment.start("--network-policies", "--firewall", name, nodes=("node1",))
            await eventually(partial(has_policies_of, node1, name), within=30)
        sending.cancel()
        with pytest.raises(BlockingIOError):
            server.recv(100)


async def send_again_and_again(client: socket.socket, destination: tuple[str, int]) -> None:
    while True:
        client.sendto(b"?", destination)
        await asyncio.sleep(0.01)


def has_policies_of(node: Node, name: str) -> None:
    """Wait until this backend enforces policies, and the other does not."""
    tables = "kroute-policies" in node.run("nft", "list", "tables")
    sets = "KROUTENP-" in node.run("ipset", "list", "-name")
    assert (tables, sets) == (name == "nftables", name == "iptables")


async def adopted(node: Node) -> Object:
    """The statistics of the agent's controller of policies, once it has compared the tables with its plan."""
    answer = json.loads(await agent_socket.ask(node.state_dir, statistics.QUESTION))
    found: Object = answer["controllers"]["network_policy"]
    assert found["resyncs"] == 1
    return found


async def test_an_agent_without_the_setting_opens_what_an_earlier_one_has_isolated(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, node1 = world.web[0], world.cluster.node("node1")
    await policies.start("node1")
    await policies.apply(DENY_INGRESS)
    await deployment.stop()
    await hangs(world.visitor, web.ip)
    await deployment.start("--firewall", backend(), nodes=("node1",))
    await eventually(partial(has_no_policies, node1))
    for family in FAMILIES:
        await reaches(world.visitor, family.of(web))


async def test_cleanup_opens_what_an_agent_that_was_killed_has_isolated(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, node1 = world.web[0], world.cluster.node("node1")
    before = node1.snapshot()
    await policies.start("node1")
    await policies.apply(DENY_INGRESS)
    assert await deployment.agents.pop("node1").kill() == -9
    await hangs(world.visitor, web.ip)
    await deployment.cleanup()
    has_no_policies(node1)
    for family in FAMILIES:
        await reaches(world.visitor, family.of(web))
    assert not before.diff(node1.snapshot())


def has_no_policies(node: Node) -> None:
    assert policy_state.written(node) == ""
