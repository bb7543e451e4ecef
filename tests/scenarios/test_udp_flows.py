"""UDP flows have no end: entries that lead to an endpoint which no longer serves are deleted at once, and no others.

Those to one that terminates and still serves are deleted after seconds.

IPVS ends its own flows to a deleted real server (kroute sets `expire_nodest_conn`), so most tests here show that and
kroute together. Entries that are not of IPVS are kroute's alone: those of another proxy
(`test_flows_that_another_proxy_has_begun_…`), and those from before the Service (`test_clients_that_were_there_…`).

The clients keep their sockets, so the kernel sees one flow for as long as a client sends.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from kroute.settings import DEFAULTS
from tests.lab.allocation import Addresses
from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment, eventually
from tests.lab.firewall import tool
from tests.lab.flows import End, Flow, conntrack, ipvs_connections, long_tracked_udp
from tests.lab.hosts import Host
from tests.lab.objects import Endpoint, Object, endpoint_slices, service
from tests.lab.udp_client import UdpClient
from tests.lab.world import FAMILIES, Family, World, routed

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
OTHER_CLUSTER_IPS = tuple(family.other_service_ip for family in FAMILIES)
EXTERNAL = Addresses("203.0.113.20", "2001:db8::20")
PORT, NODE_PORT, TARGET_PORT, OTHER_TARGET_PORT = 53, 30053, 5353, 5454
FLAGS = ("--cluster-cidr", "172.20.0.0/16,fd00:172:20::/48")


def dns() -> Object:
    node_ports = {"UDP": NODE_PORT}
    return service("dns", *CLUSTER_IPS, ports={"UDP": PORT}, node_ports=node_ports, externalIPs=list(EXTERNAL))


def endpoints(*pods: Host, target_port: int = TARGET_PORT, of: str = "dns") -> list[Object]:
    return endpoint_slices(of, pods, {"UDP": target_port})


def frontends(world: World, family: Family) -> tuple[End, ...]:
    """Return the Service's ClusterIP, node port and external IP, as callers on node1 use them."""
    node1 = family.of(world.nodes[0])
    return End(family.service_ip, PORT), End(node1, NODE_PORT), End(family.of(EXTERNAL), PORT)


@pytest.fixture(autouse=True)
def _tracked(world: World) -> Iterator[None]:
    """An entry of node1 ends when kroute or IPVS ends it, and at no other time."""
    with long_tracked_udp(world.nodes[0].namespace):
        yield


@pytest.fixture
def clients(world: World, family: Family) -> Iterator[list[UdpClient]]:
    """A pod, its node, and a client outside, each with one socket for each of the Service's addresses."""
    asked = frontends(world, family)
    cluster_ip, node_port, external_ip = (end.address for end in asked)
    hosts = (world.visitor, world.nodes[0], world.cluster.client)
    with ExitStack() as stack:
        for address in (cluster_ip, external_ip):
            stack.enter_context(routed(world.cluster.client, address, node_port))
        yield [stack.enter_context(UdpClient(host, *end)) for host in hosts for end in asked]


@pytest.fixture
async def other_port(world: World) -> AsyncIterator[Pod]:
    """A pod that answers at a second port as well."""
    pod = await world.nodes[1].pod("two-ports", udp=TARGET_PORT)
    await pod.serve(udp=OTHER_TARGET_PORT)
    yield pod
    pod.node.remove_pod(pod)


async def answered_by(clients: Iterable[UdpClient], pod: Host) -> None:
    """Expect that the pod answers each of the clients soon."""

    async def answers(client: UdpClient) -> None:
        answer = await client.ask()
        assert answer.host == pod.name, f"{client} was answered by {answer}"

    await asyncio.gather(*(eventually(partial(answers, client)) for client in clients))


async def is_not_answered(client: UdpClient) -> None:
    """Expect that a node port is refused. Of a missing route a UDP socket may hear nothing (`icmp_err_convert`)."""
    with pytest.raises(ConnectionRefusedError if client.asked.port == NODE_PORT else OSError):
        await client.ask()


@contextmanager
def translated(node: Node, asked: End, to: End, family: Family) -> Iterator[None]:
    """Have a rule of the node lead to a pod, as kube-proxy's iptables mode does, for the length of a `with`."""
    command = tool(family.name)
    rule = f"PREROUTING -d {asked.address} -p udp --dport {asked.port} -j DNAT --to-destination"
    rule += f" {family.at(to.address, to.port)}"
    node.run(command, "-t", "nat", "-A", *rule.split())
    try:
        yield
    finally:
        node.run(command, "-t", "nat", "-D", *rule.split())


