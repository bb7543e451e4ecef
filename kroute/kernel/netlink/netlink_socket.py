"""A netlink socket that sends many messages at once.

The kernel handles all messages of one `send()` before that returns. Without NLM_F_ACK it answers only the messages that
it refuses; each answer has its request's sequence number. So a chunk of messages costs two system calls: only its last
message has NLM_F_ACK, and when the answer to that arrives, all refusals have arrived before it.

A lock allows one request in flight at a time. A cancelled request leaves answers behind. Their sequence numbers are
lower than those of the next request, which skips them.
"""

import asyncio
import errno
import socket
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from kroute.kernel.errors import UNINTELLIGIBLE, KernelError, describe_errno
from kroute.kernel.netlink.message import (
    HEADER,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NLMSG_ERROR,
    NLMSG_NOOP,
    iterate_messages,
    message,
    to_i32,
)
from kroute.kernel.netlink.socket_filter import Instruction, attach

CHUNK_MESSAGES = 128
"""The most messages of a chunk. The kernel needs 20 us or more for a message."""
LEAST_MESSAGES = 16
"""The fewest messages of a chunk. When everything is slow because the machine is busy, tiny chunks would add load."""
CHUNK_SECONDS = 0.008
"""How long one chunk should take. After a chunk that took longer, the next one is smaller."""
CHUNK_BYTES = 48 * 1024
"""The most bytes of a chunk, far below a send buffer's size (net.core.wmem_default is 208 KiB)."""

Parsed = TypeVar("Parsed")

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12
NETLINK_GENERIC = 16

SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1
NETLINK_CAP_ACK = 10
NETLINK_GET_STRICT_CHK = 12
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33

SEND_TIMEOUT = 5.0
"""Seconds for which a send may wait for room in the socket's buffer."""
OUT_OF_MEMORY_WAITS = (0.01, 0.05, 0.25)
"""Seconds between attempts to send when the kernel has no memory for a message (ENOBUFS)."""
RECEIVE_BUFFER = 1 << 20
"""Bytes of datagrams that may wait in the socket, unless a client needs more."""
RECEIVE_SIZE = 64 * 1024
"""Bytes for one datagram. The kernel's dumps come in buffers of at most 32 KiB."""
DUMP_ATTEMPTS = 10
FLAGS_OFFSET = 6
SEQUENCE_OFFSET = 8
_SEQUENCE = struct.Struct("=I")

DIGEST_SEQUENCE = 1
DATAGRAMS_A_TURN = 8
"""Datagrams of a digest, of up to 32 KiB, that are read before other tasks run."""
_DONE_SIZE = HEADER.size + 4
"""The last message of a dump holds an error number."""
_SENDER = struct.Struct("=II")
"""How a message's header ends: sequence number, port."""


class NetlinkStatistics(msgspec.Struct):
    """What one socket has sent so far.

    `transactions` counts the chunks that `transact` has sent, and `seconds` how long they took. `first` is when the
    first one began, and `last` when the last one ended, on the monotonic clock.
    """

    messages: int = 0
    bytes: int = 0
    sends: int = 0
    transactions: int = 0
    seconds: float = 0.0
    first: float = 0.0
    last: float = 0.0


