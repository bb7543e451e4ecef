"""node1 with VIPs, sets, rules and virtual servers that tests write by hand, without kroute; and its clients."""

import itertools
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple, Self

import pytest

from kroute.firewall.backend import firewall_of, settled_on
from kroute.firewall.iptables.rules import filter_rules, masquerade_rules
from kroute.firewall.protocol import Firewall
from kroute.kernel.iptables.xtables import TableRules
from kroute.kernel.node_kernel import NodeKernel
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, SetEntry
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings
from tests.lab.cluster import Cluster, Node, Pod
from tests.lab.deployment import eventually
from tests.lab.firewall import backend
from tests.lab.hosts import Host
from tests.lab.servers import Answer
from tests.lab.stray_packets import segment
from tests.lab.topology import NODES, POD_RANGE, POD_RANGE6

SSH, HTTP, NODE_PORT = 22, 80, 30080
TCP, UDP = 6, 17
SYN, RST = 0x02, 0x04
VIPS = {Family.IPV4: "10.254.0.10", Family.IPV6: "fd00:10:254::10"}
TOOLS = {Family.IPV4: "iptables-legacy", Family.IPV6: "ip6tables-legacy"}
AT_ONCE = 0.9
"""Seconds. A client whose SYN is dropped sends it again after 1 s."""
ATTEMPTS = 5
"""How often a call may take longer before it counts as unanswered: the machine may stall in any of them."""

LOCAL_MODES: dict[str, dict[str, object]] = {
    "ClusterCIDR": {"cluster_cidrs": (POD_RANGE, POD_RANGE6)},
    "NodeCIDR": {},
    "BridgeInterface": {"pod_bridge_interface": "cbr0"},
    "InterfaceNamePrefix": {"pod_interface_name_prefix": "cb"},
}
SETTINGS = [Settings("node1", detect_local_mode=mode, **values) for mode, values in LOCAL_MODES.items()]


class Place(NamedTuple):
    """node1 has a VIP of each family, a pod, and servers at port 22 of all its addresses; web is a pod of node2."""

    cluster: Cluster
    node: Node
    pod: Pod
    web: Pod

    @property
    def client(self) -> Host:
        """A client outside, which reaches the VIPs through node1."""
        return self.cluster.client

    @property
    def everybody(self) -> tuple[Host, ...]:
        """A pod, a client outside, and a process of the node itself."""
        return self.pod, self.client, self.node


class Kernel:
    """What the firewall backend in use writes into node1. `clients` are open in its namespace."""

    def __init__(self, node: Node, clients: NodeKernel) -> None:
        self.node = node
        self.clients = clients
        self._sets = self._firewall(SETTINGS[0])

    async def make_sets(self) -> None:
        """Make the sets, which are empty then."""
        await self._sets.ensure_sets()

    async def write_rules(self, settings: Settings = SETTINGS[0], **facts: str) -> None:
        """Write the rules, and the set of pod networks."""
        for network in settings.cluster_cidrs or NODES["node1"].pod_networks:
            await self.put(AddressSet.POD_NETWORK, network)
        firewall = self._firewall(settings)
        assert await firewall.ensure_sets() == []
        with self.node.namespace.inside():  # for the iptables tools; nothing else runs now
            await firewall.ensure_rules(_facts(**facts))

    def legacy_rules(self, settings: Settings, family: Family) -> list[TableRules]:
        """Return the rules of both legacy tables."""
        nat = masquerade_rules(settings, family, _facts())
        return [nat, filter_rules(settings, family)]

    async def put(self, which: AddressSet, *element: str | int) -> None:
        """Add an entry to the set of its family."""
        assert await self._sets.change_elements({SetEntry(which, element): True}) == {}

    async def remove(self) -> None:
        """Remove the rules and sets."""
        report = CleanupReport()
        with self.node.namespace.inside():
            await self._sets.remove(report)
        assert report.failed == []

    def _firewall(self, settings: Settings) -> Firewall:
        return firewall_of(settled_on(settings, backend()), self.clients)

    async def put_port(self, which: AddressSet, address: str, port: int) -> None:
        """Add a TCP and a UDP port to a set."""
        for protocol in (TCP, UDP):
            await self.put(which, address, protocol, port)

    def serve(self, address: str, port: int, real_server: str) -> None:
        """Create TCP and UDP virtual servers with one real server at port 8080."""
        where, to = (f"[{it}]" if ":" in it else it for it in (address, real_server))
        lines = [(f"-A -{it} {where}:{port} -s rr", f"-a -{it} {where}:{port} -r {to}:8080 -m") for it in "tu"]
        self.node.run("ipvsadm", "-R", stdin="\n".join(line for pair in lines for line in pair))


