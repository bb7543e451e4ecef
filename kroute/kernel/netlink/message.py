"""Netlink messages and attributes as bytes (include/uapi/linux/netlink.h)."""

import os
import socket
import struct
from collections.abc import Iterator, Mapping

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400

NLMSG_NOOP = 1
NLMSG_ERROR = 2
NLMSG_DONE = 3

NLA_F_NESTED = 0x8000
NLA_F_NET_BYTEORDER = 0x4000
NLA_TYPE_MASK = 0x3FFF

HEADER = struct.Struct("=IHHII")
"""length, type, flags, sequence number, port id."""
HEADER_SIZE = HEADER.size

_ATTRIBUTE = struct.Struct("=HH")
_U16 = struct.Struct("=H")
_U32 = struct.Struct("=I")
_I32 = struct.Struct("=i")
_U64 = struct.Struct("=Q")
_BE16 = struct.Struct("!H")
_BE32 = struct.Struct("!I")
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")

NFNETLINK_HEADER = struct.Struct("!BBH")
"""family, version, resource id: begins the payload of every message of nfnetlink (linux/netfilter/nfnetlink.h)."""


def message(kind: int, flags: int, payload: bytes) -> bytes:
    """A request with sequence number 0; `NetlinkSocket` fills in the number."""
    return HEADER.pack(HEADER_SIZE + len(payload), kind, NLM_F_REQUEST | flags, 0, 0) + payload


def nfnetlink_message(subsystem: int, command: int, flags: int, family: int, *attributes: bytes) -> bytes:
    """A request to a subsystem of nfnetlink."""
    return message(subsystem << 8 | command, flags, NFNETLINK_HEADER.pack(family, 0, 0) + b"".join(attributes))


def iterate_messages(datagram: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """The messages of one datagram as (type, flags, sequence number, payload)."""
    offset = 0
    end = len(datagram)
    while offset + HEADER_SIZE <= end:
        length, kind, flags, sequence, _port = HEADER.unpack_from(datagram, offset)
        if length < HEADER_SIZE:
            return
        yield kind, flags, sequence, datagram[offset + HEADER_SIZE : offset + length]
        offset += (length + 3) & ~3


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to a multiple of four bytes."""
    length = 4 + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + _PADDING[length & 3]


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | NLA_F_NESTED, b"".join(attributes))


def u8(kind: int, value: int) -> bytes:
    """An attribute that holds one byte."""
    return attribute(kind, bytes((value,)))


def u16(kind: int, value: int) -> bytes:
    """An attribute that holds a 16-bit number in the host's byte order."""
    return attribute(kind, _U16.pack(value))


def u32(kind: int, value: int) -> bytes:
    """An attribute that holds a 32-bit number in the host's byte order."""
    return attribute(kind, _U32.pack(value))


def be16(kind: int, value: int) -> bytes:
    """An attribute that holds a 16-bit number in network byte order."""
    return attribute(kind, _BE16.pack(value))


def be32(kind: int, value: int) -> bytes:
    """An attribute that holds a 32-bit number in network byte order."""
    return attribute(kind, _BE32.pack(value))


def text(kind: int, value: str) -> bytes:
    """An attribute that holds a NUL-terminated string."""
    return attribute(kind, os.fsencode(value) + b"\0")


def to_u16(payload: bytes) -> int:
    """Read what `u16` wrote."""
    return int(_U16.unpack(payload)[0])


def to_u32(payload: bytes) -> int:
    """Read what `u32` wrote."""
    return int(_U32.unpack(payload)[0])


def number_in(found: Mapping[int, bytes], kind: int, otherwise: int = 0) -> int:
    """The 32-bit number in one of some attributes; `otherwise` if it is not among them."""
    return int(_U32.unpack(found[kind])[0]) if kind in found else otherwise


def to_u64(payload: bytes) -> int:
    """Read a 64-bit number in the host's byte order."""
    return int(_U64.unpack(payload)[0])


def to_i32(payload: bytes) -> int:
    """Read a signed 32-bit number in the host's byte order."""
    return int(_I32.unpack(payload[:4])[0])


def to_be16(payload: bytes) -> int:
    """Read what `be16` wrote."""
    return int(_BE16.unpack(payload)[0])


def to_be32(payload: bytes) -> int:
    """Read what `be32` wrote."""
    return int(_BE32.unpack(payload)[0])


def to_text(payload: bytes) -> str:
    """Read what `text` wrote. Names of interfaces and sets need not be UTF-8; other bytes become surrogates."""
    return os.fsdecode(payload.rstrip(b"\0"))


def attributes(payload: bytes, offset: int = 0) -> dict[int, bytes]:
    """The attributes that start at `offset`, by type. If a type is repeated, its last one counts."""
    found: dict[int, bytes] = {}
    end = len(payload)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(payload, offset)
        if length < 4:
            break
        found[kind & NLA_TYPE_MASK] = payload[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def iterate_attributes(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in order, as (type without flags, contents)."""
    offset, end = 0, len(payload)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(payload, offset)
        if length < 4:
            return
        yield kind & NLA_TYPE_MASK, payload[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def address_family(address: str) -> int:
    """AF_INET6 for text with a colon, else AF_INET."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def pack_address(address: str) -> bytes:
    """The address as 4 or 16 bytes in network byte order."""
    return socket.inet_pton(address_family(address), address)


def unpack_address(payload: bytes) -> str:
    """The canonical text of an address of 4 or 16 bytes."""
    return socket.inet_ntop(socket.AF_INET if len(payload) == 4 else socket.AF_INET6, payload)