class NetlinkSocket:
    """One netlink socket in the network namespace of the calling thread, used from one event loop."""

    def __init__(self, protocol: int, *, receive_buffer: int = RECEIVE_BUFFER, send_buffer: int = 0) -> None:
        self.statistics = NetlinkStatistics()
        self._protocol = protocol
        self._receive_buffer = receive_buffer
        self._send_buffer = send_buffer
        self._socket: socket.socket | None = None
        self._sequence = 0
        self.busy = asyncio.Lock()
        self._chunk_messages = CHUNK_MESSAGES

    async def open(self, groups: Sequence[int] = (), only: Sequence[Instruction] = ()) -> None:
        """Make the socket and join the groups, behind a filter; KernelError when the kernel lacks the protocol."""
        try:
            netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, self._protocol)
        except OSError as error:
            sentence = f"cannot open a netlink socket (protocol {self._protocol}): {error.strerror}"
            raise KernelError(f"{sentence}; load the kernel module that speaks it", errno=error.errno) from error
        self.adopt(netlink, groups, only)

    def adopt(self, netlink: socket.socket, groups: Sequence[int] = (), only: Sequence[Instruction] = ()) -> None:
        """Use a netlink socket, which may be of another thread's network namespace. Raises OSError."""
        try:
            self._prepare(netlink, groups, only)
        except OSError:
            netlink.close()
            raise
        self._socket = netlink

    def _prepare(self, netlink: socket.socket, groups: Sequence[int], only: Sequence[Instruction]) -> None:
        netlink.setblocking(False)
        _enlarge_receive_buffer(netlink, self._receive_buffer)
        if self._send_buffer:
            # The kernel takes no message that is longer than the send buffer; net.core.wmem_max would be some 200 KiB.
            with suppress(PermissionError):
                netlink.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, self._send_buffer)
        netlink.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        if self._protocol == NETLINK_ROUTE:
            netlink.setsockopt(SOL_NETLINK, NETLINK_GET_STRICT_CHK, 1)
        attach(netlink, only)
        netlink.bind((0, 0))
        for group in groups:
            netlink.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)

    @property
    def port(self) -> int:
        """The number by which the kernel tells this socket apart, also in the events that its changes cause."""
        return int(self._opened().getsockname()[0])

    async def close(self) -> None:
        """Close the socket, if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def transact(self, messages: Sequence[bytes]) -> dict[int, int]:
        """Send the messages in order; return the refused ones as {index: errno}.

        Other tasks run between chunks. When this is cancelled, the changes of the chunks that were sent stay. Raises
        KernelError when the kernel's answers are lost: the outcome is unknown then, and the caller must read the state
        again.
        """
        refused: dict[int, int] = {}
        start = 0
        async with self.busy:
            while start < len(messages):
                if start:
                    await asyncio.sleep(0)
                end = end_of_chunk(messages, start, self._chunk_messages)
                began = time.monotonic()
                first = await self.send_messages(messages[start:end], NLM_F_ACK)
                for index, number in (await self._collect_errors(first, end - start)).items():
                    refused[start + index] = number
                ended = time.monotonic()
                self.count_transaction(began, ended)
                self._chunk_messages = next_chunk(self._chunk_messages, end - start, ended - began)
                start = end
        return refused

    async def request(self, question: bytes, parse: Callable[[bytes], Parsed | None]) -> list[Parsed]:
        """Send one request and return its parsed answers. `parse` gets the payload; None omits an answer.

        A dump that the kernel reports as interrupted by a change (NLM_F_DUMP_INTR) is repeated. Raises KernelError: the
        kernel's errno when it refuses, EBADMSG when an answer cannot be parsed, EINTR after DUMP_ATTEMPTS dumps.
        """
        is_dump = HEADER.unpack_from(question)[2] & NLM_F_DUMP == NLM_F_DUMP
        async with self.busy:
            for _ in range(DUMP_ATTEMPTS):
                first = await self.send_messages([question], 0 if is_dump else NLM_F_ACK)
                answers = await self._collect_answers(first, parse)
                if answers is not None:
                    return answers
        raise KernelError("the kernel's state changes faster than it can be read; trying later", errno=errno.EINTR)

    async def receive(self) -> bytes:
        """Wait for the next datagram. Raises KernelError ENOBUFS when the kernel dropped some."""
        while (datagram := self.receive_now()) is None:
            await _ready(self._opened(), to_send=False)
        return datagram

    def receive_now(self) -> bytes | None:
        """The next datagram; None if none waits. Raises KernelError as `receive` does."""
        try:
            return self._opened().recv(RECEIVE_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            sentence = f"the kernel's answers were lost ({error.strerror}); reading the state again"
            raise KernelError(sentence, errno=error.errno) from error

    async def follow(self, most: int, what: str, take: Callable[[bytes], object]) -> int | None:
        """Wait for the next datagram; have it and those that wait taken, at most so many. Returns how many these were.

        None if the kernel dropped some, or one cannot be understood. Then those that wait are dropped, too: the caller
        reads the state again. Raises KernelError; `what` is followed by the datagrams.
        """
        taken = 0
        try:
            datagram: bytes | None = await self.receive()
            while datagram is not None:
                take(datagram)
                taken += 1
                datagram = self.receive_now() if taken < most else None
        except (KernelError, *UNINTELLIGIBLE) as error:
            if isinstance(error, KernelError) and error.errno != errno.ENOBUFS:
                sentence = f"cannot follow {what}: {describe_errno(error.errno or errno.EIO)}"
                raise KernelError(sentence, errno=error.errno) from error
            self.drain()
            return None
        return taken

    def drain(self) -> None:
        """Drop the datagrams that wait, and what the kernel dropped; for a caller that reads the state again."""
        while True:
            try:
                if self.receive_now() is None:
                    return
            except KernelError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def count_transaction(self, began: float, ended: float) -> None:
        statistics = self.statistics
        statistics.transactions += 1
        statistics.seconds += ended - began
        statistics.first = statistics.first or began
        statistics.last = ended

    def _opened(self) -> socket.socket:
        if self._socket is None:
            raise KernelError("the netlink socket is not open; open() comes first", errno=errno.EBADF)
        return self._socket

    async def send_messages(self, messages: Sequence[bytes], last_flags: int) -> int:
        """Number the messages, send them at once, and return the first one's sequence number."""
        first = self._sequence + 1
        self._sequence += len(messages)
        buffer = bytearray().join(messages)
        offset = last = 0
        for sequence, piece in enumerate(messages, first):
            last = offset
            _SEQUENCE.pack_into(buffer, offset + SEQUENCE_OFFSET, sequence & 0xFFFFFFFF)
            offset += len(piece)
        buffer[last + FLAGS_OFFSET] |= last_flags
        try:
            try:
                self._opened().send(buffer)
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.ENOBUFS}:
                    raise
                async with asyncio.timeout(SEND_TIMEOUT):  # hardly ever, so most need no timer
                    await self._send_again(buffer)
        except OSError as error:  # TimeoutError is one
            reason = error.strerror or "it takes no more"
            sentence = f"cannot send {len(messages)} netlink messages: {reason}; trying later"
            raise KernelError(sentence, errno=error.errno or errno.EAGAIN) from error
        self.statistics.messages += len(messages)
        self.statistics.bytes += len(buffer)
        self.statistics.sends += 1
        return first

    async def _send_again(self, buffer: bytearray) -> None:
        """Send all messages in one datagram, once there is room and memory. A refused send has taken none of them."""
        waits = iter(OUT_OF_MEMORY_WAITS)
        while True:
            try:
                self._opened().send(buffer)
            except BlockingIOError:
                await _ready(self._opened(), to_send=True)
            except OSError as error:
                if error.errno != errno.ENOBUFS or (wait := next(waits, None)) is None:
                    raise
                await asyncio.sleep(wait)
            else:
                return

    async def _collect_errors(self, first: int, count: int) -> dict[int, int]:
        errors: dict[int, int] = {}
        while True:
            for kind, _flags, sequence, payload in iterate_messages(await self.receive()):
                index = sequence - first & 0xFFFFFFFF
                if kind != NLMSG_ERROR or index >= count:
                    continue
                if number := _error_number(payload):
                    errors[index] = number
                if index == count - 1:
                    return errors

    async def _collect_answers(self, sequence: int, parse: Callable[[bytes], Parsed | None]) -> list[Parsed] | None:
        """All answers; None if a change interrupted the dump."""
        answers: list[Parsed] = []
        interrupted = False
        while True:
            for kind, flags, answered, payload in iterate_messages(await self.receive()):
                if answered != sequence & 0xFFFFFFFF:
                    continue
                interrupted = interrupted or bool(flags & NLM_F_DUMP_INTR)
                if kind in {NLMSG_DONE, NLMSG_ERROR}:
                    number = _error_number(payload)
                    if number > 0:
                        raise _refusal(number)
                    return None if interrupted else answers
                try:
                    answer = parse(payload)
                except UNINTELLIGIBLE as error:
                    sentence = f"an answer of the kernel (type {kind}) cannot be understood; reading the state again"
                    raise KernelError(sentence, errno=errno.EBADMSG) from error
                if answer is not None:
                    answers.append(answer)
            await asyncio.sleep(0)


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
        async with self.busy:
            if self._socket is None:
                await self.open()
                # By the buffer for this answer the kernel learns how long the parts of a listing may be, and keeps to
                # it: some listings have as many objects in a message as fit in.
                await self.send_messages([message(NLMSG_NOOP, 0, b"")], NLM_F_ACK)
                await self.receive()
            try:
                return await self._digest(request, count)
            except BaseException:
                await self.close()  # the rest of the answer would be taken for that of the next request
                raise

    async def _digest(self, request: bytes, count: Sequence[bytes]) -> DumpDigest:
        self._sequence = DIGEST_SEQUENCE - 1
        await self.send_messages([request], 0)
        sender = _SENDER.pack(DIGEST_SEQUENCE, self.port)
        checksum = messages = datagrams = 0
        counts = [0] * len(count)
        first = b""
        while True:
            datagram = await self.receive()
            if not datagrams:
                kind, _flags, _sequence, first = next(iterate_messages(datagram))
                if kind == NLMSG_ERROR:
                    raise _refusal(_error_number(first))
            checksum = zlib.crc32(datagram, checksum)
            messages += datagram.count(sender)
            for at, searched in enumerate(count):
                counts[at] += datagram.count(searched)
            if _ends_dump(datagram):
                return DumpDigest(checksum, messages - 1, tuple(counts), first)
            datagrams += 1
            if datagrams % DATAGRAMS_A_TURN == 0:
                await asyncio.sleep(0)


