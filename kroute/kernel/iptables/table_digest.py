"""The digest of a legacy table, which is that of its entries without their traffic counters; its chains and counters.

The structures are those of include/uapi/linux/netfilter_ipv4/ip_tables.h and netfilter_ipv6/ip6_tables.h. The kernel
gives a table whole or not at all, and needs no lock for it. Any socket may ask with CAP_NET_ADMIN; that of the iptables
tools is a raw one, which takes CAP_NET_RAW.
"""

import errno
import os
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.message import to_text
from kroute.kernel.socket_options import ask

GET_INFO, GET_ENTRIES = 64, 65
"""Socket options (IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES), the same for both families."""
ATTEMPTS = 5
"""How often a table is read that grows or shrinks meanwhile."""

_INFO = struct.Struct("=32s13I")
"""Name, valid hooks, five entry points, five underflows, number of entries, their bytes."""
_LIST_HEADER = struct.Struct("@32sI0Q")
"""Name and bytes, before the entries."""


class _Layout(NamedTuple):
    """Where an entry has the offsets of its target and of the next entry, and its counters of packets and bytes.

    `level` is the socket's.
    """

    level: int
    target_offset: int
    next_offset: int
    counters: int


_COUNTERS_SIZE = 16
_LAYOUTS: dict[int, _Layout] = {
    socket.AF_INET: _Layout(socket.IPPROTO_IP, target_offset=88, next_offset=90, counters=96),
    socket.AF_INET6: _Layout(socket.IPPROTO_IPV6, target_offset=140, next_offset=142, counters=152),
}
_OFFSET = struct.Struct("=H")
_PACKETS = struct.Struct("=Q")
"""The first of an entry's counters."""
_ERROR_TARGET = struct.Struct("=H29sB30s")
"""Bytes, name and revision of a target; and the chain's name, where the name is ERROR: such an entry heads a chain."""


def table_digest(family: int, listing: bytes) -> int:
    """The digest of what `read_table` has read."""
    layout, whole = _LAYOUTS[family], memoryview(listing)
    checksum = zlib.crc32(whole[: _INFO.size])
    for start, end in _entries(listing, layout):
        counters = start + layout.counters
        checksum = zlib.crc32(whole[start:counters], checksum)
        checksum = zlib.crc32(whole[counters + _COUNTERS_SIZE : end], checksum)
    return checksum


def legacy_chains(family: int, name: str) -> list[str]:
    """The chains of a table, without the built-in ones. Raises KernelError; makes a table that does not exist yet."""
    return list(legacy_packets(family, name))


def legacy_packets(family: int, name: str) -> dict[str, list[int]]:
    """How many packets have matched each rule, by its chain. Raises KernelError, and makes a table, as above."""
    layout, listing = _LAYOUTS[family], read_table(family, name)
    found: dict[str, list[int]] = {}
    rules: list[int] = []  # at first those of the built-in chains
    for start, end in _entries(listing, layout):
        if (chain := _headed(listing, start + _offset(listing, start + layout.target_offset), end)) is not None:
            rules = found[chain] = []
        else:
            rules.append(_PACKETS.unpack_from(listing, start + layout.counters)[0])
    # Without the table's end, and without the return at the end of each chain.
    return {chain: found[chain][:-1] for chain in list(found)[:-1]}


def _headed(listing: bytes, target: int, end: int) -> str | None:
    """The chain at whose head this entry is; None if it is a rule."""
    if target + _ERROR_TARGET.size > end:
        return None
    _size, kind, _revision, chain = _ERROR_TARGET.unpack_from(listing, target)
    return to_text(chain) if to_text(kind) == "ERROR" else None


def legacy_outline(family: int, name: str) -> bytes:
    """The points of entry, number and bytes of a table's entries: cheap to read, and another one after most changes.

    Raises KernelError, and makes a table, as `legacy_chains` does.
    """
    with _asking(family, name) as asking:
        return _outline(asking, _LAYOUTS[family], name)


@contextmanager
def _asking(family: int, name: str) -> Iterator[socket.socket]:
    """A socket for questions about a table, whose errors become KernelErrors."""
    tool, module = ("ip6tables", "ip6table") if family == socket.AF_INET6 else ("iptables", "iptable")
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            yield asking
    except OSError as error:
        sentence = f"cannot read {tool} table {name}: {error.strerror}; load the module {module}_{name}"
        raise KernelError(sentence, errno=error.errno) from error


def _outline(asking: socket.socket, layout: _Layout, name: str) -> bytes:
    return ask(asking, layout.level, GET_INFO, _INFO.pack(name.encode(), *(0,) * 13))


def read_table(family: int, name: str) -> bytes:
    """The points of entry and the entries. Raises KernelError, and makes a table, as `legacy_chains` does."""
    layout, left = _LAYOUTS[family], ATTEMPTS
    with _asking(family, name) as asking:
        while True:
            info, left = _outline(asking, layout, name), left - 1
            size = _INFO.unpack(info)[-1]
            header = _LIST_HEADER.pack(name.encode(), size)
            try:
                return info + ask(asking, layout.level, GET_ENTRIES, header + bytes(size))[len(header) :]
            except OSError as error:
                if error.errno != errno.EAGAIN or not left:  # EAGAIN: it has another size now
                    raise


def _offset(listing: bytes, at: int) -> int:
    return int(_OFFSET.unpack_from(listing, at)[0])


def _entries(listing: bytes, layout: _Layout) -> Iterator[tuple[int, int]]:
    """Where each entry begins and ends. Raises KernelError EBADMSG."""
    start = _INFO.size
    while start + layout.counters + _COUNTERS_SIZE <= len(listing):
        end = start + _offset(listing, start + layout.next_offset)
        if end <= start:
            raise KernelError(f"cannot read a table: {os.strerror(errno.EBADMSG)}", errno=errno.EBADMSG)
        yield start, end
        start = end