class Segments:
    """Sends single TCP segments from a host to a VIP, and sees which of them arrive, and which are answered by a reset.

    For the length of a `with`. The numbers that `send` returns tell the segments apart: 256 times the number is the
    sequence number, whatever becomes of addresses and ports. `sources` are those that the real server has seen.
    """

    _next = itertools.count(20_000)
    """The number of a segment, which is its source port too: no two segments are of one connection."""

    def __init__(self, place: Place, host: Host, vip: str, family: Family) -> None:
        self.sources: set[str] = set()
        self._ends = of(host, family), vip
        self._opened = ExitStack()
        self._host, self._web, self._node = (
            self._opened.enter_context(it.namespace.socket(family.number, socket.SOCK_RAW, socket.IPPROTO_TCP))
            for it in (host, place.web, place.node)
        )
        self._host.bind((of(host, family), 0))
        self._arrived: set[float] = set()
        self._reset: set[int] = set()
        self._answered: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def send(self, port: int, flags: int) -> int:
        number = next(self._next)
        source, vip = self._ends
        with suppress(PermissionError):  # dropped on the way out
            self._host.sendto(segment(((source, number), (vip, port)), flags, sequence_number=number << 8), (vip, 0))
        return number

    async def settle(self, port: int) -> None:
        """Wait until one more segment has been answered, which a server behind this port does."""
        last = self.send(port, SYN)

        def is_answered() -> None:
            self._look()
            assert last in self._answered

        await eventually(is_answered)

    def fate_of(self, number: int) -> str:
        if number in self._arrived:
            return "passed"
        return "refused" if number in self._reset else "dropped"

    def _look(self) -> None:
        for it in _received(self._host):
            if it.source == self._ends[1]:
                (self._reset if it.flags & RST else self._answered).add(it.to_port)
        for it in _received(self._web):
            self._arrived.add(it.sequence_number / 256)
            self.sources.add(it.source)
        self._arrived.update(it.from_port for it in _received(self._node) if it.from_port == it.sequence_number / 256)


class _Segment(NamedTuple):
    source: str
    from_port: int
    to_port: int
    sequence_number: int
    flags: int


def _received(raw: socket.socket) -> Iterator[_Segment]:
    """The segments that have arrived."""
    with suppress(BlockingIOError):
        while True:
            packet, (source, *_) = raw.recvfrom(2048)
            start = (packet[0] & 0xF) * 4 if raw.family == socket.AF_INET else 0  # a raw socket of IPv6 has no header
            yield _Segment(source, *struct.unpack_from("!HHI", packet, start), packet[start + 13])


def of(host: Host, family: Family) -> str:
    return host.ip if family is Family.IPV4 else host.ip6


async def is_refused(host: Host, address: str, port: int) -> None:
    for ask in (host.http, host.udp):
        with pytest.raises(ConnectionRefusedError):
            await at_once(ask, address, port)


async def at_once(ask: Callable[..., Awaitable[Answer]], address: str, port: int) -> Answer:
    """Make a call that does not wait for a second SYN. Raises TimeoutError if it would have to each time."""
    for _ in range(ATTEMPTS - 1):
        with suppress(TimeoutError):
            return await ask(address, port, timeout=AT_ONCE)
    return await ask(address, port, timeout=AT_ONCE)


async def answers(host: Host, address: str, port: int) -> set[str]:
    """Return the addresses under which the server has seen the host."""
    return {(await ask(address, port)).peer for ask in (host.http, host.udp)}


def _facts(**facts: str) -> NodeFacts:
    """node1 has its own pod networks."""
    return NodeFacts("node1", pod_cidrs=NODES["node1"].pod_networks, **facts)
