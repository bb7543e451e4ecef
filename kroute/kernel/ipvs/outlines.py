"""The outline of every IPv4 virtual server: its options and how many real servers it has, in one system call.

The calls that ipvsadm made before there was netlink still exist (include/uapi/linux/ip_vs.h, IP_VS_SO_GET_SERVICES).
They list IPv4 alone (net/netfilter/ipvs/ip_vs_ctl.c, __ip_vs_get_service_entries). The kernel copies 104 bytes for each
virtual server, 10,000 of them in a few milliseconds. Only what has changed is parsed.
"""

import errno
import socket
import struct
from collections.abc import Mapping

from kroute.kernel.errors import KernelError, describe_errno
from kroute.kernel.ipvs.objects import FLAG_PERSISTENT, OPTION_FLAGS, VirtualServerKey, VirtualServerOptions
from kroute.kernel.socket_options import ask

Outlines = Mapping[bytes, bytes]
"""By `outline_key`, what `parse_outline` understands. Two of them can be compared without parsing."""

GET_INFO, GET_SERVICES = 64 + 1024 + 64 + 1, 64 + 1024 + 64 + 2
_INFO = struct.Struct("@3I")
"""struct ip_vs_getinfo: version, size of the connection table, number of IPv4 virtual servers."""
_HEAD = struct.Struct("@I0Q")
"""struct ip_vs_get_services up to its entries."""
_ENTRY = struct.Struct("@12s36s56x")
"""struct ip_vs_service_entry: protocol, address, port | firewall mark to number of real servers | statistics."""
_KEY = struct.Struct("@H2x4sH2x")
_REST = struct.Struct("@I16s2I4sI")
"""Firewall mark (of the host), scheduler, flags, timeout in seconds, netmask (of the network), real servers."""
_SLACK = 64
"""How many more entries there is space for than the kernel has said that there are, in case that some are added."""


def read_outlines() -> Outlines:
    """The outlines of all IPv4 virtual servers without a firewall mark, of this thread's network namespace.

    Blocks for some tenths of a microsecond for each. Raises KernelError ENOPROTOOPT if ip_vs is not loaded.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        entries = _entries(asked)
    same: dict[bytes, bytes] = {}  # most virtual servers have equal options
    found = {key: same.setdefault(rest, rest) for key, rest in _ENTRY.iter_unpack(entries)}
    for key in (outline_key((protocol, "0.0.0.0", 0)) for protocol in (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)):
        found.pop(key, None)  # firewall marks, and space that was not needed
    return found


def outline_key(key: VirtualServerKey) -> bytes:
    """The key of an IPv4 virtual server's outline."""
    protocol, address, port = key
    return _KEY.pack(protocol, socket.inet_aton(address), socket.htons(port))


def parse_outline_key(key: bytes) -> VirtualServerKey:
    """The opposite of `outline_key`."""
    protocol, address, port = _KEY.unpack(key)
    return protocol, socket.inet_ntoa(address), socket.ntohs(port)


def encode_outline(options: VirtualServerOptions, real_servers: int) -> bytes:
    """What the kernel says of a virtual server, up to flags that are its own."""
    prefix = options.persistence_prefix if options.persistence_timeout else 32
    netmask = ((1 << 32) - (1 << (32 - prefix))).to_bytes(4, "big")
    flags = options.flags | (FLAG_PERSISTENT if options.persistence_timeout else 0)
    return _REST.pack(0, options.scheduler.encode(), flags, options.persistence_timeout, netmask, real_servers)


def parse_outline(outline: bytes) -> tuple[VirtualServerOptions, int]:
    """The options, and the number of real servers."""
    _mark, scheduler, flags, timeout, netmask, real_servers = _REST.unpack(outline)
    if not flags & FLAG_PERSISTENT:
        timeout = 0
    prefix = int.from_bytes(netmask, "big").bit_count() if timeout else 0
    name = scheduler.partition(b"\0")[0].decode()
    return VirtualServerOptions(name, flags & OPTION_FLAGS, timeout, prefix), real_servers


def _entries(asked: socket.socket) -> memoryview:
    """The entries as the kernel copies them, with zeros behind them."""
    information = _ask(asked, GET_INFO, bytes(_INFO.size))
    space = _INFO.unpack(information)[2] + _SLACK
    entries = _ask(asked, GET_SERVICES, _HEAD.pack(space) + bytes(space * _ENTRY.size))
    if any(entries[-_ENTRY.size :]):
        raise KernelError("virtual servers are added faster than they are listed; trying later", errno=errno.EAGAIN)
    return memoryview(entries)[_HEAD.size :]


def _ask(asked: socket.socket, option: int, question: bytes) -> bytes:
    try:
        return ask(asked, socket.SOL_IP, option, question)
    except OSError as error:
        sentence = f"cannot list the virtual servers of IPv4: {describe_errno(error.errno or 0)}"
        raise KernelError(f"{sentence}; comparing all of IPVS instead", errno=error.errno) from error
