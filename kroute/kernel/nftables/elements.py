"""The elements of sets in messages.

A network alone is two elements in the kernel: its first address, and the address after its last one, with a flag; the
network that ends with the last of all addresses has no second one.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from kroute.kernel.netlink.message import NLM_F_CREATE, attribute, attributes, iterate_attributes, text
from kroute.kernel.nftables.expressions import DATA_VALUE, LIST_ELEMENT
from kroute.kernel.nftables.messages import HEADER, LIST_ELEMENTS, LIST_SET, Message, table_message
from kroute.kernel.nftables.objects import Element, NftSet, Table, is_interval
from kroute.kernel.nftables.set_keys import decode_key, encode_key

ELEMENT_KEY, ELEMENT_FLAGS = 1, 3
_INTERVAL_END = 0x1
_END_FLAG = attribute(ELEMENT_FLAGS, _INTERVAL_END.to_bytes(4, "big"))
_HEADERS = struct.Struct("=HHHHHH")
"""Length and type of an element, of its key, and of the key's value."""
MESSAGE_ELEMENTS = 600
"""The most elements of a message: their attribute has 65,535 bytes at most, and the longest element has 100."""


def encode_element(family: int, parts: tuple[str, ...], element: Element) -> bytes:
    """The element as one or two elements of a list. Raises ValueError if it does not fit the set."""
    first, last = encode_key(family, parts, element)
    if not is_interval(parts):
        return _headers(len(first)) + first
    end = int.from_bytes(last, "big") + 1
    if end >> 8 * len(last):
        return _listed(_key(ELEMENT_KEY, first))
    return _listed(_key(ELEMENT_KEY, first)) + _listed(_key(ELEMENT_KEY, end.to_bytes(len(last), "big")) + _END_FLAG)


def elements_message(kind: Message, table: Table, set_name: str, encoded: Iterable[bytes]) -> bytes:
    """Add encoded elements to a set (NEWSETELEM), or delete them (DELSETELEM)."""
    flags = NLM_F_CREATE if kind is Message.NEWSETELEM else 0
    return table_message(kind, flags, table, text(LIST_SET, set_name), attribute(LIST_ELEMENTS, b"".join(encoded)))


class Key(NamedTuple):
    """An element as the kernel lists it, and whether it is the end of an interval."""

    value: bytes
    is_end: bool = False


def parse_keys(payload: bytes) -> list[Key]:
    """The elements of a part of a listing."""
    listed = attributes(payload, HEADER.size).get(LIST_ELEMENTS, b"")
    if keys := _plain_keys(listed):
        return keys
    found = []
    for _kind, content in iterate_attributes(listed):
        element = attributes(content)
        if ELEMENT_KEY not in element:
            continue  # a catch-all element, which has none
        is_end = bool(int.from_bytes(element.get(ELEMENT_FLAGS, b""), "big") & _INTERVAL_END)
        found.append(Key(attributes(element[ELEMENT_KEY])[DATA_VALUE], is_end))
    return found


def _plain_keys(listed: bytes) -> list[Key]:
    """The elements, if all are like the first one and have nothing but a key; none otherwise. A set may have 100,000.

    Then each begins with the same headers: of the element, of its key, and of the key's value.
    """
    headers = listed[: _HEADERS.size]
    if len(headers) < _HEADERS.size:
        return []
    length, _kind, key_length, key_kind, value_length, _value_kind = _HEADERS.unpack(headers)
    size = value_length - 4
    if (key_length, key_kind, length) != (size + 8, ELEMENT_KEY, size + 12) or size % 4 or len(listed) % length:
        return []
    parts = list(struct.iter_unpack(f"{_HEADERS.size}s{size}s", listed))
    if any(begin != headers for begin, _key in parts):
        return []
    return [Key(key) for _begin, key in parts]


def decode_elements(table: Table, of: NftSet, keys: Sequence[Key]) -> Iterator[Element]:
    """The elements of some parts of a listing; of all parts, if the set has networks alone."""
    ends = _intervals(keys) if is_interval(of.parts) else ((it.value, it.value) for it in keys)
    for first, last in ends:
        yield from decode_key(table.family, of.parts, first, last)


def _intervals(keys: Sequence[Key]) -> Iterator[tuple[bytes, bytes]]:
    """The first and last address of each interval. The listing is in no order. Before the first one may be an end."""
    if not keys:
        return
    size = len(keys[0].value)
    # At the same address the end of one interval comes before the start of the next.
    bounds = sorted((int.from_bytes(key, "big"), not is_end) for key, is_end in keys)
    for (first, is_start), (after, _) in pairwise([*bounds, (1 << 8 * size, False)]):
        if is_start:
            yield first.to_bytes(size, "big"), (after - 1).to_bytes(size, "big")


@lru_cache(64)
def _headers(size: int) -> bytes:
    """What is before a key of so many bytes, which is a multiple of four, in an element that has nothing else."""
    return _HEADERS.pack(size + 12, LIST_ELEMENT, size + 8, ELEMENT_KEY, size + 4, DATA_VALUE)


def _key(kind: int, key: bytes) -> bytes:
    return attribute(kind, attribute(DATA_VALUE, key))


def _listed(content: bytes) -> bytes:
    return attribute(LIST_ELEMENT, content)
