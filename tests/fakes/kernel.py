"""One node's kernel in memory. The fake clients beside it are views of it, and refuse what the kernel refuses."""

import asyncio
import errno
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kroute.kernel.conntrack import Flow
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import SetDefinition
from kroute.kernel.ipvs.objects import (
    RealServerKey,
    RealServerState,
    SyncDaemon,
    Traffic,
    VirtualServerKey,
    VirtualServerState,
)
from kroute.kernel.net.addresses import InterfaceAddress
from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent, Overrun, RouteEvent
from kroute.kernel.net.routes import LocalRoute
from kroute.kernel.pods.pod_routes import PodRoute, Tunnel
from tests.fakes.monitor_queue import MonitorQueue
from tests.fakes.nft_tables import FakeNft

SCHEDULERS = frozenset({"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos"})


class Operation(NamedTuple):
    """A write for which there is no change object: ("create dummy", "kube-ipvs0")."""

    verb: str
    subject: str

    def __str__(self) -> str:
        return f"{self.verb} {self.subject}"


FORGETS_IPV6_SOURCES = (6, 6)
"""From this version on, a route loses its IPv6 source when that address is removed from the node."""


@dataclass
class FakeLink:
    index: int
    kind: str = "dummy"
    up: bool = True
    noarp: bool = True
    link_local: bool = False
    addresses: dict[str, InterfaceAddress] = field(default_factory=dict)
    routes: dict[str, list[LocalRoute]] = field(default_factory=lambda: defaultdict(list))
    """Routes of table local. The first one of an address wins."""
    lifetimes: dict[str, int] = field(default_factory=dict)
    """The requested seconds, 0 for an unlimited lifetime. The fake's clock never moves."""


@dataclass
class FakeSet:
    definition: SetDefinition
    elements: set[tuple[str | int, ...]] = field(default_factory=set)


class FakeTable:
    """One xtables table: its chains, including the built-in ones, with their rules as text."""

    def __init__(self, builtin_chains: tuple[str, ...]) -> None:
        self.builtin_chains = builtin_chains
        self.chains: dict[str, list[str]] = {name: [] for name in builtin_chains}


BUILTIN_CHAINS = {
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "raw": ("PREROUTING", "OUTPUT"),
}


