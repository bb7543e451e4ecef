"""pyroute2 as an independent witness of the wire formats.

It reads what kroute's encoders write, and writes what kroute's parsers read. This module has both directions, as plain
dictionaries: names in capitals are attributes, the others are fields of a header or of a struct.
"""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from hypothesis import HealthCheck
from hypothesis import strategies as st
from pyroute2.netlink import NLA_F_NESTED, NLA_F_NET_BYTEORDER, nlmsg, nlmsg_base

from kroute.kernel.netlink.rtnetlink import IFNAMSIZ, SIOCGIFINDEX
from tests.examples import examples

FAMILIES = (socket.AF_INET, socket.AF_INET6)
HEADER_SIZE = 16
"""The size of struct nlmsghdr in include/uapi/linux/netlink.h."""

witnessed = examples(25, suppress_health_check=[HealthCheck.too_slow])

families = st.sampled_from(FAMILIES)
u8s, u16s, u32s, u64s = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
ports = u16s
indexes = st.integers(1, (1 << 31) - 1)
"""Indexes of interfaces: an int above zero."""
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=15)
"""Names of interfaces and schedulers: IFNAMSIZ and IP_VS_SCHEDNAME_MAXLEN are 16, with the NUL."""


class Reading(NamedTuple):
    """A message as pyroute2 reads it; `network_order` names the attributes that are marked as in network order."""

    type: int
    flags: int
    contents: dict[str, Any]
    network_order: frozenset[str] = frozenset()


def addresses(family: int) -> st.SearchStrategy[str]:
    """Any address of the family, in canonical text."""
    size = 4 if family == socket.AF_INET else 16
    packed = st.binary(min_size=size, max_size=size) | st.sampled_from([bytes(size), b"\xff" * size])
    return packed.map(lambda value: socket.inet_ntop(family, value))


def pairs(strategy: Callable[[int], st.SearchStrategy[str]] = addresses) -> st.SearchStrategy[tuple[str, str]]:
    """Two addresses of one family."""
    return families.flatmap(lambda family: st.tuples(strategy(family), strategy(family)))


def any_address() -> st.SearchStrategy[str]:
    return families.flatmap(addresses)


def family_of(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def bits_of(address: str) -> int:
    return 128 if ":" in address else 32


def read(kind: type[nlmsg], message: bytes) -> Reading:
    """Decode a request of kroute's with pyroute2."""
    witness = kind(message)
    witness.decode()
    header = witness["header"]
    assert (header["length"], header["sequence_number"], header["pid"]) == (len(message), 0, 0)
    network_order = frozenset(slot.name for slot in _slots(witness) if slot.get_flags() & NLA_F_NET_BYTEORDER)
    return Reading(header["type"], header["flags"], _plain(witness), network_order)


def write(kind: type[nlmsg], contents: dict[str, Any], message_type: int = 0) -> bytes:
    """Encode a kernel's message with pyroute2, without its header, as kroute's parsers get it."""
    return write_datagram(kind, contents, message_type)[HEADER_SIZE:]


def write_datagram(kind: type[nlmsg], contents: dict[str, Any], message_type: int) -> bytes:
    """Encode a kernel's message with its header."""
    witness = kind()
    witness["header"]["type"] = message_type
    for name, value in _structured(contents).items():
        witness[name] = value
    witness.encode()
    return bytes(witness.data)


def _plain(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    contents = {name: value for name, value in node.items() if name not in {"attrs", "header", "__align"}}
    for slot in _attributes(node):
        assert slot.name not in contents, f"{slot.name} is there twice"
        _check_size(slot)
        contents[slot.name] = _plain(slot.value)
    return contents


def _check_size(slot: Any) -> None:
    """Check the attribute's length: pyroute2 accepts any, the kernel only that of its policy."""
    formats = "".join(format_ for _, format_ in slot.nla.fields)
    if slot.nla.nla_map:
        assert slot.get_flags() & NLA_F_NESTED, f"{slot.name} does not say that it is nested"
    elif formats and "s" not in formats:
        assert slot.nla.length == 4 + struct.calcsize("=" + formats.lstrip("!<>")), slot.name


def _attributes(node: Any) -> list[Any]:
    """Return the attributes; [] for a plain value and for a struct."""
    return node["attrs"] if isinstance(node, nlmsg_base) and "attrs" in node else []


def _slots(node: Any) -> Iterator[Any]:
    for slot in _attributes(node):
        yield slot
        yield from _slots(slot.value)


def _structured(contents: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes as pyroute2 expects them, as (name, value) pairs. A list repeats its attribute."""
    fields = {name: value for name, value in contents.items() if not name.isupper()}
    attributes = [
        (name, _structured(each) if isinstance(each, dict) else each)
        for name, value in contents.items()
        if name.isupper()
        for each in (value if isinstance(value, list) else [value])
    ]
    return {**fields, "attrs": attributes} if attributes else fields


class Netlink:
    """Replaces a client's socket: records what is sent, returns prepared answers, and has datagrams to receive."""

    def __init__(self, *answers: Collection[bytes], datagrams: Sequence[bytes] = ()) -> None:
        self.sent: list[bytes] = []
        self._answers = iter(answers)
        self._datagrams = iter(datagrams)

    async def request(self, message: bytes, parse: Callable[[bytes], Any]) -> list[Any]:
        self.sent.append(message)
        parsed = (parse(payload) for payload in next(self._answers, ()))
        return [each for each in parsed if each is not None]

    async def transact(self, messages: Sequence[bytes]) -> dict[int, int]:
        self.sent += messages
        return {}

    async def follow(self, _most: int, _what: str, take: Callable[[bytes], object]) -> int:
        return len([take(datagram) for datagram in self._datagrams])


@contextmanager
def interfaces(indexes_by_name: dict[str, int]) -> Iterator[None]:
    """Pretend that exactly these interfaces exist, for the length of the context."""

    def ioctl(_socket: object, request: int, interface_request: bytes) -> bytes:
        assert request == SIOCGIFINDEX
        name = interface_request[:IFNAMSIZ].rstrip(b"\0").decode()
        if name not in indexes_by_name:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return interface_request[:IFNAMSIZ] + struct.pack("=i20x", indexes_by_name[name])

    named = [(index, name) for name, index in indexes_by_name.items()]
    with mock.patch.object(fcntl, "ioctl", ioctl), mock.patch.object(socket, "if_nameindex", return_value=named):
        yield
