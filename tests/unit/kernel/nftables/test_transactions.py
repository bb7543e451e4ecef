"""What goes into a transaction, without a kernel."""

import errno
import socket

from kroute.kernel.errors import Failure
from kroute.kernel.netlink.message import attribute, iterate_attributes
from kroute.kernel.nftables import expressions as e
from kroute.kernel.nftables.messages import MESSAGE_ELEMENTS, parse_keys
from kroute.kernel.nftables.objects import AddElements, AddTable, DeleteElements, Element, NftSet, Table
from kroute.kernel.nftables.transactions import (
    FIRST_PORTION,
    LARGEST_PORTION,
    LEAST_PORTION,
    encode,
    next_portion,
    portion,
    without,
)

T4, T6 = Table(socket.AF_INET, "kroute"), Table(socket.AF_INET6, "kroute")
VIPS = NftSet("vip", ("ip",))


def vips(*numbers: int) -> tuple[Element, ...]:
    return tuple((f"10.0.0.{number}",) for number in numbers)


async def test_the_first_message_has_one_element_since_the_kernel_echoes_it() -> None:
    many = tuple((f"10.0.{it >> 8}.{it & 255}",) for it in range(2500))
    pieces, unfit = await encode(T4, [AddElements(VIPS, many)])
    assert [len(parse_keys(piece.message[16:])) for piece in pieces] == [1, 600, 600, 600, 600, 99]
    assert unfit == []
    pieces, unfit = await encode(T4, [AddTable(), AddElements(VIPS, many)])
    assert [len(parse_keys(piece.message[16:])) for piece in pieces] == [0, 600, 600, 600, 600, 100]


async def test_the_longest_elements_fit_into_a_message() -> None:
    ranges = NftSet("source-network", ("ip", "port", "net"))
    longest = tuple((f"fd00::{it:x}", 6, 80, f"fd00:{it:x}::/64") for it in range(1, MESSAGE_ELEMENTS + 1))
    pieces, _unfit = await encode(T6, [AddTable(), AddElements(ranges, longest)])
    [(_kind, listed)] = [it for it in iterate_attributes(pieces[1].message[20:]) if it[0] == 3]
    assert len(listed) <= 0xFFFF - 4
    assert len(parse_keys(pieces[1].message[16:])) == MESSAGE_ELEMENTS


async def test_elements_that_do_not_fit_are_named() -> None:
    pieces, unfit = await encode(T4, [AddElements(VIPS, (*vips(1), ("fd00::1",)))])
    assert unfit == [Failure(AddElements(VIPS, (("fd00::1",),)), errno.EINVAL)]
    assert [piece.change for piece in pieces] == [AddElements(VIPS, vips(1))]


def test_portions_cut_changes_and_keep_their_order() -> None:
    changes = [AddElements(VIPS, vips(1, 2, 3)), DeleteElements(VIPS, vips(4)), AddElements(VIPS, vips(5, 6))]
    assert portion(changes, 0, 2) == [AddElements(VIPS, vips(1, 2))]
    assert portion(changes, 2, 3) == [AddElements(VIPS, vips(3)), *changes[1:2], AddElements(VIPS, vips(5))]
    assert portion(changes, 5, 100) == [AddElements(VIPS, vips(6))]
    assert portion(changes, 6, 100) == []


def test_refused_elements_are_left_out() -> None:
    changes = [AddElements(VIPS, vips(1, 2)), DeleteElements(VIPS, vips(1))]
    refused = [Failure(DeleteElements(VIPS, vips(1)), errno.ENOENT), Failure(AddElements(VIPS, vips(2)), errno.EEXIST)]
    assert without(changes, refused) == [AddElements(VIPS, vips(1))]


def test_portions_grow_and_shrink_with_the_time_that_they_take() -> None:
    assert next_portion(FIRST_PORTION, FIRST_PORTION, 0.001) == 2 * FIRST_PORTION
    assert next_portion(1000, 1000, 0.012) == 500
    assert next_portion(1000, 1000, 10) == LEAST_PORTION
    assert next_portion(LARGEST_PORTION, LARGEST_PORTION, 0.0001) == LARGEST_PORTION
    assert next_portion(1000, 3, 0.001) == 1000  # a few elements say nothing of many


def test_expressions_are_compared_by_what_we_know_of_them() -> None:
    wanted = e.lookup("vip", 1)
    [(_kind, content)] = iterate_attributes(wanted)
    [(_, name), (_, said)] = iterate_attributes(content)
    newer = attribute(1, attribute(1, name) + attribute(2, said + attribute(99, b"new")))
    assert e.is_as_wanted(wanted, wanted)
    assert e.is_as_wanted(newer, wanted)
    assert not e.is_as_wanted(e.lookup("vip", 1, inverted=True), wanted)
    assert not e.is_as_wanted(e.lookup("vips", 1), wanted)
    assert not e.is_as_wanted(b"", wanted)
    assert not e.is_as_wanted(e.masquerade(fully_random=True), e.masquerade(fully_random=False))
    assert not e.is_as_wanted(e.masquerade(fully_random=False), e.masquerade(fully_random=True))


def test_registers_are_numbered_as_nft_numbers_them() -> None:
    assert [e.register(offset) for offset in (0, 4, 8, 12, 16, 20, 32)] == [1, 9, 10, 11, 2, 13, 3]
