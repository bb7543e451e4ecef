"""Looks up the route of a packet that this node sends, as `ip route get` does."""

import socket
from typing import NamedTuple

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import (
    address_family,
    attribute,
    attributes,
    message,
    pack_address,
    to_u32,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE
from kroute.kernel.netlink.rtnetlink import ROUTE_HEADER, RTA_DST, RTA_OIF, RTA_PREFSRC, RTM_GETROUTE, RTN_LOCAL


class Way(NamedTuple):
    """A route. `is_local`: it delivers to this node. `source`: the source address that the kernel chooses for it."""

    is_local: bool
    interface: str
    source: str | None


class RouteLookup(NetlinkClient):
    """The routing of the calling process's network namespace."""

    def __init__(self) -> None:
        super().__init__(NETLINK_ROUTE)

    async def towards(self, address: str) -> Way | None:
        """The route to an address; None if no packet can go there."""
        packed = pack_address(address)
        header = ROUTE_HEADER.pack(address_family(address), len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
        query = message(RTM_GETROUTE, 0, header + attribute(RTA_DST, packed))
        try:
            found = await self._netlink.request(query, lambda _, payload: _parse(payload))
        except KernelError as error:
            if error.errno is None:
                raise
            return None  # unreachable, prohibited, or no such family
        return found[0] if found else None


def _parse(payload: bytes) -> Way:
    kind = ROUTE_HEADER.unpack_from(payload)[7]
    found = attributes(payload, ROUTE_HEADER.size)
    index = to_u32(found[RTA_OIF]) if RTA_OIF in found else 0
    source = unpack_address(found[RTA_PREFSRC]) if RTA_PREFSRC in found else None
    return Way(kind == RTN_LOCAL, dict(socket.if_nameindex()).get(index, ""), source)
