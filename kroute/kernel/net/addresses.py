"""Interface addresses: reads those of one interface or of the whole node, and writes VIPs in batches."""

import asyncio
import errno
import socket
import struct
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from kroute.kernel.digest import Digest
from kroute.kernel.errors import Change, Failure, none_if_refused
from kroute.kernel.net.routes import delete_kernel_route
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    address_family,
    attribute,
    attributes,
    iterate_messages,
    message,
    number_in,
    pack_address,
    u32,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE
from kroute.kernel.netlink.rtnetlink import (
    ADDRESS_HEADER,
    GROUP_IPV6_ADDRESS,
    IFA_ADDRESS,
    IFA_CACHEINFO,
    IFA_FLAGS,
    IFA_LOCAL,
    RT_SCOPE_LINK,
    RTM_DELADDR,
    RTM_GETADDR,
    RTM_NEWADDR,
    SCOPES,
    interface_index,
)

IFA_F_SECONDARY = 0x01
IFA_F_NODAD = 0x02
IFA_F_DEPRECATED = 0x20
IFA_F_TENTATIVE = 0x40
IFA_F_NOPREFIXROUTE = 0x200

_CACHE_INFO = struct.Struct("=IIII")
"""preferred and valid lifetime in seconds, then two time stamps that only the kernel sets."""

FOREVER = 0xFFFFFFFF
"""A lifetime that does not end, for which an IPv6 address is deprecated all the same."""
WRITE_SLICE = 512
DATAGRAMS_A_TURN = 500
ARRIVAL_WAIT = 0.5
"""Seconds to wait for the kernel's next route after IPv6 addresses were bound."""
ARRIVAL_WAITS = 4
"""How many waits in a row may end without an address. A machine that stands still for long costs one of them."""


class InterfaceAddress(NamedTuple):
    """An address of an interface. `scope` is global, site, link, host. For IPv6, `secondary` means temporary.

    An interface may have an IPv4 address several times, with other prefix lengths or other peers (point-to-point). It
    may get another name; its `ifindex` stays.
    """

    interface: str
    address: str
    prefix_length: int
    scope: str = "global"
    tentative: bool = False
    deprecated: bool = False
    secondary: bool = False
    ifindex: int = 0
    peer: str = ""

    @property
    def identity(self) -> tuple[str, int, str]:
        """What tells it apart from the other addresses of its interface (net/ipv4/devinet.c, net/ipv6/addrconf.c)."""
        return (self.address, 0, "") if ":" in self.address else (self.address, self.prefix_length, self.peer)


class BindAddress(Change, frozen=True):
    """Add the address (/32, /128) to the interface. Refused: EEXIST if it is bound already, ENODEV without interface.

    With an IPv6 address the kernel adds a route of metric 0 to table local, which wins over every other route. Unless
    `keep_kernel_route`, that route is deleted as soon as it appears. The kernel's route to an IPv4 address may stay: a
    route of ours that was added before it wins.

    After `lifetime` seconds the kernel deletes the address, unless it is renewed before; 0: never. An IPv6 address with
    a lifetime is deprecated from the start: it serves, but is never the source of the machine's own calls.
    """

    words = "bind {change.address}"

    address: str
    keep_kernel_route: bool = False
    lifetime: int = 0

    @property
    def wants_own_route(self) -> bool:
        """Whether the kernel's route must be deleted."""
        return ":" in self.address and not self.keep_kernel_route


class UnbindAddress(Change, frozen=True):
    """Delete the address; the kernel deletes its own route with it. Refused: EADDRNOTAVAIL if it is not bound."""

    words = "unbind {change.address}"

    address: str


class RenewAddress(Change, frozen=True):
    """Set an address's lifetime to `lifetime` seconds from now. Renew only bound ones: the kernel binds any other."""

    words = "renew {change.address}"

    address: str
    lifetime: int


AddressChange: TypeAlias = BindAddress | RenewAddress | UnbindAddress


