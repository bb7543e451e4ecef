"""Services on a node whose own firewall lets in and forwards only what it knows: docker's rules, and ufw's.

IPVS sends requests by OUTPUT, so only the answers of pods are forwarded. Everything else that Services need passes
INPUT, where the firewall decides.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import NamedTuple

import pytest

from tests.lab.allocation import Addresses
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.host_firewalls import docker, restart_docker, ufw, ufw_allow
from tests.lab.hosts import PINGS_END_WITHIN, Host
from tests.lab.kube_proxy_rules import Served
from tests.lab.objects import endpoint_slices, service
from tests.lab.other_proxies import kube_proxy_leftovers, wiped
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import FAMILIES, World, routed
from tests.scenarios.test_migrate import FLAGS, migrate

pytestmark = pytest.mark.legacy

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
INGRESS = Addresses("203.0.113.40", "2001:db8::40")
PORTS = {"TCP": 80, "UDP": 53}
NODE_PORTS = {"TCP": 30080, "UDP": 30053}
TARGET_PORTS = {"TCP": 8080, "UDP": 5353}
HEALTH_CHECK = 30999
LOST = 1.5
"""Seconds. A SYN that is dropped is sent again after 1 s, and dropped again."""


class Way(NamedTuple):
    """From a caller to an address; the ports are those of PORTS, or with `is_node_port` of NODE_PORTS."""

    caller: Host
    address: str
    is_node_port: bool = False

    async def is_served_by(self, names: set[str]) -> None:
        tcp, udp = (NODE_PORTS if self.is_node_port else PORTS).values()
        answers = [await self.caller.http(self.address, tcp), await self.caller.udp(self.address, udp)]
        assert {it.host for it in answers} <= names

    async def is_dropped(self) -> None:
        tcp, udp = (NODE_PORTS if self.is_node_port else PORTS).values()
        calls = (self.caller.http(self.address, tcp, timeout=LOST), self.caller.udp(self.address, udp, timeout=LOST))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, TimeoutError) for end in ends), f"{self.address} answered: {ends}"


def ways(world: World) -> list[Way]:
    """The ways to the Service's node port and load balancer from outside, and to its ClusterIP, in both families."""
    node, client = world.nodes[0], world.cluster.client
    return [
        way
        for family in FAMILIES
        for way in (
            Way(client, family.of(node), is_node_port=True),
            Way(client, family.of(INGRESS)),
            Way(world.visitor, family.service_ip),
        )
    ]


async def all_are_served_by(ways: Iterable[Way], names: set[str]) -> None:
    for way in ways:
        await way.is_served_by(names)


async def all_are_dropped(ways: Iterable[Way]) -> None:
    """Expect it of all at once, since each takes its time."""
    async with asyncio.TaskGroup() as group:
        for way in ways:
            group.create_task(way.is_dropped())


@pytest.fixture
def node1(world: World) -> Iterator[Node]:
    """The node with the firewall; it is a client's way to the load balancer's addresses."""
    node = world.cluster.node("node1")
    with routed(world.cluster.client, INGRESS, node):
        yield node


@pytest.fixture(params=["legacy", "nft"])
def variant(request: pytest.FixtureRequest) -> str:
    """The variant of iptables that docker and kube-proxy use. A packet passes the chains of both."""
    return request.param


@pytest.fixture
def with_docker(node1: Node, variant: str) -> Iterator[Node]:
    """Request it before `deployment`, so that kroute's rules are removed before the filter table is restored."""
    with docker(node1, variant):
        yield node1


@pytest.fixture
def with_ufw(world: World, node1: Node) -> Iterator[Node]:
    """As `with_docker`. The pods of the node have just found each other: ufw forwards no neighbour discovery between
    them, and an entry that is not new would be confirmed by the kernel a few seconds after its next use, in vain.
    """
    for address in (world.visitor.ip, world.visitor.ip6):
        world.web[0].run("ip", "neighbour", "flush", "to", address)
        world.web[0].run("busybox", "ping", "-c", "1", "-W", PINGS_END_WITHIN, address)
    with ufw(node1):
        yield node1


@pytest.fixture(params=["local pod", "remote pod", "host network"])
async def endpoint(request: pytest.FixtureRequest, world: World) -> AsyncIterator[Host]:
    """The only endpoint: a pod of node1 or node3, or one in the network of node2."""
    if request.param != "host network":
        yield world.web[0 if request.param == "local pod" else 2]
        return
    node = world.cluster.node("node2")
    await node.serve(http=TARGET_PORTS["TCP"], udp=TARGET_PORTS["UDP"])
    yield node
    await node.stop_serving()


def apply_web(deployment: Deployment, *endpoints: Host, **spec: object) -> None:
    web = service("web", *CLUSTER_IPS, ports=PORTS, node_ports=NODE_PORTS, ingress=INGRESS, **spec)
    deployment.apply(web, *endpoint_slices("web", endpoints, TARGET_PORTS))


async def is_not_forwarded(world: World) -> None:
    """The firewall stands: what begins elsewhere and is no Service's is not forwarded."""
    for family in FAMILIES:
        with pytest.raises(TimeoutError):
            await world.visitor.http(family.of(world.web[1]), 8080, timeout=LOST)


@pytest.mark.drawn(3)
async def test_endpoints_answer_through_a_node_that_forwards_nothing(
    world: World, with_docker: Node, deployment: Deployment, endpoint: Host
) -> None:
    apply_web(deployment, endpoint)
    await deployment.start(nodes=("node1",))
    await is_not_forwarded(world)
    await all_are_served_by(ways(world), {endpoint.name})


