"""Routes of table local, which say what source address the node itself uses towards a VIP; and look-ups of any route.

What the kernel does with table local, measured on Linux 6.1 (tests/kernel/contracts_network.py, test_routes.py):
- IPv4: routes to one address form a list, of which the first wins. A route that was added before the address stays
  first. With an address the kernel deletes its own route (source = the address), but not ours. When an interface loses
  its last IPv4 address, the kernel deletes all its IPv4 routes and sends no event. `replace` changes the first route,
  whichever program made it. It is refused (EEXIST) when an equal route is in the list behind that.
- IPv6: the metric decides. The kernel's own route has metric 0, which a route of ours cannot have. A deletion can name
  neither metric 0 (0 means any) nor a source. So only the protocol tells the two apart: ours is `static`.
"""

import errno
import socket
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

from kroute.kernel.digest import Digest
from kroute.kernel.errors import Change, Failure, KernelError, none_if_refused
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_REPLACE,
    address_family,
    attribute,
    attributes,
    message,
    number_in,
    pack_address,
    to_u32,
    u32,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE
from kroute.kernel.netlink.rtnetlink import (
    ROUTE_HEADER,
    RT_SCOPE_HOST,
    RT_SCOPE_NOWHERE,
    RT_TABLE_LOCAL,
    RTA_DST,
    RTA_OIF,
    RTA_PREFSRC,
    RTA_PRIORITY,
    RTA_TABLE,
    RTM_DELROUTE,
    RTM_GETROUTE,
    RTM_NEWROUTE,
    RTN_LOCAL,
    RTPROT_KERNEL,
    RTPROT_STATIC,
    RTPROT_UNSPEC,
    interface_index,
)

IPV6_METRIC = 1024
"""The metric that the kernel gives to an IPv6 route without one."""
ELSEWHERE: dict[int, str] = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849): only the default route leads to them. Nothing is sent to them."""
_IPV4 = socket.AF_INET, 32, RTPROT_KERNEL, RT_SCOPE_HOST
_IPV6 = socket.AF_INET6, 128, RTPROT_STATIC, 0
"""What our routes have: family, length in bits, protocol, scope."""


class LocalRoute(NamedTuple):
    """A route to one address in table local. `source` None: the kernel chooses the source."""

    address: str
    source: str | None
    metric: int


class SetLocalRoute(Change, frozen=True):
    """Make the node use `source` towards the address, whether or not that is bound. There is always a route meanwhile.

    Other routes to the address stay, behind ours if they are of IPv4. With `alone`, those with another source go.
    Refused: EINVAL if the source is not an address of this node (IPv6: or still tentative), ENODEV without interface.
    """

    words = "set the source {change.source} on the local route of {change.address}"

    address: str
    source: str
    alone: bool = False


class DeleteLocalRoute(Change, frozen=True):
    """Delete our route. IPv4: the one with this source (None: the first one). Refused: ESRCH if it does not exist."""

    words = "delete the local route of {change.address}"

    address: str
    source: str | None = None


RouteChange: TypeAlias = SetLocalRoute | DeleteLocalRoute


class Routes(NetlinkClient):
    """Table local of the calling process's network namespace."""

    protocol = NETLINK_ROUTE

    async def read(self, interface: str) -> dict[str, list[LocalRoute]]:
        """The routes on the interface by address, in the kernel's order. The first of an IPv4 address wins."""
        index = interface_index(interface)
        if index is None:
            return {}
        return await self._read(index)

    async def digest(self, interface: str, sources: Sequence[str] = ()) -> Digest | None:
        """A digest of the routes on the interface, and how many have each of the sources; None without interface."""
        index = interface_index(interface)
        if index is None:
            return None
        counts: dict[str, int] = {}
        checksums: list[int] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            of_family = [source for source in sources if address_family(source) == family]
            searched = [attribute(RTA_PREFSRC, pack_address(source)) for source in of_family]
            found = await none_if_refused(self.digests.digest(_dump_of(family, index), searched), errno.ENODEV)
            if found is None:
                return None
            checksums.append(found.checksum)
            counts |= zip(of_family, found.counts, strict=True)
        return Digest(hash(tuple(checksums)), tuple(counts[source] for source in sources))

    async def write(self, interface: str, changes: Sequence[RouteChange]) -> list[Failure[RouteChange]]:
        """Make the changes in order; those that the kernel refuses do not stop the others."""
        index = interface_index(interface)
        if index is None:
            return [Failure(change, errno.ENODEV) for change in changes]
        failures = await self.write_each(changes, partial(_encode, index))
        made = [change for change in changes if isinstance(change, SetLocalRoute)]
        by_ipv6 = [change.address for change in made if ":" in change.address]
        await self.write_each(by_ipv6, partial(delete_kernel_route, index))  # mostly there is none (ESRCH)
        shadowed = {failure.change for failure in failures if failure.errno == errno.EEXIST}
        beset = [change for change in made if change.alone or change in shadowed]
        if not beset:
            return failures
        others = [failure for failure in failures if failure.change not in shadowed]
        return others + await self._clear_away(index, beset)

    async def _clear_away(self, index: int, changes: Sequence[SetLocalRoute]) -> list[Failure[RouteChange]]:
        """Delete the IPv4 routes before these ones, and where one is to be alone, all with another source."""
        routes = await self._read(index)
        going = [(change, route) for change in changes for route in in_the_way(change, routes.get(change.address, ()))]
        failures = await self.write_each(going, lambda each: delete_route(index, *each[1]), {errno.ESRCH})
        return [Failure(failure.change[0], failure.errno) for failure in failures]

    async def _read(self, index: int) -> dict[str, list[LocalRoute]]:
        routes: dict[str, list[LocalRoute]] = {}
        for family in (socket.AF_INET, socket.AF_INET6):
            request = self.netlink.request(_dump_of(family, index), parse_route)
            if (found := await none_if_refused(request, errno.ENODEV)) is None:
                return {}  # the interface was deleted meanwhile
            for on_interface, route in found:
                # a kernel without IPv6 answers the second query with the IPv4 routes again
                if on_interface == index and address_family(route.address) == family:
                    routes.setdefault(route.address, []).append(route)
        return routes


