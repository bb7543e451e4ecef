"""What the calls list that ipvsadm made before there was netlink: IPv4 alone, in a tenth of netlink's time or less.

These calls still exist (include/uapi/linux/ip_vs.h, IP_VS_SO_GET_SERVICES and IP_VS_SO_GET_DESTS). One lists all
virtual servers (net/netfilter/ipvs/ip_vs_ctl.c, __ip_vs_get_service_entries): the kernel copies 104 bytes for each,
10,000 of them in a few milliseconds. Of these, the outline is kept as it came, which is the options and the number of
real servers. Two listings are compared in a fraction of a millisecond, and parsed only where they differ.

The other call lists the real servers of one virtual server, without those of IPv6, which an IPv4 virtual server may
have if it tunnels (__ip_vs_get_dest_entries); the outline counts them.
"""

import errno
import socket
import struct
from array import array
from collections.abc import Iterable
from functools import lru_cache

from kroute.kernel.errors import KernelError, describe_errno
from kroute.kernel.ipvs.messages import FORWARDING_MASK, FORWARDING_NAMES
from kroute.kernel.ipvs.objects import (
    FLAG_PERSISTENT,
    OPTION_FLAGS,
    RealServerKey,
    RealServerState,
    StatesByServer,
    VirtualServerKey,
    VirtualServerOptions,
)
from kroute.kernel.socket_options import Writable, clear, fill

BASE = 64 + 1024 + 64
"""Of the numbers of these calls (IP_VS_BASE_CTL)."""
GET_INFO, GET_SERVICES = BASE + 1, BASE + 2
_INFO = struct.Struct("@3I")
"""struct ip_vs_getinfo: version, size of the connection table, number of IPv4 virtual servers."""
_HEAD = struct.Struct("@I0Q")
"""struct ip_vs_get_services up to its entries."""
_OUTLINE = struct.Struct("@12s36s")
"""struct ip_vs_service_entry: protocol, address, port | firewall mark to number of real servers. Statistics follow."""
_WORDS, _OUTLINE_WORDS = 13, 6
"""How many words of 8 bytes an entry has, and how many of them are before its statistics."""
_WORD = 8
_FIRST = _HEAD.size // _WORD
"""The word with which the entries begin."""
_KEY = struct.Struct("@H2x4sH2x")
_REST = struct.Struct("@I16s2I4sI")
"""Firewall mark (of the host), scheduler, flags, timeout in seconds, netmask (of the network), real servers."""
_ALL = "the virtual servers of IPv4"
_SLACK = 64
"""How many more entries there is space for than the kernel has said that there are, in case that some are added."""

GET_REAL_SERVERS = BASE + 4
_DESTS_HEAD = struct.Struct("@H2x4sH2x2I0Q")
"""struct ip_vs_get_dests up to its entries: protocol, address, port, firewall mark, space for how many entries."""
_DEST = struct.Struct("@4sH2xIi8xII4x0Q56x")
"""struct ip_vs_dest_entry: address, port, flags, weight | thresholds | active and inactive connections | those of
templates, and statistics."""
_ABSENT = b"\0\0\0\0"
_NO_DEST = bytes(_DEST.size)
FIRST_SPACE = 16
"""For how many real servers there is space at first. If it is filled, four times as much is tried."""


class Outlines:
    """The outlines of the entries of struct ip_vs_get_services; 48 bytes for each. Equal ones list the same.

    Those that differ may list the same in another order.
    """

    __slots__ = ("_columns",)

    def __init__(self, entries: "bytes | bytearray | array[int]" = b"", first: int = 0) -> None:
        """`entries` from the word `first` on. Of an array a column is taken in a third of a memoryview's time."""
        words = entries if isinstance(entries, array) else array("Q", entries)
        self._columns = tuple(words[first + at :: _WORDS] for at in range(_OUTLINE_WORDS))

    def __eq__(self, other: object) -> bool:
        return self._columns == other._columns if isinstance(other, Outlines) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def parsed(self) -> dict[bytes, bytes]:
        """By `outline_key`, what `parse_outline` understands: of all without a firewall mark."""
        rows = array("Q", bytes(_WORD * _OUTLINE_WORDS * len(self._columns[0])))
        for at, column in enumerate(self._columns):
            rows[at::_OUTLINE_WORDS] = column
        same: dict[bytes, bytes] = {}  # most virtual servers have equal options
        found = {key: same.setdefault(rest, rest) for key, rest in _OUTLINE.iter_unpack(rows)}
        for key in (outline_key((protocol, "0.0.0.0", 0)) for protocol in (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)):
            found.pop(key, None)  # firewall marks, and space that was not needed
        return found


