"""How the parts of a set's elements become the key of an nf_tables set, as nft(8) would declare it.

A key is the concatenation of its fields, each padded to a multiple of four bytes. `type` numbers are nft's own
(`enum datatypes` of its datatype.h): the kernel only stores them, and nft shows the set by them.

A network alone is an interval. Behind other parts it is two fields, its first and its last address: concatenations
with intervals (pipapo) cost the kernel time for each element that a set has, whenever one is added or deleted. Sets of
ranges of ports are such concatenations, and are for what has few elements.
"""

import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network, summarize_address_range
from itertools import product

from kroute.kernel.netlink.message import attribute, be32, unpack_address
from kroute.kernel.nftables.objects import Element, has_ranges, is_interval, is_verdict_map

SET_INTERVAL, SET_MAP, SET_CONCAT = 0x4, 0x8, 0x80
DESCRIPTION_SIZE, DESCRIPTION_CONCAT = 1, 2

_IPV4_ADDR, _IPV6_ADDR, _INET_PROTO, _INET_SERVICE = 7, 8, 12, 13
_ADDRESS_TYPES: dict[int, tuple[int, int]] = {socket.AF_INET: (_IPV4_ADDR, 4), socket.AF_INET6: (_IPV6_ADDR, 16)}
"""nft's type of an address, and its length in bytes."""
_TYPE_BITS = 6
_BYTEORDER_INVALID, _BYTEORDER_BIG_ENDIAN = 0, 2

_LIST_ELEMENT, _FIELD_LENGTH = 1, 1

_PORT = struct.Struct("!BxxxHxx")
"""Protocol number and port, each padded."""


def fields(family: int, parts: Sequence[str]) -> list[tuple[int, int]]:
    """nft's type and the length in bytes of each field of the key."""
    found: list[tuple[int, int]] = []
    for part in parts:
        if part in {"port", "ports"}:
            found += [(_INET_PROTO, 1), (_INET_SERVICE, 2)]
        elif part != "jump":
            is_pair = part == "net" and not is_interval(parts) and not has_ranges(parts)
            found += [_ADDRESS_TYPES[family]] * (2 if is_pair else 1)
    return found


def key_type(family: int, parts: Sequence[str]) -> int:
    """The type of the whole key: six bits for each field."""
    number = 0
    for kind, _length in fields(family, parts):
        number = number << _TYPE_BITS | kind
    return number


@lru_cache(64)
def key_length(family: int, parts: tuple[str, ...]) -> int:
    """Bytes of the key."""
    return sum((length + 3) & ~3 for _kind, length in fields(family, parts))


def flags_of(parts: Sequence[str]) -> int:
    flags = SET_INTERVAL if is_interval(parts) else SET_INTERVAL | SET_CONCAT if has_ranges(parts) else 0
    return flags | (SET_MAP if is_verdict_map(parts) else 0)


def concatenation(family: int, parts: Sequence[str]) -> bytes:
    """The lengths of the fields, as the kernel is told those of a concatenation of intervals; else nothing."""
    if not has_ranges(parts):
        return b""
    lengths = (be32(_FIELD_LENGTH, length) for _kind, length in fields(family, parts))
    return attribute(DESCRIPTION_CONCAT, b"".join([attribute(_LIST_ELEMENT, length) for length in lengths]))


def byte_order(parts: Sequence[str]) -> bytes:
    """The order of the bytes of a key of one field, by which nft prints it; a concatenation has none."""
    order = _BYTEORDER_BIG_ENDIAN if len(parts) == 1 and parts[0] != "port" else _BYTEORDER_INVALID
    return order.to_bytes(4, sys.byteorder)


_PARTS: tuple[tuple[str, ...], ...] = (
    ("net",),
    ("net", "ports"),
    ("ip", "jump"),
    *((*before, "port", "net") for before in ((), ("ip",))),
    *(parts for count in (1, 2, 3) for parts in product(("ip", "port"), repeat=count)),
)
"""What the elements of a set of kroute's may consist of."""


def parts_of(family: int, number: int, flags: int) -> tuple[str, ...]:
    """The parts of a set by its type and flags; one part in words if kroute makes no such set."""
    kinds = ((parts, (key_type(family, parts), flags_of(parts))) for parts in _PARTS)
    return next((parts for parts, kind in kinds if kind == (number, flags)), (f"type {number}, flags {flags:#x}",))


def encode_key(family: int, parts: tuple[str, ...], element: Element) -> tuple[bytes, bytes]:
    """The first and the last key of an element, which are equal unless it is an interval.

    Raises ValueError if the element does not fit.
    """
    first = last = b""
    at = 0
    try:
        for part in parts:
            if part == "port":
                low = high = _PORT.pack(int(element[at]), int(element[at + 1]))
                at += 1
            elif part == "ports":
                low, high = (_PORT.pack(int(element[at]), int(port)) for port in element[at + 1 : at + 3])
                at += 2
            elif part == "jump":
                low = high = b""
            elif part == "net":
                low, high = _ends(str(element[at]))
                if len(parts) > 1 and not has_ranges(parts):
                    low = high = low + high
            else:
                low = high = socket.inet_pton(family, str(element[at]))
            at += 1
            first, last = first + low, last + high
    except (IndexError, OSError, ValueError, struct.error):
        at = -1
    if at != len(element) or len(first) != key_length(family, parts):
        raise ValueError(f"element {element} does not fit a set of {','.join(parts)}")
    return first, last


def decode_key(family: int, parts: Sequence[str], first: bytes, last: bytes) -> Iterator[Element]:
    """The elements between two keys: one, unless another program has added an interval that is no network."""
    size = _ADDRESS_TYPES[family][1]
    found: list[str | int] = []
    offset = 0
    for part in parts:
        if part == "port":
            found += _PORT.unpack_from(first, offset)
            offset += _PORT.size
        elif part == "ports":
            found += [*_PORT.unpack_from(first, offset), _PORT.unpack_from(last, offset)[1]]
        elif part == "net" and has_ranges(parts):
            found.append(_network(first[:size], last[:size]))
            offset += size
        elif part == "jump":
            continue
        elif part == "ip":
            found.append(unpack_address(first[offset : offset + size]))
            offset += size
        elif is_interval(parts):
            yield from ((network,) for network in networks(first, last))
            return
        else:
            found.append(_network(first[offset : offset + size], first[offset + size :]))
    yield tuple(found)


def networks(first: bytes, last: bytes) -> list[str]:
    """The networks that are together the range of two addresses, both included."""
    if len(first) == 4:
        return [str(network) for network in summarize_address_range(IPv4Address(first), IPv4Address(last))]
    return [str(network) for network in summarize_address_range(IPv6Address(first), IPv6Address(last))]


@lru_cache(4096)
def _ends(text: str) -> tuple[bytes, bytes]:
    """The first and the last address of a network, or of what `_network` makes of two addresses that are none's."""
    first, dash, last = text.partition("-")
    if dash:
        return ip_address(first).packed, ip_address(last).packed
    network = ip_network(text)
    return network.network_address.packed, network.broadcast_address.packed


@lru_cache(4096)
def _network(first: bytes, last: bytes) -> str:
    """The network with these ends. Another program may have added ends of none: `10.0.0.1-10.0.0.5`, for example."""
    size = 8 * len(first)
    low, high = int.from_bytes(first, "big"), int.from_bytes(last, "big")
    hosts = low ^ high
    if hosts & (hosts + 1) or low & hosts:
        return f"{ip_address(first)}-{ip_address(last)}"
    return f"{ip_address(first)}/{size - hosts.bit_length()}"
