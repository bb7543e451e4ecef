"""The base of the clients that have one netlink socket each, and the requests of generic netlink."""

import asyncio
import errno
import struct
import zlib
from collections.abc import Callable, Container, Sequence
from typing import ClassVar, Self, TypeVar

import msgspec

from kroute.kernel.errors import Failure, KernelError, describe_errno
from kroute.kernel.netlink.message import (
    HEADER,
    NLM_F_ACK,
    NLMSG_DONE,
    NLMSG_ERROR,
    attributes,
    message,
    text,
    to_i32,
    to_u16,
)
from kroute.kernel.netlink.netlink_socket import RECEIVE_BUFFER, NetlinkSocket, NetlinkStatistics

SEQUENCE = 1
NLMSG_NOOP = 1
DATAGRAMS_A_TURN = 8
"""Datagrams, of up to 32 KiB, that are read before other tasks run."""
ENCODE_SLICE = 256
"""How many changes are encoded before other tasks run."""
_DONE_SIZE = HEADER.size + 4
"""The last message of a dump holds an error number."""
_SENDER = struct.Struct("=II")
"""How a message's header ends: sequence number, port."""

GENL_ID_CTRL = 16
CTRL_CMD_GETFAMILY = 3
CTRL_ATTR_FAMILY_ID = 1
CTRL_ATTR_FAMILY_NAME = 2

GENERIC_HEADER = struct.Struct("=BBH")
"""command, version, reserved."""

Parsed = TypeVar("Parsed")
Change = TypeVar("Change")


class DumpDigest(msgspec.Struct, frozen=True):
    """Of two dumps to one socket, equal checksums mean equal bytes. `messages` are the objects of the dump.

    `counts` says how often each of the byte strings occurs that were asked for. `first` is the first message.
    """

    checksum: int
    messages: int
    counts: tuple[int, ...]
    first: bytes


class DigestSocket(NetlinkSocket):
    """A netlink socket for digests of dumps, which say whether a part of the kernel's state is as it was.

    Every request has the same sequence number, and one socket keeps its port. So equal states make equal bytes. 10,000
    addresses take 5 ms, of which the kernel needs most; to parse them takes 25 times as long. It opens itself.
    """

    async def digest(self, request: bytes, count: Sequence[bytes] = ()) -> DumpDigest:
        """Send a dump request and digest its answer.

        Raises KernelError: the kernel's errno when it refuses, and when answers are lost.
        """
        async with self._busy:
            if self._socket is None:
                await self.open()
                await self._prime()
            try:
                return await self._digest(request, count)
            except BaseException:
                await self.close()  # the rest of the answer would be taken for that of the next request
                raise

    async def _prime(self) -> None:
        """Receive an answer: by its buffer the kernel learns how long the parts of a listing may be, and keeps to it.

        Some listings have as many objects in a message as fit in.
        """
        await self._send([message(NLMSG_NOOP, 0, b"")], NLM_F_ACK)
        await self._receive_answer()

    async def _digest(self, request: bytes, count: Sequence[bytes]) -> DumpDigest:
        self._sequence = SEQUENCE - 1
        await self._send([request], 0)
        sender = _SENDER.pack(SEQUENCE, int(self._opened().getsockname()[0]))
        checksum = messages = datagrams = 0
        counts = [0] * len(count)
        first = b""
        while True:
            datagram = await self._receive_answer()
            first = first or _first_of(datagram)
            checksum = zlib.crc32(datagram, checksum)
            messages += datagram.count(sender)
            for at, searched in enumerate(count):
                counts[at] += datagram.count(searched)
            if _ends(datagram):
                return DumpDigest(checksum, messages - 1, tuple(counts), first)
            datagrams += 1
            if datagrams % DATAGRAMS_A_TURN == 0:
                await asyncio.sleep(0)


def _first_of(datagram: bytes) -> bytes:
    """The payload of the first message. Raises KernelError if that is a refusal."""
    length, kind, *_ = HEADER.unpack_from(datagram)
    payload = datagram[HEADER.size : length]
    if kind == NLMSG_ERROR:
        _raise(-to_i32(payload))
    return payload


def _ends(datagram: bytes) -> bool:
    """Whether the dump ends in this datagram. Raises KernelError if it ends early."""
    if len(datagram) < _DONE_SIZE:
        return False
    length, kind, _flags, sequence, _port = HEADER.unpack_from(datagram, len(datagram) - _DONE_SIZE)
    if (length, kind, sequence) != (_DONE_SIZE, NLMSG_DONE, SEQUENCE):
        return False
    number = -to_i32(datagram[-4:])
    if number > 0:
        _raise(number)
    return True


def _raise(number: int) -> None:
    raise KernelError(f"the kernel refused a request: {describe_errno(number)}", errno=number or errno.EBADMSG)


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

    async def _write_each(
        self, changes: Sequence[Change], encode: Callable[[Change], bytes], tolerated: Container[int] = ()
    ) -> list[Failure[Change]]:
        """Make the changes in order, each by one message; returns those that were refused with another errno."""
        failures: list[Failure[Change]] = []
        for start in range(0, len(changes), ENCODE_SLICE):
            part = changes[start : start + ENCODE_SLICE]
            refused = await self._netlink.transact([encode(change) for change in part])
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