def in_the_way(change: SetLocalRoute, routes: Sequence[LocalRoute]) -> list[LocalRoute]:
    """Those of the routes to one address, in the kernel's order, that have to go for this change.

    IPv6: the kernel's own route, of metric 0, goes with every change; with our metric there is no other.
    """
    if ":" in change.address:
        others = [route for route in routes if route.metric not in {0, IPV6_METRIC}]
        return [route for route in others if route.source != change.source] if change.alone else []
    sources = [route.source for route in routes]
    if change.source not in sources:
        return []
    at = sources.index(change.source)
    behind = [
        route
        for route in routes[at + 1 :]
        if change.alone and route.source not in {None, change.address, change.source}
    ]
    return [*routes[:at], *behind]


def _dump_of(family: int, index: int) -> bytes:
    """The request for the routes of one interface in table local."""
    header = ROUTE_HEADER.pack(family, 0, 0, 0, RT_TABLE_LOCAL, 0, 0, RTN_LOCAL, 0)
    return message(RTM_GETROUTE, NLM_F_DUMP, header + u32(RTA_TABLE, RT_TABLE_LOCAL) + u32(RTA_OIF, index))


def _encode(index: int, change: RouteChange) -> bytes:
    if isinstance(change, DeleteLocalRoute):
        return delete_route(index, change.address, change.source)
    return set_route(index, change.address, change.source)


def set_route(index: int, address: str, source: str) -> bytes:
    """The message that makes or replaces our route."""
    return message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, _encode_route(index, address, source))


