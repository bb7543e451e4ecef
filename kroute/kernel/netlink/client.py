"""The base of the clients that have one netlink socket each, and the requests of generic netlink."""

import asyncio
import errno
import struct
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import ClassVar, Self, TypeVar

from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.netlink.message import (
    attributes,
    message,
    text,
    to_u16,
)
from kroute.kernel.netlink.netlink_socket import RECEIVE_BUFFER, DigestSocket, NetlinkSocket
from kroute.kernel.netlink.socket_filter import Instruction

ENCODE_SLICE = 256
"""How many changes are encoded before other tasks run."""
LISTINGS = 10
"""How often something is listed that changes meanwhile."""
REHASH_SECONDS = 0.05
"""How long the kernel may need to move a hash table that has grown."""
GENL_ID_CTRL = 16
CTRL_CMD_GETFAMILY = 3
CTRL_ATTR_FAMILY_ID = 1
CTRL_ATTR_FAMILY_NAME = 2

GENERIC_HEADER = struct.Struct("=BBH")
"""command, version, reserved."""

Parsed = TypeVar("Parsed")
Made = TypeVar("Made")
K = TypeVar("K")
V = TypeVar("V")


async def listed_once(what: str, read: Callable[[dict[K, V]], Awaitable[int]]) -> dict[K, V]:
    """What `read` has put into a dict when the kernel has listed nothing twice. It returns how much was listed.

    For each datagram of a list the kernel walks its hash table from the beginning, and skips as many as it has listed.
    If it has moved them to a table of another size meanwhile, it lists some twice and as many others not at all, and
    reports nothing. Raises KernelError EINTR if this happens LISTINGS times.
    """
    for _ in range(LISTINGS):
        found: dict[K, V] = {}
        if await read(found) == len(found):
            return found
        await asyncio.sleep(REHASH_SECONDS)
    raise KernelError(f"{what} changes faster than it can be read; trying later", errno=errno.EINTR)


class NetlinkClient:
    """The base of clients with one netlink socket: call `open` and `close`, or use `async with`.

    The socket joins the groups, behind a filter. No event after `open` is missed, so read the state after that.
    `digests` is a second socket, which opens itself when the first digest is asked for.
    """

    protocol: ClassVar[int]
    receive_buffer: ClassVar[int] = RECEIVE_BUFFER

    def __init__(self, groups: Sequence[int] = (), program: Sequence[Instruction] = ()) -> None:
        self._joined = groups, program
        self.netlink = NetlinkSocket(self.protocol, receive_buffer=self.receive_buffer)
        self.digests = DigestSocket(self.protocol)

    async def open(self) -> None:
        """Open the socket in the network namespace of the calling thread."""
        await self.netlink.open(*self._joined)

    async def close(self) -> None:
        await self.netlink.close()
        await self.digests.close()

    async def write_each(
        self, changes: Sequence[Made], encode: Callable[[Made], bytes], tolerated: Container[int] = ()
    ) -> list[Failure[Made]]:
        """Make the changes in order, each by one message; returns those that were refused with another errno."""
        failures: list[Failure[Made]] = []
        for start in range(0, len(changes), ENCODE_SLICE):
            part = changes[start : start + ENCODE_SLICE]
            refused = await self.netlink.transact([encode(change) for change in part])
            failures += [Failure(part[at], number) for at, number in refused.items() if number not in tolerated]
        return failures

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


def generic_message(family: int, flags: int, command: int, payload: bytes = b"") -> bytes:
    return message(family, flags, GENERIC_HEADER.pack(command, 1, 0) + payload)


async def find_family(netlink: NetlinkSocket, name: str) -> int:
    """The number of the family, valid until its module is unloaded. Raises KernelError if the kernel has none."""
    request = generic_message(GENL_ID_CTRL, 0, CTRL_CMD_GETFAMILY, text(CTRL_ATTR_FAMILY_NAME, name))
    try:
        return only(await netlink.request(request, _parse_family))
    except KernelError as error:
        sentence = f"the kernel has no {name} (generic netlink); load the module that provides it"
        raise KernelError(sentence, errno=error.errno) from error


def _parse_family(payload: bytes) -> int:
    return to_u16(attributes(payload, GENERIC_HEADER.size)[CTRL_ATTR_FAMILY_ID])
