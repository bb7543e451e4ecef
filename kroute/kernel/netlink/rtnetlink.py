"""rtnetlink's constants and headers for links, addresses and routes (include/uapi/linux/rtnetlink.h)."""

import errno
import fcntl
import socket
import struct

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.message import NLM_F_DUMP, message

GROUP_LINK, GROUP_IPV4_ADDRESS, GROUP_IPV4_ROUTE, GROUP_IPV6_ADDRESS, GROUP_IPV6_ROUTE = 1, 5, 7, 9, 11

IFNAMSIZ = 16
SIOCGIFINDEX = 0x8933
_INTERFACE_REQUEST = struct.Struct("=16si20x")
"""struct ifreq (netdevice(7)): name, index."""

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26

LINK_HEADER = struct.Struct("=BxHiII")
"""family, device type, index, flags, mask of the flags to change."""
ADDRESS_HEADER = struct.Struct("=BBBBI")
"""family, prefix length, flags, scope, interface index."""
ROUTE_HEADER = struct.Struct("=BBBBBBBBI")
"""family, destination length, source length, tos, table, protocol, scope, type, flags."""

IFF_UP = 0x1
IFF_NOARP = 0x80

IFA_ADDRESS, IFA_LOCAL, IFA_CACHEINFO, IFA_FLAGS = 1, 2, 6, 8

IFLA_IFNAME, IFLA_LINKINFO, IFLA_AF_SPEC = 3, 18, 26
IFLA_INFO_KIND = 1
IFLA_INET6_ADDR_GEN_MODE = 8
ADDR_GEN_MODE_NONE = 1

RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_MULTIPATH, RTA_TABLE, RTA_VIA = 1, 4, 5, 6, 7, 9, 15, 18
RT_TABLE_LOCAL = 255
RTN_UNICAST, RTN_LOCAL = 1, 2
RTPROT_UNSPEC = 0
RTPROT_KERNEL = 2
RTPROT_STATIC = 4

SCOPES = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
RT_SCOPE_LINK = 253
RT_SCOPE_HOST = 254
RT_SCOPE_NOWHERE = 255


def listing(kind: int, family: int, *selectors: bytes) -> bytes:
    """The request for all routes (RTM_GETROUTE) or policy rules (RTM_GETRULE) of a family, or for those selected."""
    return message(kind, NLM_F_DUMP, ROUTE_HEADER.pack(family, 0, 0, 0, 0, 0, 0, 0, 0) + b"".join(selectors))


def interface_index(name: str) -> int | None:
    """The index of a link; None if no link has that name.

    `socket.if_nametoindex` fails in the same way when it can open no socket, and a link that is there would be taken
    for missing. Raises KernelError.
    """
    encoded = name.encode()
    if len(encoded) >= IFNAMSIZ:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, SIOCGIFINDEX, _INTERFACE_REQUEST.pack(encoded, 0))
    except OSError as error:
        if error.errno == errno.ENODEV:
            return None
        raise KernelError(f"cannot look up link {name}: {error.strerror}; trying later", errno=error.errno) from error
    return int(_INTERFACE_REQUEST.unpack_from(answer)[1])