def _ends_dump(datagram: bytes) -> bool:
    """Whether the dump of a digest ends in this datagram. Raises KernelError if it ends early."""
    if len(datagram) < _DONE_SIZE:
        return False
    length, kind, _flags, sequence, _port = HEADER.unpack_from(datagram, len(datagram) - _DONE_SIZE)
    is_end = (length, kind, sequence) == (_DONE_SIZE, NLMSG_DONE, DIGEST_SEQUENCE)
    if is_end and (number := _error_number(datagram[-4:])) > 0:
        raise _refusal(number)
    return is_end


def _refusal(number: int) -> KernelError:
    return KernelError(f"the kernel refused a request: {describe_errno(number)}", errno=number or errno.EBADMSG)


def _error_number(payload: bytes) -> int:
    return -to_i32(payload) if len(payload) >= 4 else 0


async def _ready(netlink: socket.socket, *, to_send: bool) -> None:
    """Wait until there is something to receive, or room to send."""
    loop = asyncio.get_running_loop()
    watch, unwatch = (loop.add_writer, loop.remove_writer) if to_send else (loop.add_reader, loop.remove_reader)
    is_ready = asyncio.Event()
    watch(netlink, is_ready.set)
    try:
        await is_ready.wait()
    finally:
        unwatch(netlink)


def _enlarge_receive_buffer(netlink: socket.socket, size: int) -> None:
    """Set the receive buffer's size in bytes; with the privilege, beyond net.core.rmem_max."""
    try:
        netlink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, size)
    except PermissionError:
        netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def end_of_chunk(messages: Sequence[bytes], start: int, most: int) -> int:
    """The end of the chunk that begins at `start`: `most` messages and CHUNK_BYTES at most, one message at least."""
    size = 0
    end = min(start + most, len(messages))
    for index in range(start, end):
        size += len(messages[index])
        if size > CHUNK_BYTES and index > start:
            return index
    return end


def next_chunk(size: int, messages: int, seconds: float) -> int:
    """The limit of the next chunk, after one with the limit `size` whose `messages` messages took `seconds`."""
    fitting = int(messages * CHUNK_SECONDS / seconds) if seconds > 0 else CHUNK_MESSAGES
    return max(LEAST_MESSAGES, min(CHUNK_MESSAGES, 2 * size, fitting))
