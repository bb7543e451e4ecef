"""Netlink messages as bytes, and how they are split into chunks."""

import asyncio
import errno
import socket
import struct

import pytest

from kroute.kernel.errors import Failure, KernelError, describe_errno
from kroute.kernel.netlink.message import (
    HEADER,
    NLM_F_ACK,
    attributes,
    be16,
    iterate_attributes,
    iterate_messages,
    message,
    nested,
    pack_address,
    text,
    to_be16,
    to_text,
    u8,
    u32,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import (
    CHUNK_BYTES,
    CHUNK_MESSAGES,
    CHUNK_SECONDS,
    LEAST_MESSAGES,
    NETLINK_ROUTE,
    NetlinkSocket,
    end_of_chunk,
    next_chunk,
)
from kroute.kernel.netlink.rtnetlink import RTM_GETLINK


def test_attributes_are_padded_to_four_bytes() -> None:
    assert u8(1, 7) == struct.pack("=HHB3x", 5, 1, 7)
    assert text(2, "rr") == struct.pack("=HH3sx", 7, 2, b"rr\0")
    assert u32(3, 9) == struct.pack("=HHI", 8, 3, 9)


def test_nested_attributes_are_read_back_without_flags() -> None:
    outer = attributes(nested(7, be16(1 | 0x4000, 80), text(2, "mh")))
    inner = attributes(outer[7])
    assert (to_be16(inner[1]), to_text(inner[2])) == (80, "mh")


def test_a_damaged_attribute_ends_the_list() -> None:
    assert list(iterate_attributes(u32(1, 5) + struct.pack("=HH", 0, 9))) == [(1, struct.pack("=I", 5))]


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1"])
def test_addresses_are_canonical(address: str) -> None:
    assert unpack_address(pack_address(address)) == address


def test_messages_of_a_datagram_are_distinguished() -> None:
    datagram = message(20, 0, b"abcd") + message(21, 0, b"")
    assert [(kind, payload) for kind, _, _, payload in iterate_messages(datagram)] == [(20, b"abcd"), (21, b"")]


async def test_an_unopened_socket_says_so() -> None:
    with pytest.raises(KernelError, match=r"open\(\) comes first"):
        await NetlinkSocket(NETLINK_ROUTE).transact([message(RTM_GETLINK, 0, b"")])


async def test_no_messages_cost_nothing() -> None:
    netlink = NetlinkSocket(NETLINK_ROUTE)
    assert await netlink.transact([]) == {}
    assert netlink.statistics.sends == 0


def test_a_failure_is_a_sentence() -> None:
    assert str(Failure("bind 10.0.0.1", errno.EEXIST)) == "cannot bind 10.0.0.1: File exists"
    assert describe_errno(4352) == "the set is full"


def test_the_header_is_that_of_netlink() -> None:
    assert HEADER.size == 16


@pytest.mark.parametrize(
    ("sizes", "chunks"),
    [
        ([], []),
        ([100], [1]),
        ([100] * 128, [128]),
        ([100] * 129, [128, 1]),
        ([CHUNK_BYTES // 2] * 3, [2, 1]),
        ([CHUNK_BYTES * 2, 1], [1, 1]),
    ],
    ids=["none", "one", "full", "one more", "big ones", "too big alone"],
)
def test_a_chunk_is_bounded_in_messages_and_bytes(sizes: list[int], chunks: list[int]) -> None:
    messages = [b"x" * size for size in sizes]
    found = []
    start = 0
    while start < len(messages):
        end = end_of_chunk(messages, start, 128)
        found.append(end - start)
        start = end
    assert found == chunks


@pytest.mark.parametrize(
    ("size", "messages", "seconds", "following"),
    [
        (CHUNK_MESSAGES, CHUNK_MESSAGES, CHUNK_SECONDS / 2, CHUNK_MESSAGES),
        (CHUNK_MESSAGES, CHUNK_MESSAGES, CHUNK_SECONDS * 4, CHUNK_MESSAGES // 4),
        (16, 16, CHUNK_SECONDS / 100, 32),
        (64, 1, 1.0, LEAST_MESSAGES),
        (32, 32, 0.0, 64),
    ],
    ids=["fast enough", "too slow", "fast again", "very slow", "no time at all"],
)
def test_chunks_are_as_large_as_the_kernel_is_fast(size: int, messages: int, seconds: float, following: int) -> None:
    assert next_chunk(size, messages, seconds) == following


class KernelSocket:
    """A netlink socket whose kernel accepts all messages but those in `refused`; its first sends raise `errors`."""

    def __init__(self, *errors: int, refused: dict[int, int] | None = None) -> None:
        self._ends = socket.socketpair()
        self._errors = list(errors)
        self._refused = refused or {}
        self._answers: list[bytes] = []
        self.sent: list[int] = []

    def fileno(self) -> int:
        return self._ends[0].fileno()

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def send(self, buffer: bytes) -> None:
        if self._errors:
            number = self._errors.pop(0)
            raise OSError(number, "refused")  # with EAGAIN, Python raises BlockingIOError
        messages = list(iterate_messages(bytes(buffer)))
        for index, (_, flags, sequence, _) in enumerate(messages, sum(self.sent)):
            number = self._refused.get(index, 0)
            if number or flags & NLM_F_ACK:
                self._answers.append(HEADER.pack(HEADER.size + 4, 2, 0, sequence, 0) + struct.pack("=i", -number))
        self.sent.append(len(messages))

    def recv(self, size: int) -> bytes:
        if not self._answers:
            raise BlockingIOError
        return self._answers.pop(0)[:size]


@pytest.fixture
def transact():
    """Send messages through a fake netlink socket, which is closed in the end."""
    sockets = []

    async def send(kernel: KernelSocket, count: int) -> dict[int, int]:
        sockets.append(kernel)
        netlink = NetlinkSocket(NETLINK_ROUTE)
        netlink._socket = kernel
        return await netlink.transact([message(20, 0, b"")] * count)

    yield send
    for each in sockets:
        each.close()


async def test_a_send_that_would_block_waits_until_there_is_room(transact) -> None:
    kernel = KernelSocket(errno.EAGAIN, errno.EAGAIN)
    assert await transact(kernel, 200) == {}
    assert sum(kernel.sent) == 200


async def test_a_send_without_memory_is_tried_again(transact) -> None:
    kernel = KernelSocket(errno.ENOBUFS, errno.ENOBUFS)
    assert await transact(kernel, 3) == {}
    assert kernel.sent == [3]


async def test_without_memory_for_long_it_fails_with_a_sentence(transact) -> None:
    kernel = KernelSocket(*[errno.ENOBUFS] * 10)
    with pytest.raises(KernelError, match="cannot send 3 netlink messages") as failed:
        await transact(kernel, 3)
    assert failed.value.errno == errno.ENOBUFS
    assert kernel.sent == []


async def test_a_kernel_that_never_has_room_is_no_end(transact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kroute.kernel.netlink.netlink_socket.SEND_TIMEOUT", 0.05)
    kernel = KernelSocket(*[errno.EAGAIN] * 1_000_000)
    with pytest.raises(KernelError, match="cannot send 3 netlink messages"):
        await transact(kernel, 3)


async def test_refusals_keep_their_messages_after_a_send_that_had_to_wait(transact) -> None:
    refused = {0: errno.EEXIST, 127: errno.ENOENT, 128: errno.ESRCH, 199: errno.EEXIST}
    assert await transact(KernelSocket(errno.EAGAIN, errno.ENOBUFS, refused=refused), 200) == refused


async def test_other_tasks_run_between_chunks(transact) -> None:
    turns: list[int] = []

    async def count() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await transact(KernelSocket(), 128 * 10)
    counting.cancel()
    assert len(turns) >= 9