def leads_to(node: Node, asked: End) -> set[End]:
    """Return the ends to which the node's entries for clients of `asked` lead."""
    tracked = {flow.answers for flow in conntrack(node.namespace) if flow.asked == asked}
    balanced = {it.real_server for it in ipvs_connections(node.namespace) if it.asked == asked}
    return tracked | balanced


async def lead_to(node: Node, asked: Iterable[End], *expected: End) -> None:
    """Expect that soon the entries for each address lead to every end in `expected` and to no other."""

    def they_do() -> None:
        assert {end: leads_to(node, end) for end in asked} == {end: set(expected) for end in asked}

    await eventually(they_do)


def flow_of(node: Node, client: UdpClient) -> Flow:
    """Return the one conntrack entry of a client's socket."""
    flows = [it for it in conntrack(node.namespace) if it.asked == client.asked and it.client.port == client.port]
    assert len(flows) == 1, f"{client}: {flows}"
    return flows[0]


async def test_clients_move_when_their_endpoint_leaves(
    world: World, deployment: Deployment, family: Family, clients: list[UdpClient]
) -> None:
    node1, (_, old, new) = world.nodes[0], world.web
    deployment.apply(dns(), *endpoints(old))
    await deployment.start(*FLAGS, nodes=("node1",))
    await answered_by(clients, old)
    await lead_to(node1, frontends(world, family), End(family.of(old), TARGET_PORT))
    deployment.apply(*endpoints(new))
    await answered_by(clients, new)
    await lead_to(node1, frontends(world, family), End(family.of(new), TARGET_PORT))


async def test_answers_of_an_endpoint_that_terminates_arrive_and_its_clients_move_while_it_still_serves(
    world: World, deployment: Deployment, family: Family, clients: list[UdpClient]
) -> None:
    node1, (_, old, new), asked = world.nodes[0], world.web, frontends(world, family)
    deployment.apply(dns(), *endpoints(old))
    await deployment.start(*FLAGS, nodes=("node1",))
    under_way = asyncio.gather(*(client.ask(b"after 1") for client in clients))

    def all_have_asked() -> None:
        begun = {it.client.port for it in ipvs_connections(node1.namespace) if it.asked in asked}
        assert begun >= {client.port for client in clients}

    await eventually(all_have_asked)
    terminating = Endpoint(old, {"ready": False, "serving": True, "terminating": True})
    deployment.apply(*endpoint_slices("dns", [terminating, new], {"UDP": TARGET_PORT}))
    assert {answer.host for answer in await under_way} == {old.name}
    await answered_by(clients, new)
    await lead_to(node1, asked, End(family.of(new), TARGET_PORT))


async def test_entries_go_with_the_endpoint_and_not_when_a_client_asks_again(
    world: World, deployment: Deployment, family: Family, clients: list[UdpClient]
) -> None:
    """A client that was silent must not find its old entry; a client that sends is refused at once.

    Until the firewall refuses, IPVS does, as it has no real server any more. It drops what the node itself sends.
    """
    node1, (_, old, _) = world.nodes[0], world.web
    deployment.apply(dns(), *endpoints(old))
    await deployment.start(*FLAGS, nodes=("node1",))
    await answered_by(clients, old)
    deployment.apply(*endpoints())
    await lead_to(node1, frontends(world, family))
    for client in clients:
        with pytest.raises(
            (ConnectionRefusedError, PermissionError) if client.host is node1 else ConnectionRefusedError
        ):
            await client.ask()


async def test_clients_move_when_the_target_port_changes(
    world: World, deployment: Deployment, family: Family, clients: list[UdpClient], other_port: Pod
) -> None:
    node1 = world.nodes[0]
    deployment.apply(dns(), *endpoints(other_port))
    await deployment.start(*FLAGS, nodes=("node1",))
    await answered_by(clients, other_port)
    await lead_to(node1, frontends(world, family), End(family.of(other_port), TARGET_PORT))
    deployment.apply(*endpoints(other_port, target_port=OTHER_TARGET_PORT))

    async def all_have_moved() -> None:
        await answered_by(clients, other_port)
        assert {flow_of(node1, client).answers.port for client in clients} == {OTHER_TARGET_PORT}

    await eventually(all_have_moved)
    await lead_to(node1, frontends(world, family), End(family.of(other_port), OTHER_TARGET_PORT))


