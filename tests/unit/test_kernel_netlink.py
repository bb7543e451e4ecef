"""Netlink messages as bytes, and how they are put into chunks."""

import errno
import struct

import pytest

from kroute.kernel.errors import Failure, KernelError, describe_errno
from kroute.kernel.netlink import CHUNK_BYTES, CHUNK_MESSAGES, NETLINK_ROUTE, NetlinkSocket, _chunks, iterate_messages
from kroute.kernel.netlink_message import (
    HEADER,
    attributes,
    be16,
    iterate_attributes,
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
from kroute.kernel.rtnetlink import RTM_GETLINK


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


def test_messages_of_a_datagram_are_told_apart() -> None:
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
        ([100], [(0, 1)]),
        ([100] * CHUNK_MESSAGES, [(0, CHUNK_MESSAGES)]),
        ([100] * (CHUNK_MESSAGES + 1), [(0, CHUNK_MESSAGES), (CHUNK_MESSAGES, CHUNK_MESSAGES + 1)]),
        ([CHUNK_BYTES // 2] * 3, [(0, 2), (2, 3)]),
        ([CHUNK_BYTES * 2, 1], [(0, 1), (1, 2)]),
    ],
    ids=["none", "one", "full", "one more", "big ones", "too big alone"],
)
def test_a_chunk_is_bounded_in_messages_and_bytes(sizes: list[int], chunks: list[tuple[int, int]]) -> None:
    assert list(_chunks([b"x" * size for size in sizes])) == chunks
