"""The IPv4 real servers of one IPv4 virtual server, in one system call: a tenth of what netlink takes for it.

This is one of the calls of `outlines` (IP_VS_SO_GET_DESTS). It leaves out real servers of IPv6, which an IPv4 virtual
server may have if it tunnels (net/netfilter/ipvs/ip_vs_ctl.c, __ip_vs_get_dest_entries); the outline counts them.
"""

import errno
import socket
import struct
from collections.abc import Iterable

from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.messages import FORWARDING_MASK, FORWARDING_NAMES
from kroute.kernel.ipvs.objects import RealServerKey, RealServerState, StatesByServer, VirtualServerKey
from kroute.kernel.ipvs.outlines import BASE, list_into

GET_REAL_SERVERS = BASE + 4
_HEAD = struct.Struct("@H2x4sH2x2I0Q")
"""struct ip_vs_get_dests up to its entries: protocol, address, port, firewall mark, space for how many entries."""
_ENTRY = struct.Struct("@4sH2xIi8xII4x0Q56x")
"""struct ip_vs_dest_entry: address, port, flags, weight | thresholds | active and inactive connections | those of
templates, and statistics."""
_ABSENT = b"\0\0\0\0"
_NOTHING = bytes(_ENTRY.size)
FIRST_SPACE = 16
"""For how many real servers there is space at first. If it is filled, four times as much is tried."""


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
        buffer = bytearray(_HEAD.size + space * _ENTRY.size)
        _HEAD.pack_into(buffer, 0, protocol, socket.inet_aton(address), socket.htons(port), 0, space)
        try:
            list_into(buffer, asked, GET_REAL_SERVERS, f"the real servers of {address}")
        except KernelError as error:
            if error.errno == errno.ESRCH:
                return {}
            raise
        if buffer[-_ENTRY.size :] == _NOTHING:
            return _parsed(memoryview(buffer)[_HEAD.size :])
        space *= 4


def _parsed(entries: memoryview) -> dict[RealServerKey, RealServerState]:
    found = {}
    for address, port, flags, weight, active, inactive in _ENTRY.iter_unpack(entries):
        if address == _ABSENT:
            break
        method = FORWARDING_NAMES.get(flags & FORWARDING_MASK, "")
        state = RealServerState(weight, active, inactive, method)
        found[socket.inet_ntoa(address), socket.ntohs(port)] = state
    return found
