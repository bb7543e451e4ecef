"""The next hops of the node's routes: the gateways that its packets leave by.

The kernel tells of each route that comes or goes, also of those that it makes for addresses. 10,000 VIPs have 20,000 of
those, none of which has a next hop: a filter in the kernel drops them, so that they cost nothing here.
"""

import socket
import struct
from collections.abc import Iterator

from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import (
    HEADER,
    NLM_F_DUMP,
    attributes,
    message,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE, NetlinkSocket
from kroute.kernel.netlink.rtnetlink import (
    GROUP_IPV4_ROUTE,
    GROUP_IPV6_ROUTE,
    ROUTE_HEADER,
    RT_TABLE_LOCAL,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_VIA,
    RTM_GETROUTE,
    RTN_UNICAST,
    RTPROT_KERNEL,
)
from kroute.kernel.netlink.socket_filter import JUMP_IF_EQUAL, LOAD_BYTE, RETURN, Instruction

_TABLE_AT, _PROTOCOL_AT = HEADER.size + 4, HEADER.size + 5
WITHOUT_THE_KERNELS = (
    Instruction(LOAD_BYTE, 0, 0, _TABLE_AT),
    Instruction(JUMP_IF_EQUAL, 3, 0, RT_TABLE_LOCAL),
    Instruction(LOAD_BYTE, 0, 0, _PROTOCOL_AT),
    Instruction(JUMP_IF_EQUAL, 1, 0, RTPROT_KERNEL),
    Instruction(RETURN, 0, 0, 0xFFFFFFFF),
    Instruction(RETURN, 0, 0, 0),
)
"""Drops the news of routes of table local and of those that the kernel has made."""

_NEXT_HOP = struct.Struct("=HBBi")
"""`struct rtnexthop`: length with its attributes, flags, weight, interface index."""
_VIA_FAMILY = struct.Struct("=H")


class NextHops(NetlinkClient):
    """The next hops of the calling process's network namespace, in all tables."""

    protocol = NETLINK_ROUTE

    def __init__(self) -> None:
        super().__init__()
        self._events = NetlinkSocket(NETLINK_ROUTE)

    async def open(self) -> None:
        """Subscribe; what changes from now on is not missed."""
        await self._events.open([GROUP_IPV4_ROUTE, GROUP_IPV6_ROUTE], WITHOUT_THE_KERNELS)
        await super().open()

    async def close(self) -> None:
        await self._events.close()
        await super().close()

    async def read(self) -> frozenset[str]:
        """The next hops as they are now.

        Raises:
            KernelError: the kernel does not tell.
        """
        found: set[str] = set()
        for family in (socket.AF_INET, socket.AF_INET6):
            query = message(RTM_GETROUTE, NLM_F_DUMP, ROUTE_HEADER.pack(family, 0, 0, 0, 0, 0, 0, RTN_UNICAST, 0))
            await self.netlink.request(query, lambda payload: found.update(parse_next_hops(payload)))
        return frozenset(found)

    async def changed(self) -> None:
        """Wait until routes have changed that may have next hops, however many.

        Raises:
            KernelError: the kernel does not tell.
        """
        await self._events.follow(1, "the node's routes", len)  # if some were dropped, that is news as well
        self._events.drain()


def parse_next_hops(payload: bytes) -> list[str]:
    """The next hops of the route in a message."""
    if ROUTE_HEADER.unpack_from(payload)[5] == RTPROT_KERNEL:
        return []
    found = attributes(payload, ROUTE_HEADER.size)
    hops = list(_gateways(found))
    rest = found.get(RTA_MULTIPATH, b"")
    while len(rest) >= _NEXT_HOP.size:
        length = _NEXT_HOP.unpack_from(rest)[0]
        if length < _NEXT_HOP.size:
            break
        hops += _gateways(attributes(rest[:length], _NEXT_HOP.size))
        rest = rest[length + 3 & ~3 :]
    return hops


def _gateways(found: dict[int, bytes]) -> Iterator[str]:
    if RTA_GATEWAY in found:
        yield unpack_address(found[RTA_GATEWAY])
    via = found.get(RTA_VIA, b"")
    if len(via) > _VIA_FAMILY.size and _VIA_FAMILY.unpack_from(via)[0] in {socket.AF_INET, socket.AF_INET6}:
        yield unpack_address(via[_VIA_FAMILY.size :])
