"""The digest of a legacy table: its entries as the kernel lists them, without their traffic counters.

The structures are those of include/uapi/linux/netfilter_ipv4/ip_tables.h and netfilter_ipv6/ip6_tables.h. The kernel
gives a table whole or not at all, and needs no lock for it.
"""

import errno
import os
import socket
import struct
import zlib
from typing import NamedTuple

from kroute.kernel.errors import KernelError
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
    """Where an entry has the offset of the next one, and its counters of packets and bytes; `level` is the socket's."""

    level: int
    next_offset: int
    counters: int


_COUNTERS_SIZE = 16
_LAYOUTS: dict[int, _Layout] = {
    socket.AF_INET: _Layout(socket.IPPROTO_IP, next_offset=90, counters=96),
    socket.AF_INET6: _Layout(socket.IPPROTO_IPV6, next_offset=142, counters=152),
}
_OFFSET = struct.Struct("=H")


def table_digest(family: int, name: str) -> int:
    """The digest of a table. Raises KernelError if the kernel has no such table."""
    layout = _LAYOUTS[family]
    try:
        with socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as asking:
            return _digest(_listing(asking, layout, name), layout)
    except OSError as error:
        sentence = f"cannot read table {name}: {error.strerror}; reading it in another way"
        raise KernelError(sentence, errno=error.errno) from error


def _listing(asking: socket.socket, layout: _Layout, name: str) -> bytes:
    """The points of entry and the entries. EAGAIN says that the size has changed since it was asked for."""
    for attempt in range(ATTEMPTS):
        info = ask(asking, layout.level, GET_INFO, _INFO.pack(name.encode(), *(0,) * 13))
        size = _INFO.unpack(info)[-1]
        try:
            header = _LIST_HEADER.pack(name.encode(), size)
            entries = ask(asking, layout.level, GET_ENTRIES, header + bytes(size))
        except OSError as error:
            if error.errno != errno.EAGAIN or attempt == ATTEMPTS - 1:
                raise
        else:
            return info + entries[len(header) :]
    raise AssertionError


def _digest(listing: bytes, layout: _Layout) -> int:
    whole = memoryview(listing)
    checksum = zlib.crc32(whole[: _INFO.size])
    start = _INFO.size
    while start < len(listing):
        end = start + int(_OFFSET.unpack_from(listing, start + layout.next_offset)[0])
        counters = start + layout.counters
        checksum = zlib.crc32(whole[start:counters], checksum)
        checksum = zlib.crc32(whole[counters + _COUNTERS_SIZE : end], checksum)
        if end <= start:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        start = end
    return checksum
