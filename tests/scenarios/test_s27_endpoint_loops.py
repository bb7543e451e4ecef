"""S27: endpoints that are VIPs or node ports. No packet circulates, no host port answers, others are served."""

import asyncio
from functools import partial

from tests.lab.allocation import Addresses
from tests.lab.calls import PATIENCE
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.objects import Object, Ports, endpoint_slices, service
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import FAMILIES, Family, World

PORTS = {"TCP": 8080, "UDP": 5353}
HOST_PORTS = {"TCP": 10250, "UDP": 10250}
WEB = tuple(family.service_ip for family in FAMILIES)
EXTERNAL = Addresses("203.0.113.10", "2001:db8::10")
TTL = 64
CALLS = 3
UNANSWERED = 2.5
"""Seconds after which nobody has answered a call."""
SYNS = 7
"""How often a client sends its SYN at most (tcp_syn_retries); each may pass the ring once, and so may the answer."""


class Attack:
    """A Service with a node port. Its endpoints have the same port number for TCP and UDP, or the Service's own."""

    def __init__(self, name: str, number: int, ports: Ports = PORTS) -> None:
        self.name = name
        self.ports = dict(ports)
        self.vip = Addresses(f"10.254.9.{number}", f"fd00:10:254:9::{number:x}")
        self.node_port = 30090 + number

    def to(self, ports: dict[str, int], *addresses: tuple[str, str]) -> list[Object]:
        """Return the Service, and slices with these endpoints, each in both families."""
        node_ports = dict.fromkeys(self.ports, self.node_port)
        slices = endpoint_slices(self.name, (), ports)
        for number, piece in enumerate(slices):
            piece["endpoints"] = [{"addresses": [pair[number]], "conditions": {"ready": True}} for pair in addresses]
        return [service(self.name, *self.vip, ports=self.ports, node_ports=node_ports), *slices]


def packets(nodes: tuple[Node, ...]) -> int:
    """Return how many packets the nodes have received so far, over the wire and from themselves."""
    lines = (line.split() for node in nodes for line in node.run("cat", "/proc/net/dev").splitlines())
    return sum(int(words[2]) for words in lines if words[0] in {"eth0:", "lo:"})


async def outcome(host: Host, protocol: str, address: str, port: int, seconds: float = UNANSWERED) -> str:
    """Return who answers a call; "" if nobody does."""
    ask = {"TCP": host.http, "UDP": host.udp}[protocol]
    try:
        return (await ask(address, port, timeout=seconds)).host
    except OSError:
        return ""


async def no_packet_circulates(nodes: tuple[Node, ...]) -> None:
    """Assert that for a while almost no packets come; one that circulated would for ever."""
    before = packets(nodes)
    await asyncio.sleep(2)
    assert packets(nodes) - before < TTL


def leads_to(node: Node, family: Family, attack: Attack) -> list[str]:
    """Return the real servers of the attack's virtual servers, without their ports, as the kernel has them.

    By netlink: on 6.1, /proc/net/ip_vs may leave virtual servers out beside another network namespace.
    """
    options = {"TCP": "-t", "UDP": "-u"}
    own = {f"{options[protocol]} {family.at(family.of(attack.vip), port)}" for protocol, port in attack.ports.items()}
    rules = [line.split() for line in node.namespace.run("ipvsadm", "-Sn").splitlines() if line.startswith("-a")]
    found = [(f"{rule[1]} {rule[2]}", rule[4].rpartition(":")[0].strip("[]")) for rule in rules]
    assert own <= {key for key, _ in found}
    return [real for key, real in found if key in own]


