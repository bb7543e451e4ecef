"""This node's own addresses, as they come and go, and those that it needs: gateways, subnets' ends, DNS servers.

VIPs are not among them: the interface that carries them is left out. The addresses are read once, then followed by
rtnetlink's events, and read again when the kernel dropped some. Next hops are read again when a route has changed, or
an address or link, with which routes go silently; the resolver's files now and then.
"""

import asyncio
import errno
import ipaddress
import socket
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import structlog

from kroute.base.backoff import Backoff, exhaustion, retry_when_exhausted
from kroute.kernel.clients import EventSource
from kroute.kernel.errors import KernelError
from kroute.kernel.net.addresses import Addresses, InterfaceAddress
from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent, Monitor, Overrun
from kroute.kernel.net.next_hops import NextHops
from kroute.kernel.net.routes import ELSEWHERE
from kroute.model.addresses import canonical
from kroute.model.node_facts import NodeInterfaces
from kroute.settings import OTHER_VIP_INTERFACES

log = structlog.get_logger(__name__)

RESOLVER_FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""The second has the servers behind systemd-resolved, of which the first names only its own loopback address."""
LONGEST_RESOLVER_FILE = 64 << 10
"""Bytes that are read of a file."""
LOOK_EVERY = 30.0
"""Seconds between two looks at the resolver's files, as long as no route changes."""
SHARE = 20
"""For how many times as long as they took to be read, next hops are not read again; for SHORTEST_PAUSE at least."""
SHORTEST_PAUSE = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to read addresses that change all the time."""
Notify = Callable[[NodeInterfaces], None]
SourceTowards = Callable[[socket.AddressFamily], str | None]


def dns_servers(files: Iterable[Path] = RESOLVER_FILES) -> frozenset[str]:
    """The addresses in these files; a file that cannot be read names none.

    Raises OSError when a file could not be read for lack of a resource: nothing is known then.
    """
    return frozenset(address for file in files for address in _name_servers(file))


def _name_servers(file: Path) -> list[str]:
    try:
        with file.open("rb") as opened:
            text = opened.read(LONGEST_RESOLVER_FILE).decode(errors="replace")
    except OSError as error:
        if exhaustion(error) is not None:
            raise
        return []
    words = [line.split() for line in text.splitlines() if line.startswith("nameserver")]
    return [address for line in words if len(line) > 1 and (address := canonical(line[1])) is not None]


def default_source(family: socket.AddressFamily) -> str | None:
    """The source address of this node's packets to the outside, or None without a route.

    Connecting a UDP socket only looks up the route.
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((ELSEWHERE[family], 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        if exhaustion(error) is not None:
            raise  # it says nothing of the routes
        return None


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
        addresses: Addresses | None = None,
        source_towards: SourceTowards = default_source,
        next_hops: NextHops | None = None,
        resolver: Callable[[], frozenset[str]] = dns_servers,
    ) -> None:
        self._except = {except_interface, *OTHER_VIP_INTERFACES}
        self._notify = notify
        self._monitor: EventSource = monitor or Monitor(except_interface=except_interface, routes=False)
        self._source = addresses or Addresses()
        self._source_towards = source_towards
        self._next_hops = next_hops or NextHops()
        self._resolver = resolver
        self._routes_changed = asyncio.Event()
        self._gateways: frozenset[str] = frozenset()
        self._dns_servers: frozenset[str] = frozenset()
        # By interface, in the kernel's order. An interface keeps its place while it has no address, so that with a new
        # DHCP lease its address is preferred to those of other interfaces as the one before was.
        self._addresses: dict[int, dict[tuple[str, int, str], InterfaceAddress]] = {}
        self._passed_on: NodeInterfaces | None = None

    async def run(self) -> None:
        """Follow until cancelled; the addresses as they are now are passed on first."""
        while True:
            await retry_when_exhausted("following the node's addresses", self._follow)

    async def _follow(self) -> None:
        async with self._monitor, self._source, self._next_hops:
            self._gateways = await _read(self._next_hops, self._gateways)
            self._dns_servers = self._resolver()
            await self._read()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_addresses(), name="node addresses")
                group.create_task(self._notice_routes(), name="node routes")
                group.create_task(self._follow_what_is_needed(), name="node needs")

    async def _follow_addresses(self) -> None:
        while True:
            events = await self._monitor.next()
            self._routes_changed.set()
            if any(isinstance(event, Overrun) for event in events):
                log.warning("node.events_lost", consequence="every address is read again")
                await self._read()
                continue
            for event in events:
                self._take(event)
            self._pass_on()

    async def _notice_routes(self) -> None:
        while True:
            await self._next_hops.changed()
            self._routes_changed.set()

    async def _follow_what_is_needed(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._routes_changed.wait()
            pause = 0.0
            if self._routes_changed.is_set():
                self._routes_changed.clear()
                began = time.monotonic()
                self._gateways = await _read(self._next_hops, self._gateways)
                pause = max(SHORTEST_PAUSE, SHARE * (time.monotonic() - began))
            with suppress(OSError):  # the resolver's files cannot be read now: the servers known before stay protected
                self._dns_servers = self._resolver()
            self._pass_on()
            await asyncio.sleep(pause)

    async def _read(self) -> None:
        found = await self._read_whole()
        self._addresses = {}
        for address in found:
            self._addresses.setdefault(address.ifindex, {})[address.identity] = address
        self._pass_on()

    async def _read_whole(self) -> list[InterfaceAddress]:
        """The addresses of the node, once they change no faster than they can be read: half of them would be wrong."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                return await self._source.of_node(self._except)
            except KernelError as error:
                if error.errno != errno.EINTR:
                    raise
                log.warning("node.read_interrupted", error=str(error), next_step="reading again")
            await asyncio.sleep(backoff.delay())

    def _take(self, event: Event | Overrun) -> None:
        match event:
            case LinkEvent() | AddressEvent() if event.interface in self._except:
                pass
            case LinkEvent(gone=True, ifindex=ifindex):
                self._addresses.pop(ifindex, None)
            case AddressEvent(gone, address):
                of_interface = self._addresses.setdefault(address.ifindex, {})
                if gone:
                    of_interface.pop(address.identity, None)
                else:
                    of_interface[address.identity] = address

    def _pass_on(self) -> None:
        addresses = [address for of_interface in self._addresses.values() for address in of_interface.values()]
        interfaces = node_interfaces(addresses, self._source_towards)
        interfaces = interfaces._replace(gateways=self._gateways, dns_servers=self._dns_servers)
        if interfaces != self._passed_on:
            self._passed_on = interfaces
            self._notify(interfaces)


async def _read(next_hops: NextHops, before: frozenset[str]) -> frozenset[str]:
    """The next hops, or those before where routes change faster than they can be read."""
    try:
        return await next_hops.read()
    except KernelError as error:
        log.warning("node.gateways_unknown", error=str(error), consequence="those known before stay protected")
        return before


def node_interfaces(
    addresses: Collection[InterfaceAddress], source_towards: SourceTowards = default_source
) -> NodeInterfaces:
    """The node's addresses. A tentative address is not the node's yet: another machine may have it already."""
    own = frozenset(address.address for address in addresses if not address.tentative)
    on_links = [address for address in addresses if address.scope == "global"]
    edges = {edge for address in on_links for edge in subnet_edges(address.address, address.prefix_length)}
    return NodeInterfaces(
        own,
        default_addresses(addresses, source_towards),
        subnet_edges=frozenset(edges - own),
        on_links=frozenset((it.interface, f"{it.address}/{it.prefix_length}") for it in on_links if not it.tentative),
    )


@lru_cache(maxsize=1024)
def subnet_edges(address: str, prefix_length: int) -> tuple[str, ...]:
    """The network address of an interface's subnet and its broadcast address, which IPv6 has not.

    IPv6's network address is that of any router (RFC 4291, 2.6.1). A subnet of two has neither (RFC 3021, RFC 6164).
    """
    network = ipaddress.ip_network((address, prefix_length), strict=False)
    if network.num_addresses <= 2:
        return ()
    ends = (network.network_address,) if network.version == 6 else (network.network_address, network.broadcast_address)
    return tuple(map(str, ends))


def default_addresses(addresses: Iterable[InterfaceAddress], source_towards: SourceTowards) -> tuple[str, ...]:
    """At most one address of each family: the source that the kernel chooses for the default route.

    Without a default route it is the first address of global scope that is not secondary, tentative or deprecated.
    """
    usable = [
        address for address in addresses if address.scope == "global" and not (address.tentative or address.deprecated)
    ]
    chosen = []
    for family, version in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
        candidates = [address for address in usable if ipaddress.ip_address(address.address).version == version]
        source = source_towards(family)
        if source in {address.address for address in candidates}:
            chosen.append(source)
        elif first := next((address.address for address in candidates if not address.secondary), None):
            chosen.append(first)
    return tuple(filter(None, chosen))


async def read_node_interfaces(except_interface: str) -> NodeInterfaces:
    """What the interfaces, routes and resolver's files say now.

    Raises:
        KernelError: the kernel does not list the addresses.
    """
    carry_vips = {except_interface, *OTHER_VIP_INTERFACES}
    async with Addresses() as source, NextHops() as next_hops:
        found = node_interfaces(await source.of_node(carry_vips))
        return found._replace(gateways=await _read(next_hops, frozenset()), dns_servers=dns_servers())
