"""The base of the clients that have one netlink socket each."""

import errno
from collections.abc import Sequence
from typing import ClassVar, Self, TypeVar

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.digest_socket import DigestSocket, DumpDigest
from kroute.kernel.netlink.netlink_socket import RECEIVE_BUFFER, NetlinkSocket, NetlinkStatistics

Parsed = TypeVar("Parsed")


class NetlinkClient:
    """The base of clients with one netlink socket: call `open` and `close`, or use `async with`."""

    protocol: ClassVar[int]
    receive_buffer: ClassVar[int] = RECEIVE_BUFFER

    def __init__(self) -> None:
        self._netlink = NetlinkSocket(self.protocol, receive_buffer=self.receive_buffer)
        self._digests: DigestSocket | None = None

    @property
    def statistics(self) -> NetlinkStatistics:
        return self._netlink.statistics

    @property
    def port(self) -> int:
        """The number that the kernel gives the open socket, also in the events that its changes cause."""
        return self._netlink.port

    async def open(self) -> None:
        """Open the socket in the network namespace of the calling thread."""
        await self._netlink.open()

    async def close(self) -> None:
        await self._netlink.close()
        if self._digests is not None:
            await self._digests.close()

    async def _digest(self, request: bytes, count: Sequence[bytes] = ()) -> DumpDigest:
        """The digest of a dump, by a socket of its own, which the first call opens. Raises KernelError."""
        self._digests = self._digests or DigestSocket(self.protocol)
        return await self._digests.digest(request, count)

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
