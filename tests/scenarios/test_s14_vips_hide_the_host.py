"""S14: a process that listens on all addresses of a node is not reached through the addresses of Services.

On node1 a server answers at port 22, TCP and UDP, on every address. The callers are a client outside, another node, a
pod, and node1's own processes. Only node1 runs kroute, so the others' packets reach it over the wire.
"""

import itertools
from collections.abc import AsyncIterator
from functools import partial

import pytest

from kroute.model.plan import AddressSet
from tests.lab.allocation import Addresses
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.firewall_state import add_entries, description, entries, flush_sets
from tests.lab.hosts import PINGS_END_WITHIN, Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import FAMILIES, Family, World
from tests.scenarios.refusals import is_refused, unlimited_errors

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
OTHER_CLUSTER_IPS = tuple(family.other_service_ip for family in FAMILIES)
EXTERNAL = Addresses("203.0.113.10", "2001:db8::10")
SSH = 22
PORTS = {"TCP": 8080, "UDP": 5353}
NODE_PORTS = {"TCP": 30080, "UDP": 30053}
RESYNC_PERIOD = 5.0


def web() -> Object:
    return service("web", *CLUSTER_IPS, ports=PORTS, node_ports=NODE_PORTS, externalIPs=list(EXTERNAL))


def vips(family: Family) -> tuple[str, str]:
    return family.service_ip, family.of(EXTERNAL)


@pytest.fixture
async def node1(world: World) -> AsyncIterator[Node]:
    """node1 with its listener; the callers elsewhere reach the VIPs through it."""
    node = world.cluster.node("node1")
    routes = [
        f"{vip} via {family.of(node)}\n" for family in FAMILIES for vip in (*vips(family), family.other_service_ip)
    ]
    outside = (world.cluster.client, world.cluster.node("node2"))
    await node.serve(http=SSH, udp=SSH)
    for host in outside:
        host.namespace.ip("".join(f"route add {route}" for route in routes))
    with unlimited_errors(world.nodes):
        yield node
    for host in outside:
        host.namespace.ip("".join(f"route del {route}" for route in routes))
    await node.stop_serving()


@pytest.fixture
def callers(world: World, node1: Node) -> tuple[Host, ...]:
    """Return one caller of each kind."""
    return world.cluster.client, world.cluster.node("node2"), world.visitor, node1


async def is_reached(caller: Host, address: str) -> None:
    """Expect an answer of the node's own listener, over TCP and UDP."""
    for answer in (await caller.http(address, SSH), await caller.udp(address, SSH)):
        assert answer.host == "node1"


async def is_hidden(callers: tuple[Host, ...]) -> None:
    """Expect that no caller reaches the listener through a VIP."""
    for caller, family in itertools.product(callers, FAMILIES):
        for vip in vips(family):
            await is_refused(caller, vip, SSH, SSH)


async def node_is_there(callers: tuple[Host, ...]) -> None:
    """Expect that every caller reaches the listener by the node's own addresses."""
    for caller, family in itertools.product(callers, FAMILIES):
        await is_reached(caller, family.of(callers[-1]))


async def test_s14_a_vip_answers_on_its_services_ports_and_to_ping_only(
    world: World, node1: Node, callers: tuple[Host, ...], deployment: Deployment
) -> None:
    """Without the filter all would reach the listener; with a filter that drops, they would get no answer."""
    deployment.apply(web(), *endpoint_slices("web", world.web, PORTS))
    await deployment.start(f"--cluster-cidr={POD_RANGE},{POD_RANGE6}", nodes=("node1",))
    await is_hidden(callers)
    await node_is_there(callers)
    for caller, family in itertools.product(callers, FAMILIES):
        for vip in vips(family):
            caller.run("busybox", "ping", "-c", "1", "-W", PINGS_END_WITHIN, vip)
            assert (await caller.http(vip, 8080)).host.startswith("web-")
            assert (await caller.udp(vip, 5353)).host.startswith("web-")


async def test_s14_a_connection_that_stands_is_not_cut_when_an_address_becomes_a_vip(
    world: World, node1: Node, callers: tuple[Host, ...], deployment: Deployment
) -> None:
    """A filter that looked at every packet would reset these connections."""
    deployment.apply(service("other", *OTHER_CLUSTER_IPS), *endpoint_slices("other", world.web))
    await deployment.start(nodes=("node1",))
    for vip in CLUSTER_IPS:
        node1.run("ip", "address", "add", vip, "dev", "kube-ipvs0")
    connections = [await caller.connect(vip, SSH) for caller in callers for vip in CLUSTER_IPS]
    deployment.apply(web(), *endpoint_slices("web", world.web, PORTS))
    await eventually(partial(is_hidden, callers))
    for connection in connections:
        assert (await connection.ask()).host == "node1"
        await connection.close()


async def test_s14_a_connection_that_stands_is_not_cut_when_the_first_rules_come(
    node1: Node, callers: tuple[Host, ...], deployment: Deployment, world: World
) -> None:
    """Conntrack may start together with the rules: it then sees the connection only from its middle."""
    node1.namespace.ip("link add kube-ipvs0 type dummy\nlink set kube-ipvs0 up\n")
    for vip in CLUSTER_IPS:
        node1.run("ip", "address", "add", vip, "dev", "kube-ipvs0")
    connections = [await caller.connect(vip, SSH) for caller in callers for vip in CLUSTER_IPS]
    deployment.apply(web(), *endpoint_slices("web", world.web, PORTS))
    await deployment.start(nodes=("node1",))
    await is_hidden(callers)
    for connection in connections:
        assert (await connection.ask()).host == "node1"
        await connection.close()


