"""ip_set requests and answers as netlink messages (include/uapi/linux/netfilter/ipset/ip_set.h)."""

import struct
from collections.abc import Iterator
from functools import lru_cache
from socket import AF_INET, AF_INET6, inet_pton

from kroute.kernel.netlink.message import (
    NLA_F_NESTED,
    NLA_F_NET_BYTEORDER,
    attribute,
    attributes,
    be16,
    iterate_attributes,
    message,
    nested,
    text,
    to_be16,
    to_text,
    u8,
    unpack_address,
)

NFNL_SUBSYS_IPSET = 6
PROTOCOL_VERSION = 6
CMD_CREATE, CMD_DESTROY, CMD_FLUSH, CMD_SWAP, CMD_LIST, CMD_ADD, CMD_DEL, CMD_TYPE = 2, 3, 4, 6, 7, 9, 10, 13

ATTR_PROTOCOL, ATTR_SETNAME, ATTR_TYPENAME, ATTR_REVISION, ATTR_FAMILY, ATTR_FLAGS, ATTR_DATA, ATTR_ADT = range(1, 9)
FLAG_LIST_SETNAME = 1 << 1
FLAG_LIST_HEADER = 1 << 2

ENTRY_IP, ENTRY_CIDR, ENTRY_PORT, ENTRY_PROTO, ENTRY_IP2, ENTRY_CIDR2 = 1, 3, 4, 7, 20, 21
ADDRESS_KINDS = ((ENTRY_IP, ENTRY_CIDR), (ENTRY_IP2, ENTRY_CIDR2))
"""The attributes of an element's first and second address, each with that of its prefix length."""
CREATE_HASHSIZE, CREATE_MAXELEM, HEADER_ELEMENTS = 18, 19, 24
IPADDR_IPV4, IPADDR_IPV6 = 1, 2

Element = tuple[str | int, ...]

_NFGEN = struct.Struct("=BBH")
"""family, version, resource id."""
_ADDRESS4, _ADDRESS6 = struct.Struct("=HHHH4s"), struct.Struct("=HHHH16s")
"""An attribute that holds one attribute with an address."""
_BE32 = struct.Struct("!I")


def set_message(command: int, flags: int, *parts: bytes, family: int = AF_INET) -> bytes:
    header = _NFGEN.pack(family, 0, 0) + u8(ATTR_PROTOCOL, PROTOCOL_VERSION)
    return message(NFNL_SUBSYS_IPSET << 8 | command, flags, header + b"".join(parts))


@lru_cache(64)
def _entry_head(name: str) -> bytes:
    return _NFGEN.pack(AF_INET, 0, 0) + u8(ATTR_PROTOCOL, PROTOCOL_VERSION) + set_name(name)


def entry_message(command: int, name: str, entry: bytes) -> bytes:
    """The request to add an encoded entry to a set (CMD_ADD), or to delete it (CMD_DEL)."""
    return message(NFNL_SUBSYS_IPSET << 8 | command, 0, _entry_head(name) + entry)


def set_name(name: str) -> bytes:
    """The attribute that names the set."""
    return text(ATTR_SETNAME, name)


def second_set_name(name: str) -> bytes:
    """The attribute that names the other set of a swap (IPSET_ATTR_SETNAME2)."""
    return text(ATTR_TYPENAME, name)


def encode_create(name: str, type_name: str, revision: int, family: int, hashsize: int, maxelem: int) -> bytes:
    """The attributes that define a hash set: its name, type, family and sizes in elements."""
    sizes = _be32(CREATE_HASHSIZE, hashsize) + _be32(CREATE_MAXELEM, maxelem)
    kind = text(ATTR_TYPENAME, type_name) + u8(ATTR_REVISION, revision) + u8(ATTR_FAMILY, family)
    return set_name(name) + kind + nested(ATTR_DATA, sizes)


def encode_type_query(type_name: str, family: int) -> bytes:
    """The request for the newest revision that the kernel has of a set type."""
    return set_message(CMD_TYPE, 0, text(ATTR_TYPENAME, type_name), u8(ATTR_FAMILY, family), family=family)


def parse_type(payload: bytes) -> int:
    """The answer to `encode_type_query`: the newest revision."""
    return attributes(payload, _NFGEN.size)[ATTR_REVISION][0]


