"""The base of the clients that have one netlink socket each."""

import errno
from typing import Self, TypeVar

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.netlink_socket import RECEIVE_BUFFER, NetlinkSocket
from kroute.kernel.netlink.statistics import NetlinkStatistics

Parsed = TypeVar("Parsed")


class NetlinkClient:
    """The base of clients with one netlink socket: call `open` and `close`, or use `async with`."""

    def __init__(self, protocol: int, *, receive_buffer: int = RECEIVE_BUFFER) -> None:
        self._netlink = NetlinkSocket(protocol, receive_buffer=receive_buffer)

    @property
    def statistics(self) -> NetlinkStatistics:
        return self._netlink.statistics

    async def open(self) -> None:
        """Open the socket in the network namespace of the calling thread."""
        await self._netlink.open()

    async def close(self) -> None:
        await self._netlink.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def only(answers: list[Parsed]) -> Parsed:
    """The only answer to a request. Raises KernelError EBADMSG if there is none."""
    if not answers:
        raise KernelError("the kernel did not answer a request; trying later", errno=errno.EBADMSG)
    return answers[0]