async def test_s14_no_loss_of_sets_cuts_the_node_off(
    world: World, node1: Node, callers: tuple[Host, ...], deployment: Deployment
) -> None:
    """cloudnativelabs/kube-router#1924: a proxy that drops what is in no set cuts the node off when a set is empty."""
    deployment.apply(web(), *endpoint_slices("web", world.web, PORTS))
    await deployment.start(nodes=("node1",))
    before, saved = description(node1), entries(node1)
    connections = [await world.cluster.client.connect(family.of(node1), SSH) for family in FAMILIES]
    for which in AddressSet:
        flush_sets(node1, which)
        await node_is_there(callers)
        add_entries(node1, saved)
    flush_sets(node1)
    await node_is_there(callers)

    def is_as_before() -> None:
        assert description(node1) == before

    await eventually(is_as_before, RESYNC_PERIOD)
    await is_hidden(callers)
    for connection in connections:
        assert (await connection.ask()).host == "node1"
        await connection.close()


async def test_s14_a_restart_in_between_makes_it_as_it_was(
    world: World, node1: Node, callers: tuple[Host, ...], deployment: Deployment
) -> None:
    """If a start trusted the sets that it finds, everybody could reach the listener."""
    deployment.apply(web(), *endpoint_slices("web", world.web, PORTS))
    await deployment.start(nodes=("node1",))
    before = description(node1)
    await deployment.agents["node1"].kill()
    await is_hidden(callers)
    flush_sets(node1)
    await node_is_there(callers)
    await deployment.start(nodes=("node1",))
    assert description(node1) == before
    await is_hidden(callers)
    await node_is_there(callers)


async def test_s14_a_port_without_endpoints_is_refused_at_once(
    world: World, node1: Node, callers: tuple[Host, ...], deployment: Deployment
) -> None:
    """IPVS alone refuses IPv6 clients only at their second SYN, and a listener of the host would answer the rest."""
    deployment.apply(
        service("web", *CLUSTER_IPS, ports={"TCP": SSH, "UDP": SSH}, node_ports=NODE_PORTS, externalIPs=list(EXTERNAL)),
        *endpoint_slices("web", (), PORTS),
    )
    await deployment.start(nodes=("node1",))
    await is_hidden(callers)
    for caller, family in itertools.product(callers, FAMILIES):
        await is_refused(caller, family.of(node1), NODE_PORTS["TCP"], NODE_PORTS["UDP"])
    await node_is_there(callers)
    deployment.apply(*endpoint_slices("web", world.web[:1], PORTS))

    async def somebody_answers() -> None:
        for caller, vip in itertools.product(callers, CLUSTER_IPS):
            assert (await caller.http(vip, SSH)).host == "web-1"

    await eventually(somebody_answers)


async def test_s14_a_node_port_without_endpoints_is_refused_where_a_process_of_the_node_listens(
    node1: Node, callers: tuple[Host, ...], deployment: Deployment, world: World
) -> None:
    """There is no virtual server, and no VIP: without the rule of the set NO-ENDPOINT the process would answer."""
    number = NODE_PORTS["TCP"]
    await node1.serve(http=number, udp=number)
    web = service("web", *CLUSTER_IPS, ports=PORTS, node_ports=dict.fromkeys(PORTS, number))
    deployment.apply(web, *endpoint_slices("web", (), PORTS))
    await deployment.start(nodes=("node1",))

    for caller, family in itertools.product(callers, FAMILIES):
        await is_refused(caller, family.of(node1), number, number)
    deployment.apply(*endpoint_slices("web", world.web[:1], PORTS))

    async def the_pod_answers() -> None:
        for caller, family in itertools.product(callers, FAMILIES):
            for answer in (await caller.http(family.of(node1), number), await caller.udp(family.of(node1), number)):
                assert answer.host == "web-1"

    await eventually(the_pod_answers)


async def test_s14_while_its_last_endpoint_drains_a_port_is_refused_and_the_connection_goes_on(
    world: World, node1: Node, callers: tuple[Host, ...], deployment: Deployment
) -> None:
    """The virtual server still exists. It takes the packets of node1's own processes before any rule, and over IPv6
    refuses them at the second SYN. The rules refuse all other callers at once."""
    deployment.apply(web(), *endpoint_slices("web", world.web[:1], PORTS))
    await deployment.start(nodes=("node1",))
    streams = [await world.visitor.open_stream(vip, 8080) for vip in CLUSTER_IPS]
    deployment.apply(*endpoint_slices("web", (), PORTS))

    async def all_others_are_refused() -> None:
        for caller, vip in itertools.product(callers[:-1], CLUSTER_IPS):
            await is_refused(caller, vip, 8080, 5353)

    await eventually(all_others_are_refused)
    for vip, stream in zip(CLUSTER_IPS, streams, strict=True):
        with pytest.raises(ConnectionRefusedError):
            await node1.http(vip, 8080)
        await goes_on(stream)
        await stream.close()
