"""Events of the node's links, addresses and routes of table local, from rtnetlink.

Binding thousands of VIPs makes tens of thousands of events. So a message's fixed header is read first, and a message
for another interface or table is dropped before its attributes are parsed.
"""

import asyncio
import socket
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec

from kroute.kernel.net.addresses import InterfaceAddress, parse_address
from kroute.kernel.net.routes import LocalRoute, parse_route
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import attributes, iterate_messages, to_text
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE
from kroute.kernel.netlink.rtnetlink import (
    ADDRESS_HEADER,
    GROUP_IPV4_ADDRESS,
    GROUP_IPV4_ROUTE,
    GROUP_IPV6_ADDRESS,
    GROUP_IPV6_ROUTE,
    GROUP_LINK,
    IFF_UP,
    IFLA_IFNAME,
    LINK_HEADER,
    RT_TABLE_LOCAL,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELROUTE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
)
from kroute.kernel.netlink.socket_filter import (
    EVERYTHING,
    JUMP_IF_EQUAL,
    LOAD_HALF,
    LOAD_WORD,
    PORT_AT,
    RETURN,
    TYPE_AT,
    Instruction,
)

DATAGRAMS_A_TURN = 500
"""How many datagrams (one event each) `next` takes before other tasks run."""
ROUTE_TABLE_OFFSET = 4
AF_BRIDGE = 7


class LinkEvent(msgspec.Struct, frozen=True):
    """A link was made or changed, or was deleted (`gone`)."""

    gone: bool
    interface: str
    ifindex: int
    up: bool


class AddressEvent(NamedTuple):
    """An address was added or its flags changed, or it was deleted (`gone`)."""

    gone: bool
    assigned: InterfaceAddress

    @property
    def interface(self) -> str:
        return self.assigned.interface


class RouteEvent(msgspec.Struct, frozen=True):
    """A route of table local to one address was added, or was deleted (`gone`).

    The kernel sends no events for routes that it deletes together with a link.
    """

    gone: bool
    interface: str
    route: LocalRoute


class Overrun(msgspec.Struct, frozen=True):
    """The kernel dropped events, or one could not be parsed. The caller must read the state again."""


Event: TypeAlias = LinkEvent | AddressEvent | RouteEvent


class OwnPorts(msgspec.Struct, frozen=True):
    """The ports of the sockets by which this process changes addresses and routes."""

    addresses: int
    routes: int


class Monitor(NetlinkClient):
    """The events of the calling process's network namespace, from `open()` on.

    `only_interface` keeps only the events of one interface. `except_interface` drops the address and route events of
    one. `routes=False` subscribes to no route events. With `other_addresses` the address events are those of all
    interfaces but `only_interface`. The kernel drops what the sockets `own` have changed, where the event says so (not
    of IPv6 addresses), before any program is woken for it.
    """

    protocol = NETLINK_ROUTE
    receive_buffer = 32 * 1024 * 1024
    """Kernel memory for 20,000 waiting events: the kernel counts each as about 1 KiB."""

    def __init__(
        self,
        *,
        only_interface: str | None = None,
        except_interface: str | None = None,
        other_addresses: bool = False,
        routes: bool = True,
        own: OwnPorts | None = None,
    ) -> None:
        of_routes = [GROUP_IPV4_ROUTE, GROUP_IPV6_ROUTE] if routes else []
        groups = [GROUP_LINK, GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS, *of_routes]
        super().__init__(groups, except_of(own) if own is not None else ())
        self._other_addresses = other_addresses
        self._only = only_interface
        self._except = except_interface
        self._names: dict[int, str] = {}

    async def open(self) -> None:
        """Subscribe. No later event is missed, so read the state after this."""
        await super().open()
        self._names = dict(socket.if_nameindex())

    async def next(self) -> list[Event | Overrun]:
        """Wait for events, and return those that wait: at least one, at most some hundreds.

        After an Overrun the state must be read again, because earlier events are lost. Raises KernelError when the
        socket fails.
        """
        while True:
            events: list[Event | Overrun] = []
            taken = await self.netlink.follow(DATAGRAMS_A_TURN, "the node's addresses", partial(self._parse, events))
            if taken is None:
                self._names = dict(socket.if_nameindex())
                return [Overrun()]
            if events:
                return events
            await asyncio.sleep(0)

    def _parse(self, events: list[Event | Overrun], datagram: bytes) -> None:
        for kind, _flags, _sequence, payload in iterate_messages(datagram):
            event: Event | None = None
            if kind in {RTM_NEWROUTE, RTM_DELROUTE}:
                event = self._parse_route(kind, payload)
            elif kind in {RTM_NEWADDR, RTM_DELADDR}:
                event = self._parse_address(kind, payload)
            elif kind in {RTM_NEWLINK, RTM_DELLINK}:
                event = self._parse_link(kind, payload)
            if event is not None:
                events.append(event)

    def _parse_route(self, kind: int, payload: bytes) -> RouteEvent | None:
        if payload[ROUTE_TABLE_OFFSET] != RT_TABLE_LOCAL:
            return None
        found = parse_route(payload)
        if found is None:
            return None
        index, route = found
        name = self._names.get(index)
        if name is None or not self._wants(name):
            return None
        return RouteEvent(kind == RTM_DELROUTE, name, route)

    def _parse_address(self, kind: int, payload: bytes) -> AddressEvent | None:
        name = self._names.get(ADDRESS_HEADER.unpack_from(payload)[4])
        if name is None or (name == self._only if self._other_addresses else not self._wants(name)):
            return None
        address = parse_address(payload, self._names)
        return AddressEvent(kind == RTM_DELADDR, address) if address else None

    def _parse_link(self, kind: int, payload: bytes) -> LinkEvent | None:
        family, _type, index, flags, _change = LINK_HEADER.unpack_from(payload)
        if family == AF_BRIDGE:
            return None  # a bridge reports its ports with the same messages
        name = to_text(attributes(payload, LINK_HEADER.size)[IFLA_IFNAME])
        gone = kind == RTM_DELLINK
        if not gone:
            self._names[index] = name
        else:
            self._names.pop(index, None)
        return LinkEvent(gone, name, index, bool(flags & IFF_UP)) if self._only in {None, name} else None

    def _wants(self, name: str) -> bool:
        return name != self._except and self._only in {None, name}


def except_of(own: OwnPorts) -> list[Instruction]:
    """The filter that drops the events of routes that one of these sockets has changed, and of addresses the other.

    The socket for addresses deletes the kernel's own routes of IPv6, too, and those events are kept: they follow the
    kernel's events that such a route was added. A filter reads numbers as big-endian.
    """
    return [
        Instruction(LOAD_WORD, 0, 0, PORT_AT),
        Instruction(JUMP_IF_EQUAL, 4, 0, socket.htonl(own.routes)),
        Instruction(JUMP_IF_EQUAL, 0, 4, socket.htonl(own.addresses)),
        Instruction(LOAD_HALF, 0, 0, TYPE_AT),
        Instruction(JUMP_IF_EQUAL, 1, 0, socket.htons(RTM_NEWADDR)),
        Instruction(JUMP_IF_EQUAL, 0, 1, socket.htons(RTM_DELADDR)),
        Instruction(RETURN, 0, 0, 0),
        Instruction(RETURN, 0, 0, EVERYTHING),
    ]
