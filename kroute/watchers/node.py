"""Follow this node's own addresses.

The dummy interface is left out, so VIPs are not among them. The addresses are read once, then followed by rtnetlink's
events. They are read again when the kernel has dropped events.
"""

import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog

from kroute.kernel.clients import EventSource
from kroute.kernel.net.addresses import Addresses, InterfaceAddress
from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent, Monitor, Overrun
from kroute.model.node_facts import NodeInterfaces
from kroute.settings import OTHER_VIP_INTERFACES

log = structlog.get_logger(__name__)

_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849): only the default route leads to them. Nothing is sent to them."""


class AddressSource(AbstractAsyncContextManager["AddressSource"], Protocol):
    """Reads addresses: `kroute.kernel.net.addresses.Addresses`."""

    async def of_node(self) -> list[InterfaceAddress]:
        """All addresses of all interfaces."""


Notify = Callable[[NodeInterfaces], None]
SourceTowards = Callable[[socket.AddressFamily], str | None]


class NodeWatcher:
    """Follows the addresses of every interface that carries no VIPs, and passes them on whenever they change.

    VIPs are on `except_interface`, and on the dummy interfaces of other service proxies if those exist.
    """

    def __init__(
        self,
        except_interface: str,
        notify: Notify,
        *,
        monitor: EventSource | None = None,
        addresses: AddressSource | None = None,
        source_towards: SourceTowards | None = None,
    ) -> None:
        self._except = {except_interface, *OTHER_VIP_INTERFACES}
        self._notify = notify
        self._monitor: EventSource = monitor or Monitor(except_interface=except_interface, routes=False)
        self._source: AddressSource = addresses or Addresses()
        self._source_towards = source_towards or default_source
        # By interface, in the kernel's order. An interface without addresses keeps its place: the address of a new DHCP
        # lease is then preferred to those of other interfaces, as the previous one was.
        self._addresses: dict[str, dict[str, InterfaceAddress]] = {}
        self._passed_on: NodeInterfaces | None = None

    async def run(self) -> None:
        """Follow until cancelled. The current addresses are passed on first."""
        async with self._monitor, self._source:
            await self._read()
            while True:
                events = await self._monitor.next()
                if any(isinstance(event, Overrun) for event in events):
                    log.warning("node.events_lost", consequence="every address is read again")
                    await self._read()
                    continue
                for event in events:
                    self._take(event)
                self._pass_on()

    async def _read(self) -> None:
        found = await self._source.of_node()
        self._addresses = {}
        for it in found:
            if it.interface not in self._except:
                self._addresses.setdefault(it.interface, {})[it.address] = it
        self._pass_on()

    def _take(self, event: Event | Overrun) -> None:
        match event:
            case LinkEvent() | AddressEvent() if event.interface in self._except:
                pass
            case LinkEvent(gone=True, interface=interface):
                self._addresses.pop(interface, None)
            case AddressEvent(gone=True):
                self._addresses.get(event.interface, {}).pop(event.address, None)
            case AddressEvent():
                self._addresses.setdefault(event.interface, {})[event.address] = InterfaceAddress(*event[1:])

    def _pass_on(self) -> None:
        addresses = [it for of_interface in self._addresses.values() for it in of_interface.values()]
        interfaces = node_interfaces(addresses, self._source_towards)
        if interfaces != self._passed_on:
            self._passed_on = interfaces
            self._notify(interfaces)


def node_interfaces(
    addresses: Collection[InterfaceAddress], source_towards: SourceTowards | None = None
) -> NodeInterfaces:
    """The node's addresses. A tentative address is not the node's yet: another machine may have it already."""
    own = frozenset(it.address for it in addresses if not it.tentative)
    return NodeInterfaces(own, default_addresses(addresses, source_towards))


def default_addresses(
    addresses: Iterable[InterfaceAddress], source_towards: SourceTowards | None = None
) -> tuple[str, ...]:
    """At most one address of each family: the source that the kernel chooses for the default route.

    Without a default route it is the first address of global scope that is not secondary, tentative or deprecated.
    """
    source_towards = source_towards or default_source
    usable = [it for it in addresses if it.scope == "global" and not (it.tentative or it.deprecated)]
    chosen = []
    for family, version in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
        candidates = [it for it in usable if ipaddress.ip_address(it.address).version == version]
        source = source_towards(family)
        if source in {it.address for it in candidates}:
            chosen.append(source)
        elif first := next((it.address for it in candidates if not it.secondary), None):
            chosen.append(first)
    return tuple(filter(None, chosen))


def default_source(family: socket.AddressFamily) -> str | None:
    """The source address of this node's packets to the outside, or None without a route.

    Connecting a UDP socket only looks up the route.
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_ELSEWHERE[family], 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


async def read_node_interfaces(except_interface: str) -> NodeInterfaces:
    """The current addresses of the node, read once.

    Raises:
        KernelError: the kernel does not list the addresses.
    """
    carry_vips = {except_interface, *OTHER_VIP_INTERFACES}
    async with Addresses() as source:
        return node_interfaces([it for it in await source.of_node() if it.interface not in carry_vips])