class OutlineReader:
    """Reads the outlines of the calling thread's network namespace. It keeps its buffer: a new one costs more than to
    fill it.
    """

    def __init__(self) -> None:
        self._buffer = array("Q")

    def read(self) -> Outlines:
        """The outlines of all IPv4 virtual servers.

        Blocks for a microsecond for each at most. Raises KernelError ENOPROTOOPT if ip_vs is not loaded.
        """
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            information = bytearray(_INFO.size)
            list_into(information, asked, GET_INFO, _ALL)
            space = _INFO.unpack(information)[2] + _SLACK
            words = _FIRST + space * _WORDS
            if len(self._buffer) != words:
                self._buffer = array("Q", bytes(words * _WORD))
            else:
                clear(self._buffer)
            _HEAD.pack_into(self._buffer, 0, space)
            list_into(self._buffer, asked, GET_SERVICES, _ALL)
        if any(self._buffer[-_WORDS:]):
            raise KernelError("virtual servers are added faster than they are listed; trying later", errno=errno.EAGAIN)
        return Outlines(self._buffer, _FIRST)


def outline_key(key: VirtualServerKey) -> bytes:
    """The key of an IPv4 virtual server's outline."""
    protocol, address, port = key
    return _KEY.pack(protocol, socket.inet_aton(address), socket.htons(port))


def parse_outline_key(key: bytes) -> VirtualServerKey:
    """The opposite of `outline_key`."""
    protocol, address, port = _KEY.unpack(key)
    return protocol, socket.inet_ntoa(address), socket.ntohs(port)


@lru_cache(maxsize=256)
def parse_outline(outline: bytes) -> tuple[VirtualServerOptions, int]:
    """The options, and the number of real servers. Most virtual servers have the same."""
    _mark, scheduler, flags, timeout, netmask, real_servers = _REST.unpack(outline)
    if not flags & FLAG_PERSISTENT:
        timeout = 0
    prefix = int.from_bytes(netmask, "big").bit_count() if timeout else 0
    name = scheduler.partition(b"\0")[0].decode()
    return VirtualServerOptions(name, flags & OPTION_FLAGS, timeout, prefix), real_servers


def list_into(buffer: Writable, asked: socket.socket, call: int, what: str) -> None:
    """Have a call answer into the buffer that has its question. `what` is listed. Raises KernelError."""
    try:
        fill(asked, socket.SOL_IP, call, buffer)
    except OSError as error:
        sentence = f"cannot list {what}: {describe_errno(error.errno or 0)}"
        raise KernelError(f"{sentence}; comparing all of IPVS instead", errno=error.errno) from error


def read_real_servers(keys: Iterable[VirtualServerKey]) -> StatesByServer:
    """The IPv4 real servers of these IPv4 virtual servers, of the calling thread's network namespace.

    They are in the kernel's order, the newest first. A virtual server that does not exist has none. Raises KernelError.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        return {key: _real_servers_of(asked, key) for key in keys}


def _real_servers_of(asked: socket.socket, key: VirtualServerKey) -> dict[RealServerKey, RealServerState]:
    protocol, address, port = key
    space = FIRST_SPACE
    while True:
        buffer = bytearray(_DESTS_HEAD.size + space * _DEST.size)
        _DESTS_HEAD.pack_into(buffer, 0, protocol, socket.inet_aton(address), socket.htons(port), 0, space)
        try:
            list_into(buffer, asked, GET_REAL_SERVERS, f"the real servers of {address}")
        except KernelError as error:
            if error.errno == errno.ESRCH:
                return {}
            raise
        if buffer[-_DEST.size :] == _NO_DEST:
            return _parsed_real_servers(memoryview(buffer)[_DESTS_HEAD.size :])
        space *= 4


def _parsed_real_servers(entries: memoryview) -> dict[RealServerKey, RealServerState]:
    found = {}
    for address, port, flags, weight, active, inactive in _DEST.iter_unpack(entries):
        if address == _ABSENT:
            break
        method = FORWARDING_NAMES.get(flags & FORWARDING_MASK, "")
        state = RealServerState(weight, active, inactive, method)
        found[socket.inet_ntoa(address), socket.ntohs(port)] = state
    return found