class AddressArrivals(NetlinkClient):
    """The IPv6 addresses that the kernel adds to one interface or deletes from it, from `async with` on.

    The kernel answers RTM_NEWADDR of an IPv6 address before it has finished. It adds its route to the address later,
    from a work queue (addrconf_dad_work in net/ipv6/addrconf.c, even without duplicate address detection). It does so
    right after the notification of the address, under the same rtnl lock. So a request about the route that is sent
    after the notification finds the route.
    """

    protocol = NETLINK_ROUTE
    receive_buffer = 8 * 1024 * 1024

    def __init__(self, index: int) -> None:
        super().__init__([GROUP_IPV6_ADDRESS])
        self._index = index

    async def next(self) -> set[str] | None:
        """Wait for addresses, and return those that wait; None if the kernel dropped some."""
        arrived: set[str] = set()
        taken = await self.netlink.follow(DATAGRAMS_A_TURN, "new addresses", partial(self._take, arrived))
        return arrived if taken is not None else None

    def _take(self, arrived: set[str], datagram: bytes) -> None:
        for kind, _flags, _sequence, payload in iterate_messages(datagram):
            if kind in {RTM_NEWADDR, RTM_DELADDR} and ADDRESS_HEADER.unpack_from(payload)[4] == self._index:
                found = attributes(payload, ADDRESS_HEADER.size)
                arrived.add(unpack_address(found.get(IFA_LOCAL) or found[IFA_ADDRESS]))


class Addresses(NetlinkClient):
    """The addresses of the calling process's network namespace."""

    protocol = NETLINK_ROUTE

    async def read(self, interface: str) -> set[str]:
        """The addresses on the interface, in canonical text; none if it does not exist.

        IPv6 link-local addresses are left out: a link of another program may have one, and it is never a VIP.
        """
        index = interface_index(interface)
        if index is None:
            return set()
        # ENODEV: the interface was deleted meanwhile
        found = await none_if_refused(self._dump(index), errno.ENODEV) or ()
        return {bound.address for bound in found if ":" not in bound.address or bound.scope != "link"}

    async def digest(self, interface: str) -> Digest | None:
        """A digest of the addresses on the interface, with their number; None if it does not exist."""
        index = interface_index(interface)
        if index is None:
            return None
        found = await none_if_refused(self.digests.digest(_dump_of(index)), errno.ENODEV)
        return Digest(found.checksum, (found.messages,)) if found is not None else None

    async def of_node(self, leave_out: Collection[str] = ()) -> list[InterfaceAddress]:
        """All addresses of all interfaces but those to `leave_out`: one may have 10,000 VIPs."""
        return await self._dump(0, leave_out)

    async def write(self, interface: str, changes: Sequence[AddressChange]) -> list[Failure[AddressChange]]:
        """Make the changes in order; those that the kernel refuses do not stop the others."""
        index = interface_index(interface)
        if index is None:
            return [Failure(change, errno.ENODEV) for change in changes]
        failures: list[Failure[AddressChange]] = []
        for start in range(0, len(changes), WRITE_SLICE):
            failures += await self._write(index, changes[start : start + WRITE_SLICE])
        return failures

    async def _write(self, index: int, changes: Sequence[AddressChange]) -> list[Failure[AddressChange]]:
        own_routes_wanted = [change for change in changes if isinstance(change, BindAddress) and change.wants_own_route]
        if not own_routes_wanted:
            return await self._send(index, changes)
        async with AddressArrivals(index) as arrivals:
            failures = await self._send(index, changes)
            refused = {failure.change for failure in failures}
            await self._delete_kernel_routes(index, [each.address for each in own_routes_wanted if each in refused])
            pending = {each.address for each in own_routes_wanted if each not in refused}
            await self._delete_arriving_kernel_routes(index, pending, arrivals)
        return failures

    async def _send(self, index: int, changes: Sequence[AddressChange]) -> list[Failure[AddressChange]]:
        return await self.write_each(changes, partial(_encode, index))

    async def _delete_arriving_kernel_routes(self, index: int, pending: set[str], arrivals: AddressArrivals) -> None:
        """Delete the kernel's routes as they appear. One that appears after the last wait stays until a resync."""
        waits = 0
        while pending and waits < ARRIVAL_WAITS and (arrived := await _next_of(pending, arrivals)) is not None:
            await self._delete_kernel_routes(index, arrived)
            pending = pending - arrived
            waits = 0 if arrived else waits + 1
        await self._delete_kernel_routes(index, pending)

    async def _delete_kernel_routes(self, index: int, addresses: Iterable[str]) -> None:
        """Delete the kernel's routes to these addresses. A refusal (ESRCH) is ignored: the route does not exist."""
        await self.netlink.transact([delete_kernel_route(index, address) for address in addresses])

    async def _dump(self, index: int, leave_out: Collection[str] = ()) -> list[InterfaceAddress]:
        names = {number: name for number, name in socket.if_nameindex() if name not in leave_out}
        found = await self.netlink.request(_dump_of(index), lambda payload: parse_address(payload, names))
        return [address for address in found if not index or address.interface == names.get(index)]