def delete_route(index: int, address: str, source: str | None, metric: int = IPV6_METRIC) -> bytes:
    """The message that deletes our route, or one that another proxy has left in its place.

    It names no protocol, since the kernel would delete no route of another one. For IPv4, the first route with that
    source goes; for IPv6, the one with that metric, by default ours, which the kernel's own has not.
    """
    return message(RTM_DELROUTE, 0, _encode_route(index, address, source, RTPROT_UNSPEC, metric))


def delete_kernel_route(index: int, address: str) -> bytes:
    """The message that deletes the route that the kernel made for an IPv6 address."""
    packed = pack_address(address)
    header = ROUTE_HEADER.pack(
        socket.AF_INET6, 128, 0, 0, RT_TABLE_LOCAL, RTPROT_KERNEL, RT_SCOPE_NOWHERE, RTN_LOCAL, 0
    )
    return message(RTM_DELROUTE, 0, header + attribute(RTA_DST, packed) + u32(RTA_OIF, index))


def parse_route(payload: bytes) -> tuple[int, LocalRoute] | None:
    """The interface index and the route in a message; None if that is no route of table local to one address."""
    family, length, _, _, table, _protocol, _scope, kind, _flags = ROUTE_HEADER.unpack_from(payload)
    if table != RT_TABLE_LOCAL or kind != RTN_LOCAL or length != (32 if family == socket.AF_INET else 128):
        return None
    found = attributes(payload, ROUTE_HEADER.size)
    if RTA_OIF not in found:
        return None
    source = unpack_address(found[RTA_PREFSRC]) if RTA_PREFSRC in found else None
    metric = number_in(found, RTA_PRIORITY)
    return to_u32(found[RTA_OIF]), LocalRoute(unpack_address(found[RTA_DST]), source, metric)


def _encode_route(
    index: int, address: str, source: str | None, protocol: int | None = None, metric: int = IPV6_METRIC
) -> bytes:
    """A route, by default of the protocol that ours have. `metric` is that of IPv6."""
    header, tail = _around_address(index, source, protocol, metric, is_ipv6=":" in address)
    return header + attribute(RTA_DST, pack_address(address)) + tail


@lru_cache(64)
def _around_address(
    index: int, source: str | None, protocol: int | None, metric: int, *, is_ipv6: bool
) -> tuple[bytes, bytes]:
    """What is before and after the address of a route. Thousands of routes have the same."""
    family, length, ours, scope = _IPV6 if is_ipv6 else _IPV4
    protocol = ours if protocol is None else protocol
    header = ROUTE_HEADER.pack(family, length, 0, 0, RT_TABLE_LOCAL, protocol, scope, RTN_LOCAL, 0)
    tail = u32(RTA_OIF, index) + (u32(RTA_PRIORITY, metric) if is_ipv6 else b"")
    return header, tail if source is None else tail + attribute(RTA_PREFSRC, pack_address(source))


class Way(NamedTuple):
    """A route. `is_local`: it delivers to this node. `source`: the source address that the kernel chooses for it."""

    is_local: bool
    interface: str
    source: str | None


class RouteLookup(NetlinkClient):
    """Looks up the route of a packet that this node sends, as `ip route get` does."""

    protocol = NETLINK_ROUTE

    async def towards(self, address: str) -> Way | None:
        """The route to an address; None if no packet can go there."""
        packed = pack_address(address)
        header = ROUTE_HEADER.pack(address_family(address), len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
        query = message(RTM_GETROUTE, 0, header + attribute(RTA_DST, packed))
        try:
            found = await self.netlink.request(query, _parse_way)
        except KernelError as error:
            if error.errno is None:
                raise
            return None  # unreachable, prohibited, or no such family
        return found[0] if found else None


def _parse_way(payload: bytes) -> Way:
    kind = ROUTE_HEADER.unpack_from(payload)[7]
    found = attributes(payload, ROUTE_HEADER.size)
    interface = dict(socket.if_nameindex()).get(number_in(found, RTA_OIF), "")
    source = unpack_address(found[RTA_PREFSRC]) if RTA_PREFSRC in found else None
    return Way(kind == RTN_LOCAL, interface, source)
