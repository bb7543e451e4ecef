"""Next hops, parsed from the kernel's route messages."""

import socket
import struct

import pytest

from kroute.kernel.net.next_hops import parse_next_hops
from kroute.kernel.netlink.message import attribute, pack_address
from kroute.kernel.netlink.rtnetlink import (
    ROUTE_HEADER,
    RTA_DST,
    RTA_GATEWAY,
    RTA_MULTIPATH,
    RTA_VIA,
    RTN_UNICAST,
    RTPROT_KERNEL,
    RTPROT_STATIC,
)


def route(*attributes: bytes, protocol: int = RTPROT_STATIC) -> bytes:
    header = ROUTE_HEADER.pack(socket.AF_INET, 24, 0, 0, 254, protocol, 0, RTN_UNICAST, 0)
    return header + attribute(RTA_DST, pack_address("203.0.113.0")) + b"".join(attributes)


def hop(*attributes: bytes) -> bytes:
    body = b"".join(attributes)
    return struct.pack("=HBBi", 8 + len(body), 0, 0, 2) + body


GATEWAY = attribute(RTA_GATEWAY, pack_address("192.0.2.1"))
OTHER = attribute(RTA_GATEWAY, pack_address("192.0.2.2"))
VIA = attribute(RTA_VIA, struct.pack("=H", socket.AF_INET6) + pack_address("fe80::9"))
UNKNOWN = attribute(RTA_VIA, struct.pack("=H", 28) + b"label")

ROUTES = {
    "a gateway": (route(GATEWAY), ["192.0.2.1"]),
    "none": (route(), []),
    "one of the other family": (route(VIA), ["fe80::9"]),
    "one of no family of ours": (route(UNKNOWN), []),
    "several": (
        route(attribute(RTA_MULTIPATH, hop(GATEWAY) + hop() + hop(VIA) + hop(OTHER))),
        ["192.0.2.1", "fe80::9", "192.0.2.2"],
    ),
    "several, cut short": (route(attribute(RTA_MULTIPATH, hop(GATEWAY) + hop(OTHER)[:9])), ["192.0.2.1"]),
    "several, of no length": (route(attribute(RTA_MULTIPATH, bytes(64))), []),
    "the kernel's own": (route(GATEWAY, protocol=RTPROT_KERNEL), []),
}


@pytest.mark.parametrize(("payload", "expected"), ROUTES.values(), ids=list(ROUTES))
def test_the_next_hops_of(payload: bytes, expected: list[str]) -> None:
    assert parse_next_hops(payload) == expected