async def _next_of(pending: set[str], arrivals: AddressArrivals) -> set[str] | None:
    """The next of these addresses that arrive; none if a wait ends without one. None if the kernel dropped some."""
    try:
        async with asyncio.timeout(ARRIVAL_WAIT):
            while (arrived := await arrivals.next()) is not None:
                if found := arrived & pending:
                    return found
            return None
    except TimeoutError:
        return set()


def _dump_of(index: int) -> bytes:
    """The request for the addresses of one interface; 0: of all."""
    return message(RTM_GETADDR, NLM_F_DUMP, ADDRESS_HEADER.pack(socket.AF_UNSPEC, 0, 0, 0, index))


def _encode(index: int, change: AddressChange) -> bytes:
    if isinstance(change, UnbindAddress):
        return encode_unbind(index, change.address)
    flags = NLM_F_EXCL if isinstance(change, BindAddress) else NLM_F_REPLACE
    return encode_bind(index, change.address, change.lifetime, NLM_F_CREATE | flags)


def encode_bind(
    index: int,
    address: str,
    lifetime: int = 0,
    flags: int = NLM_F_CREATE | NLM_F_EXCL,
    *,
    scope: int = RT_SCOPE_LINK,
) -> bytes:
    """The message that adds the address, or renews it. `scope` is IPv4's."""
    packed = pack_address(address)
    length = len(packed) * 8
    if ":" in address:
        body = ADDRESS_HEADER.pack(socket.AF_INET6, length, 0, 0, index) + attribute(IFA_LOCAL, packed)
        body += u32(IFA_FLAGS, IFA_F_NODAD | IFA_F_NOPREFIXROUTE)
    else:
        body = ADDRESS_HEADER.pack(socket.AF_INET, length, 0, scope, index)
        body += attribute(IFA_LOCAL, packed) + attribute(IFA_ADDRESS, packed)
    if lifetime:
        preferred = 0 if ":" in address else lifetime  # IPv4: the scope keeps the address from being a source
        body += attribute(IFA_CACHEINFO, _CACHE_INFO.pack(preferred, lifetime, 0, 0))
    return message(RTM_NEWADDR, flags, body)


def encode_unbind(index: int, address: str) -> bytes:
    """The message that removes the address."""
    packed = pack_address(address)
    body = ADDRESS_HEADER.pack(address_family(address), len(packed) * 8, 0, 0, index) + attribute(IFA_LOCAL, packed)
    return message(RTM_DELADDR, 0, body)


def parse_address(payload: bytes, names: dict[int, str]) -> InterfaceAddress | None:
    """The address in a message; None if its interface is not among `names`, or its family is not IPv4 or IPv6."""
    family, length, short_flags, scope, index = ADDRESS_HEADER.unpack_from(payload)
    name = names.get(index) if family in {socket.AF_INET, socket.AF_INET6} else None
    if name is None:
        return None
    found = attributes(payload, ADDRESS_HEADER.size)
    # On a point-to-point link, IPv4's IFA_ADDRESS is the peer's address, and IFA_LOCAL the node's.
    packed = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS)
    if packed is None:
        return None
    peer = found.get(IFA_ADDRESS, packed)
    flags = number_in(found, IFA_FLAGS, short_flags)
    return InterfaceAddress(
        name,
        unpack_address(packed),
        length,
        SCOPES.get(scope, str(scope)),
        bool(flags & IFA_F_TENTATIVE),
        bool(flags & IFA_F_DEPRECATED),
        bool(flags & IFA_F_SECONDARY),
        index,
        "" if peer == packed else unpack_address(peer),
    )