async def test_flows_of_others_stay(world: World, deployment: Deployment, family: Family) -> None:
    """The old pod serves another Service and is called directly too, a second pod serves on, and the node has flows."""
    node1, (neighbour, old, new) = world.nodes[0], world.web
    vip, other_vip = End(family.service_ip, PORT), End(family.other_service_ip, PORT)
    pod, own = End(family.of(old), TARGET_PORT), End(family.of(node1), TARGET_PORT)
    other = service("other", *OTHER_CLUSTER_IPS, ports={"UDP": PORT})
    deployment.apply(dns(), other, *endpoints(old, new), *endpoints(old, of="other"))
    await deployment.start(*FLAGS, nodes=("node1",))
    with ExitStack() as stack:
        stack.callback(world.cluster.traffic.call, node1.stop_serving())
        await node1.serve(udp=TARGET_PORT)
        to_service = [stack.enter_context(UdpClient(world.visitor, *vip)) for _ in range(4)]
        foreign = [
            stack.enter_context(UdpClient(host, *end))
            for host, end in (
                (world.visitor, other_vip),
                (world.visitor, pod),
                (node1, pod),
                (world.cluster.client, own),
                (neighbour, own),
            )
        ]
        hosts = [(await client.ask()).host for client in (*to_service, *foreign)]
        assert set(hosts[: len(to_service)]) == {old.name, new.name}
        kept = [client for client, host in zip(to_service, hosts, strict=False) if host == new.name] + foreign
        before = [flow_of(node1, client) for client in kept]
        deployment.apply(*endpoints(new))
        await answered_by(to_service, new)
        await lead_to(node1, [vip], End(family.of(new), TARGET_PORT))
        assert [flow_of(node1, client) for client in kept] == before


async def test_flows_that_another_proxy_has_begun_last_as_long_as_their_endpoint_serves(
    world: World, deployment: Deployment, family: Family
) -> None:
    """Rules translated their first packet, so IPVS does not know them: what serves is kept, and what goes is ended."""
    node1, (_, old, new) = world.nodes[0], world.web
    vip = End(family.service_ip, PORT)
    with UdpClient(world.visitor, *vip) as client:
        with translated(node1, vip, End(family.of(old), TARGET_PORT), family):
            await answered_by([client], old)
        begun = flow_of(node1, client)
        deployment.apply(dns(), *endpoints(old, new))
        await deployment.start(*FLAGS, nodes=("node1",))
        await answered_by([client], old)
        assert flow_of(node1, client) == begun
        deployment.apply(*endpoints(new))
        await answered_by([client], new)
        assert flow_of(node1, client).answers == End(family.of(new), TARGET_PORT)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_a_restart_keeps_the_flows_to_endpoints_that_serve_and_ends_the_others(
    world: World, deployment: Deployment, family: Family, clients: list[UdpClient], *, killed: bool
) -> None:
    node1, (_, gone, stays) = world.nodes[0], world.web
    deployment.apply(dns(), *endpoints(gone, stays))
    await deployment.start(*FLAGS, nodes=("node1",))
    hosts = [(await client.ask()).host for client in clients]
    kept = [client for client, host in zip(clients, hosts, strict=True) if host == stays.name]
    assert {client.asked for client in kept} == set(frontends(world, family)), hosts
    before = {client: flow_of(node1, client) for client in clients}

    async def restart() -> None:
        agent = deployment.agents["node1"]
        await (agent.kill() if killed else agent.terminate())
        await deployment.start(*FLAGS, nodes=("node1",))

    await restart()
    assert {client: flow_of(node1, client) for client in clients} == before
    deployment.apply(*endpoints(stays))
    await restart()
    await lead_to(node1, frontends(world, family), End(family.of(stays), TARGET_PORT))
    await answered_by(clients, stays)
    assert {client: flow_of(node1, client) for client in kept} == {client: before[client] for client in kept}


async def test_clients_that_began_while_their_vip_was_away_are_served_when_it_is_back(
    world: World, deployment: Deployment, family: Family
) -> None:
    """Nothing takes such a packet on the node, which sends it on to its gateway, and remembers that."""
    node1, vip = world.nodes[0], family.service_ip
    deployment.apply(dns(), *endpoints(world.web[1]))
    await deployment.start(*FLAGS, nodes=("node1",))
    agent, elsewhere = deployment.agents["node1"], family.of(world.cluster.client)
    with UdpClient(world.visitor, vip, PORT, patience=1.0) as client, routed(node1, vip, elsewhere):
        agent.signal(signal.SIGSTOP)
        try:
            node1.run("ip", "link", "delete", DEFAULTS.dummy_interface)
            with pytest.raises((OSError, TimeoutError)):
                await client.ask()
            assert flow_of(node1, client).answers == client.asked
        finally:
            agent.signal(signal.SIGCONT)
        await answered_by([client], world.web[1])


async def test_clients_that_were_there_before_the_service_are_served(
    world: World, deployment: Deployment, clients: list[UdpClient]
) -> None:
    """The kernel knows their flows by then, and what it decided without the Service holds for the whole flow."""
    await deployment.start(*FLAGS, nodes=("node1",))
    await asyncio.gather(*map(is_not_answered, clients))
    deployment.apply(dns(), *endpoints(world.web[1]))
    await answered_by(clients, world.web[1])