@pytest.mark.drawn(2)
async def test_the_jump_is_what_lets_the_answers_pass_and_every_start_puts_it_back(
    world: World, with_docker: Node, deployment: Deployment, variant: str
) -> None:
    apply_web(deployment, world.web[2])
    await deployment.start(nodes=("node1",))
    await deployment.stop()
    for tool in ("iptables", "ip6tables"):
        with_docker.run(f"{tool}-{variant}", "-D", "FORWARD", "1")
    await all_are_dropped(ways(world))
    await deployment.start(nodes=("node1",))
    await all_are_served_by(ways(world), {"web-3"})


def jumps_of(node: Node, variant: str) -> list[str]:
    lines = node.run(f"iptables-{variant}", "-S", "FORWARD").splitlines()[1:]
    return [line.rpartition(" ")[2] for line in lines]


@pytest.mark.drawn(2)
async def test_neighbours_may_put_their_jumps_in_front_but_a_rule_that_refuses_all_is_not_left_there(
    world: World, with_docker: Node, deployment: Deployment, variant: str
) -> None:
    apply_web(deployment, world.web[2])
    await deployment.start(nodes=("node1",))
    assert "KROUTE-FORWARD" in jumps_of(with_docker, variant)
    restart_docker(with_docker, variant)
    assert jumps_of(with_docker, variant) == ["DOCKER-USER", "DOCKER-FORWARD", "KROUTE-FORWARD"]
    await all_are_served_by(ways(world), {"web-3"})
    for tool in ("iptables", "ip6tables"):
        with_docker.run(f"{tool}-{variant}", "-I", "FORWARD", "-j", "DROP")

    def is_first() -> None:
        assert jumps_of(with_docker, variant)[:2] == ["KROUTE-FORWARD", "DROP"]

    await eventually(is_first, within=20)
    await all_are_served_by(ways(world), {"web-3"})


async def test_ufw_decides_who_reaches_services_and_only_health_checks_come_in_unasked(
    world: World, with_ufw: Node, deployment: Deployment
) -> None:
    """This is kube-proxy's behaviour in IPVS mode, too: node ports and VIPs are for INPUT to let in."""
    policy = {"externalTrafficPolicy": "Local", "healthCheckNodePort": HEALTH_CHECK}
    apply_web(deployment, world.web[0], **policy)
    await deployment.start(nodes=("node1",))
    await all_are_dropped(ways(world))
    for family in FAMILIES:
        assert await world.cluster.client.http_status(family.of(with_ufw), HEALTH_CHECK) == 200
    ufw_allow(with_ufw, ["-p tcp --dport 30080", "-p udp --dport 30053", f"-s {POD_RANGE}", f"-s {POD_RANGE6}"])
    ufw_allow(with_ufw, [f"-d {it}" for it in INGRESS])
    await all_are_served_by(ways(world), {"web-1"})


@pytest.mark.drawn(4)
@pytest.mark.parametrize("endpoint", ["remote pod", "host network"], indirect=True)
async def test_a_take_over_from_kube_proxy_keeps_connections_through_a_node_that_forwards_nothing(
    world: World, with_docker: Node, deployment: Deployment, variant: str, endpoint: Host
) -> None:
    """kube-proxy's KUBE-FORWARD goes at the take-over; kroute's stands by then."""
    deployment.apply(service("web", *CLUSTER_IPS, node_ports=NODE_PORTS), *endpoint_slices("web", [endpoint]))
    served = [Served(it.service_ip, 8080, [(it.of(endpoint), 8080)], NODE_PORTS["TCP"]) for it in FAMILIES]
    with wiped(with_docker):
        kube_proxy_leftovers(with_docker, served, variant)
        try:
            callers = [(world.cluster.client, family.of(with_docker), 30080) for family in FAMILIES]
            callers += [(world.visitor, family.service_ip, 8080) for family in FAMILIES]
            streams = [await caller.open_stream(address, port) for caller, address, port in callers]
            await migrate(with_docker, "--from", "kube-proxy", "--take-over")
            await deployment.start(*FLAGS["kube-proxy"], nodes=("node1",))
            await migrate(with_docker, "--from", "kube-proxy", "--take-over")
            assert "KUBE-FORWARD" not in with_docker.run(f"iptables-{variant}-save", "-t", "filter")
            for stream in streams:
                await goes_on(stream)
            for caller, address, port in callers:
                assert (await caller.http(address, port)).host == endpoint.name
            for stream in streams:
                await stream.close()
        finally:
            await deployment.cleanup()


async def test_cleanup_leaves_the_tables_of_iptables_nft_as_they_were_and_a_restart_changes_nothing(
    world: World, node1: Node, deployment: Deployment
) -> None:
    def rules() -> list[str]:
        saved = [node1.run(f"{tool}-nft-save", "-t", "filter") for tool in ("iptables", "ip6tables")]
        return [line for text in saved for line in text.splitlines() if line.startswith("-A")]

    with docker(node1, "nft"):
        before = rules()
        apply_web(deployment, *world.web)
        await deployment.start(nodes=("node1",))
        during = rules()
        assert len(during) == len(before) + 2 * 5
        await deployment.stop()
        await deployment.start(nodes=("node1",))
        assert rules() == during
        assert "rules.written" not in "".join(
            line for line in deployment.agents["node1"].tail(1000).splitlines() if "nft filter" in line
        )
        await deployment.cleanup()
        assert rules() == before