async def test_s27_endpoints_that_are_vips_or_node_ports_keep_nobody_busy(
    world: World, deployment: Deployment, family: Family
) -> None:
    """The node port alone is called on its node and on another one, so that packets pass one or two virtual servers.

    All calls to a port of an attack are made at once, since each may take its whole time.
    """
    own, one, other, ring, alone = (
        Attack(name, number) for number, name in enumerate(("own", "one", "other", "ring", "alone"), 1)
    )
    nodes = world.nodes
    both = [(node.ip, node.ip6) for node in nodes[:2]]
    deployment.apply(
        *(service("web", *WEB), *endpoint_slices("web", world.web)),
        *own.to(PORTS, own.vip),
        *one.to(PORTS, other.vip),
        *other.to(PORTS, one.vip),
        *ring.to(dict.fromkeys(PORTS, ring.node_port), *both),
        *alone.to(dict.fromkeys(PORTS, alone.node_port), both[0]),
    )
    await deployment.start(f"--cluster-cidr={POD_RANGE},{POD_RANGE6}")
    client, pod, (node1, node2, *_) = world.cluster.client, world.visitor, nodes
    assert {*leads_to(node1, family, own)} == {family.of(own.vip)}
    assert {*leads_to(node2, family, ring)} == {family.of(node1), family.of(node2)}
    assert {*leads_to(node2, family, alone)} == {family.of(node1)}
    said = {}
    for attack in (own, one, other, ring, alone):
        calls = [(caller, family.of(node), attack.node_port) for caller in (client, pod, node1) for node in nodes[:2]]
        for protocol, port in attack.ports.items():
            every = [*calls, *((it, family.of(attack.vip), port) for it in (pod, node1))] * CALLS
            before = packets(nodes)
            answers = await asyncio.gather(*(outcome(caller, protocol, *to) for caller, *to in every))
            answered = {(it[0].name, *it[1:]): who for it, who in zip(every, answers, strict=True) if who}
            said[attack.name, protocol] = (answered, (packets(nodes) - before) / len(every))
    await eventually(partial(no_packet_circulates, nodes), within=2)
    victims = await node1.spread(family.service_ip, 8080, 9)
    assert not any(answered for answered, _ in said.values()), said
    assert max(count for _, count in said.values()) < SYNS * TTL * 2, said
    assert sum(victims.values()) == 9


async def test_s27_no_port_of_a_node_answers_behind_an_endpoint_that_is_a_vip(
    world: World, deployment: Deployment, family: Family
) -> None:
    """A kubelet's port, for instance. Packets that IPVS takes in LOCAL_IN have passed the rules of INPUT before."""
    other, own, external = Attack("other", 1), Attack("own", 2, HOST_PORTS), Attack("external", 3)
    web = [service("web", *WEB, externalIPs=list(EXTERNAL)), *endpoint_slices("web", world.web)]
    deployment.apply(
        *web,
        *other.to(HOST_PORTS, (WEB[0], WEB[1])),
        *own.to(HOST_PORTS, own.vip),
        *external.to(HOST_PORTS, EXTERNAL),
    )
    await deployment.start(f"--cluster-cidr={POD_RANGE},{POD_RANGE6}")
    node1, node2 = world.nodes[:2]
    callers = (world.cluster.client, world.visitor, node1, node2)
    await node1.serve(http=HOST_PORTS["TCP"], udp=HOST_PORTS["UDP"])
    try:
        for attack, address in ((other, family.service_ip), (own, family.of(own.vip)), (external, family.of(EXTERNAL))):
            assert {*leads_to(node1, family, attack)} == {address}
        calls = {
            (attack.name, caller.name, protocol, address): outcome(caller, protocol, address, port)
            for attack in (other, own, external)
            for protocol, service_port in attack.ports.items()
            for address, port in ((family.of(attack.vip), service_port), (family.of(node1), attack.node_port))
            for caller in callers
        }
        answers = dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))
        direct = {await outcome(caller, *call, PATIENCE) for caller in callers for call in _direct(family, node1)}
        victims = await node1.spread(family.service_ip, 8080, 9)
    finally:
        await node1.stop_serving()
    assert {call for call, who in answers.items() if who} == set()
    assert direct == {node1.name}, "by the node's own address everybody reaches the port"
    assert sum(victims.values()) == 9


def _direct(family: Family, node: Node) -> list[tuple[str, str, int]]:
    return [(protocol, family.of(node), port) for protocol, port in HOST_PORTS.items()]
