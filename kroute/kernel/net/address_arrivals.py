"""When IPv6 addresses have really arrived.

The kernel answers RTM_NEWADDR of an IPv6 address before it is done: its route to the address is inserted later, from a
work queue (addrconf_dad_work in net/ipv6/addrconf.c, without duplicate address detection too), under the same rtnl lock
as the notification of the address, and right after it. So whoever has heard that notification, and asks for the route
then, finds it.
"""

from typing import Self

from kroute.kernel.netlink.client import NETLINK_ROUTE, NetlinkSocket
from kroute.kernel.netlink.message import attributes, iterate_messages, unpack_address
from kroute.kernel.netlink.rtnetlink import (
    ADDRESS_HEADER,
    GROUP_IPV6_ADDRESS,
    IFA_ADDRESS,
    IFA_LOCAL,
    RTM_DELADDR,
    RTM_NEWADDR,
)

RECEIVE_BUFFER = 8 * 1024 * 1024


class AddressArrivals:
    """The IPv6 addresses that arrive on one interface, or leave it before they have, from `async with` on."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._netlink = NetlinkSocket(NETLINK_ROUTE, receive_buffer=RECEIVE_BUFFER)

    async def __aenter__(self) -> Self:
        await self._netlink.open([GROUP_IPV6_ADDRESS])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._netlink.close()

    async def next(self) -> set[str]:
        """Wait for arrivals, and return every one that waits. OSError ENOBUFS when the kernel dropped some."""
        arrived: set[str] = set()
        datagram: bytes | None = await self._netlink.receive()
        while datagram is not None:
            for kind, _flags, _sequence, payload in iterate_messages(datagram):
                if kind in {RTM_NEWADDR, RTM_DELADDR} and ADDRESS_HEADER.unpack_from(payload)[4] == self._index:
                    arrived.add(_address(payload))
            datagram = self._netlink.receive_now()
        return arrived


def _address(payload: bytes) -> str:
    found = attributes(payload, ADDRESS_HEADER.size)
    return unpack_address(found.get(IFA_LOCAL) or found[IFA_ADDRESS])
