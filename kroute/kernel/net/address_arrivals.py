"""Waits until the kernel has added an IPv6 address together with its route.

The kernel answers RTM_NEWADDR of an IPv6 address before it has finished. It adds its route to the address later, from a
work queue (addrconf_dad_work in net/ipv6/addrconf.c, even without duplicate address detection). It does so right after
the notification of the address, under the same rtnl lock. So a request about the route that is sent after the
notification finds the route.
"""

from typing import Self

from kroute.kernel.netlink.message import attributes, iterate_messages, unpack_address
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE, NetlinkSocket
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
    """The IPv6 addresses that the kernel adds to one interface or deletes from it, from `async with` on."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._netlink = NetlinkSocket(NETLINK_ROUTE, receive_buffer=RECEIVE_BUFFER)

    async def __aenter__(self) -> Self:
        await self._netlink.open([GROUP_IPV6_ADDRESS])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._netlink.close()

    async def next(self) -> set[str]:
        """Wait for addresses, and return all that wait. Raises OSError ENOBUFS when the kernel dropped some."""
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