def encode_list_flags(flags: int) -> bytes:
    """The attribute that says what a listing contains."""
    return attribute(ATTR_FLAGS | NLA_F_NET_BYTEORDER, _BE32.pack(flags))


def encode_entry(words: tuple[str, ...], element: Element) -> bytes:
    """One element as CMD_ADD and CMD_DEL take it; `words` are those of the set's type ("ip", "port", ...).

    Raises ValueError if the element does not fit the type.
    """
    fields = iter(element)
    parts: list[bytes] = []
    address_kinds = iter(ADDRESS_KINDS)
    try:
        for word in words:
            if word == "port":
                parts += [u8(ENTRY_PROTO, int(next(fields))), be16(ENTRY_PORT | NLA_F_NET_BYTEORDER, int(next(fields)))]
            else:
                address, _, prefix = str(next(fields)).partition("/")
                kind, prefix_kind = next(address_kinds)
                parts.append(_encode_address(kind, address))
                if prefix:
                    parts.append(u8(prefix_kind, int(prefix)))
    except (StopIteration, OSError, OverflowError, struct.error) as error:
        raise ValueError(f"element {element} does not fit a set of {','.join(words)}") from error
    if next(fields, None) is not None:
        raise ValueError(f"element {element} does not fit a set of {','.join(words)}")
    return nested(ATTR_DATA, *parts)


def parse_name(payload: bytes) -> str:
    """The name of the set in an answer."""
    return to_text(attributes(payload, _NFGEN.size)[ATTR_SETNAME])


def parse_definition(payload: bytes) -> tuple[str, str, int, int, int] | None:
    """Name, type, family, hashsize and maxelem from a listing's header; None if it has none. A missing size is 0."""
    found = attributes(payload, _NFGEN.size)
    if ATTR_TYPENAME not in found:
        return None
    sizes = attributes(found.get(ATTR_DATA, b""))
    return (
        to_text(found[ATTR_SETNAME]),
        to_text(found[ATTR_TYPENAME]),
        found[ATTR_FAMILY][0],
        int.from_bytes(sizes.get(CREATE_HASHSIZE, b""), "big"),
        int.from_bytes(sizes.get(CREATE_MAXELEM, b""), "big"),
    )


def parse_size(payload: bytes) -> int:
    """How many elements a set has, from a listing's header (IPSET_ATTR_ELEMENTS, since Linux 4.10); -1 if unknown."""
    header = attributes(attributes(payload, _NFGEN.size).get(ATTR_DATA, b""))
    return int.from_bytes(header[HEADER_ELEMENTS], "big") if HEADER_ELEMENTS in header else -1


def parse_elements(words: tuple[str, ...], payload: bytes) -> list[Element]:
    """The elements in one part of a listing."""
    found = attributes(payload, _NFGEN.size)
    entries = iterate_attributes(found.get(ATTR_ADT, b""))
    return [tuple(_fields(words, attributes(entry))) for kind, entry in entries if kind == ATTR_DATA]


def _fields(words: tuple[str, ...], entry: dict[int, bytes]) -> Iterator[str | int]:
    address_kinds = iter(ADDRESS_KINDS)
    for word in words:
        if word == "port":
            if ENTRY_PROTO in entry:  # a bitmap of ports has no protocol
                yield entry[ENTRY_PROTO][0]
            yield to_be16(entry[ENTRY_PORT])
            continue
        kind, prefix_kind = next(address_kinds)
        address = _decode_address(entry[kind])
        if word == "net":
            prefix = entry[prefix_kind][0] if prefix_kind in entry else (128 if ":" in address else 32)
            address = f"{address}/{prefix}"
        yield address


def _encode_address(kind: int, address: str) -> bytes:
    if ":" in address:
        packed = inet_pton(AF_INET6, address)
        return _ADDRESS6.pack(24, kind | NLA_F_NESTED, 20, IPADDR_IPV6 | NLA_F_NET_BYTEORDER, packed)
    return _ADDRESS4.pack(12, kind | NLA_F_NESTED, 8, IPADDR_IPV4 | NLA_F_NET_BYTEORDER, inet_pton(AF_INET, address))


def _decode_address(payload: bytes) -> str:
    """Skip the header of the one attribute inside, which holds just the address."""
    return unpack_address(payload[4:])


def _be32(kind: int, value: int) -> bytes:
    return attribute(kind | NLA_F_NET_BYTEORDER, _BE32.pack(value))