class FakeKernel:
    """The state that the fakes share.

    `writes` are the successful changes, in order: a test may clear it and assert `kernel.writes == []`. `refuse()`
    makes chosen changes fail.
    """

    def __init__(self, *, schedulers: frozenset[str] = SCHEDULERS, ipv6: bool = True) -> None:
        self.schedulers = set(schedulers)
        self.ipv6 = ipv6
        self.links: dict[str, FakeLink] = {}
        self.virtual_servers: dict[VirtualServerKey, VirtualServerState] = {}
        self.left_out: set[VirtualServerKey] = set()
        """Virtual servers that a scan omits, as the kernel's dump may."""
        self.traffic: dict[tuple[VirtualServerKey, RealServerKey], Traffic] = {}
        """What has gone through real servers; those without traffic are not in it."""
        self.real_server_trash: dict[tuple[VirtualServerKey, RealServerKey], RealServerState] = {}
        """Deleted real servers with the connections that they had, for their return."""
        self.timeouts = (900, 120, 300)
        self.sync_daemons: dict[int, SyncDaemon] = {}
        self.flows: list[tuple[int, Flow]] = []  # each with its protocol
        self.sets: dict[str, FakeSet] = {}
        self.tables: dict[tuple[int, str], FakeTable] = {}
        self.nft = FakeNft()
        self.sysctls: dict[str, str] = {}
        self.read_only_sysctls: set[str] = set()
        self.hearing_routers: set[str] = set()
        self.missing_modules: set[str] = set()
        self.gateways: set[str] = set()
        """Next hops of routes; `routes_changed` is the news of them."""
        self.routes_changed = asyncio.Event()
        self.pod_routes: dict[str, PodRoute] = {}
        self.pod_tunnels: dict[str, Tunnel] = {}
        self.pod_ports: set[tuple[int, int]] = set()
        self.pod_rules: set[str] = set()
        self.version = (6, 1)
        self.writes: list[object] = []
        self._refusals: list[tuple[Callable[[object], bool], int]] = []
        self._monitors: list[MonitorQueue] = []
        self._next_index = 1
        self.add_link("lo", kind="loopback", noarp=False)

    # for tests: changes by somebody other than kroute

    def refuse(self, predicate: Callable[[object], bool], errno_: int) -> None:
        """Make every change for which the predicate holds fail with this errno, from now on."""
        self._refusals.append((predicate, errno_))

    def accept_all(self) -> None:
        """Undo every `refuse`."""
        self._refusals.clear()

    def add_link(self, name: str, *, kind: str = "ethernet", up: bool = True, noarp: bool = False) -> FakeLink:
        link = FakeLink(self._next_index, kind, up, noarp)
        self._next_index += 1
        self.links[name] = link
        self.emit(LinkEvent(gone=False, interface=name, ifindex=link.index, up=up))
        return link

    def delete_link(self, name: str) -> None:
        """Delete a link with its addresses and routes. Like the kernel, it sends no event for IPv4 routes."""
        link = self.links[name]
        for assigned in list(link.addresses.values()):
            self._drop_address(name, assigned)
        for address, routes in link.routes.items():
            if ":" in address:
                for route in routes:
                    self._emit_route(name, route, gone=True)
        del self.links[name]
        self.emit(LinkEvent(gone=True, interface=name, ifindex=link.index, up=False))

    def add_address(self, interface: str, address: str, prefix_length: int | None = None, *, scope: str = "") -> None:
        """Add an address to an interface, with the local route that the kernel adds for it."""
        length = prefix_length if prefix_length is not None else (128 if ":" in address else 32)
        link = self.links[interface]
        assigned = InterfaceAddress(interface, address, length, scope or "global", ifindex=link.index)
        link.addresses[address] = assigned
        self._emit_address(assigned, gone=False)
        self._add_kernel_route(interface, address)

    def delete_address(self, interface: str, address: str) -> None:
        """Delete an address and the kernel's route to it. With the last IPv4 address, all IPv4 routes are deleted."""
        self._drop_address(interface, self.links[interface].addresses[address])

    def has_address(self, address: str) -> bool:
        """Whether any interface of the node has this address."""
        return any(address in link.addresses for link in self.links.values())

    def overrun(self) -> None:
        """Have every monitor lose its queued events and get an Overrun."""
        for queue in self._monitors:
            queue.overrun(Overrun())

    def table(self, family: int, name: str) -> FakeTable:
        """A table, created on first use."""
        return self.tables.setdefault((family, name), FakeTable(BUILTIN_CHAINS[name]))

    # for the fakes

    def refusal(self, change: object) -> int | None:
        """The errno with which this change must fail, or None."""
        return next((number for predicate, number in self._refusals if predicate(change)), None)

    def operate(self, verb: str, subject: str) -> None:
        """Record a write without a change object. Raises if a test refuses it."""
        operation = Operation(verb, subject)
        if (number := self.refusal(operation)) is not None:
            raise KernelError(f"cannot {operation}: {errno.errorcode.get(number, number)}", errno=number)
        self.writes.append(operation)

    def subscribe(self, queue: MonitorQueue) -> None:
        """Deliver events to the queue from now on."""
        self._monitors.append(queue)

    def unsubscribe(self, queue: MonitorQueue) -> None:
        self._monitors.remove(queue)

    def emit(self, event: Event) -> None:
        """Send an event to every monitor."""
        for queue in self._monitors:
            queue.put(event)

    def set_route(self, interface: str, route: LocalRoute, *, position: int = 0) -> None:
        """Insert a route at a position of its address's list."""
        self.links[interface].routes[route.address].insert(position, route)
        self._emit_route(interface, route, gone=False)

    def drop_route(self, interface: str, route: LocalRoute) -> None:
        routes = self.links[interface].routes
        routes[route.address].remove(route)
        if not routes[route.address]:
            del routes[route.address]
        self._emit_route(interface, route, gone=True)

    def _add_kernel_route(self, interface: str, address: str) -> None:
        routes = self.links[interface].routes[address]
        if ":" in address:
            self.set_route(interface, LocalRoute(address, None, 0), position=0)
        else:
            self.set_route(interface, LocalRoute(address, address, 0), position=len(routes))

    def _drop_address(self, interface: str, assigned: InterfaceAddress) -> None:
        link = self.links[interface]
        del link.addresses[assigned.address]
        own = LocalRoute(assigned.address, None if ":" in assigned.address else assigned.address, 0)
        if own in link.routes.get(assigned.address, ()):
            self.drop_route(interface, own)
        self._emit_address(assigned, gone=True)
        if ":" in assigned.address and self.version >= FORGETS_IPV6_SOURCES and not self.has_address(assigned.address):
            self._forget_source(assigned.address)
        if ":" not in assigned.address and all(":" in address for address in link.addresses):
            for address in [address for address in link.routes if ":" not in address]:
                del link.routes[address]

    def _forget_source(self, address: str) -> None:
        for link in self.links.values():
            for routes in link.routes.values():
                routes[:] = [route._replace(source=None) if route.source == address else route for route in routes]

    def _emit_route(self, interface: str, route: LocalRoute, *, gone: bool) -> None:
        self.emit(RouteEvent(gone, interface, route))

    def _emit_address(self, assigned: InterfaceAddress, *, gone: bool) -> None:
        self.emit(AddressEvent(gone, assigned))
