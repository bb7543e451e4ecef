"""What a logged packet says. The messages are as tests/kernel/test_packet_log.py gets them from a kernel."""

import socket
import struct

import pytest

from kroute.kernel.netlink.message import NFNETLINK_HEADER, attribute, text
from kroute.kernel.packet_log import (
    COPIED,
    NFNL_SUBSYS_ULOG,
    NFULA_PAYLOAD,
    NFULA_PREFIX,
    NFULNL_MSG_PACKET,
    LoggedPacket,
    parse_packet,
)

PACKET = NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET
PREFIX = "ingress-5e9b6f6b3d1a6cbe1c5a2b7a4d0f9e13"
ENDS4, ENDS6 = ("10.244.1.5", "10.244.2.7"), ("fd00:244:1::5", "fd00:244:2::7")
TCP, UDP, ICMP, ICMP6 = 6, 17, 1, 58
PORTS = struct.pack("!HH", 40000, 8080) + bytes(16)


def ipv4(protocol: int, behind: bytes, *, options: bytes = b"", fragment: int = 0) -> bytes:
    words = 5 + len(options) // 4
    size = words * 4 + len(behind)
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, size, 1, fragment, 64, protocol, 0)
    return head + b"".join(map(socket.inet_aton, ENDS4)) + options + behind


def ipv6(following: int, behind: bytes) -> bytes:
    ends = b"".join(socket.inet_pton(socket.AF_INET6, end) for end in ENDS6)
    return struct.pack("!IHBB", 6 << 28, len(behind), following, 64) + ends + behind


def fragment6(protocol: int, offset: int) -> bytes:
    return struct.pack("!BBHI", protocol, 0, offset << 3 | 1, 7)


def logged(packet: bytes, prefix: str = PREFIX) -> bytes:
    """The payload of the kernel's message."""
    head = NFNETLINK_HEADER.pack(socket.AF_INET, 0, 10247) + attribute(1, b"\x08\0\x04\0")
    return head + attribute(NFULA_PAYLOAD, packet) + text(NFULA_PREFIX, prefix)


TCP4, UDP6 = ipv4(TCP, PORTS), ipv6(UDP, PORTS)
FRAGMENT6 = ipv6(44, fragment6(UDP, 0) + PORTS)
BOTH = 40000, 8080
OPTIONS = struct.pack("!BB6x", UDP, 0)
"""An extension header of IPv6 of eight bytes."""


@pytest.mark.parametrize(
    ("packet", "protocol", "ports"),
    [
        (TCP4, TCP, BOTH),
        (ipv4(UDP, PORTS, options=bytes(40)), UDP, BOTH),
        (ipv4(UDP, PORTS, fragment=0x2000), UDP, BOTH),
        (ipv4(UDP, PORTS, fragment=0x2001), UDP, (None, None)),
        (ipv4(ICMP, PORTS), ICMP, (None, None)),
        (ipv4(TCP, PORTS[:3]), TCP, (None, None)),
        (UDP6, UDP, BOTH),
        (FRAGMENT6, UDP, BOTH),
        (ipv6(44, fragment6(UDP, 1) + PORTS), UDP, (None, None)),
        (ipv6(0, struct.pack("!BB14x", 60, 1) + OPTIONS + PORTS), UDP, BOTH),
        (ipv6(51, struct.pack("!BB10x", TCP, 1) + PORTS), TCP, BOTH),
        (ipv6(ICMP6, PORTS), ICMP6, (None, None)),
        (ipv6(60, struct.pack("!BB6x", 60, 0) * 20 + PORTS), 60, (None, None)),
        (ipv6(60, struct.pack("!BB", UDP, 255) + bytes(6)), UDP, (None, None)),
    ],
)
def test_a_packet_has_its_protocol_and_ports(packet: bytes, protocol: int, ports: tuple[int | None, ...]) -> None:
    ends = ENDS4 if packet[0] >> 4 == 4 else ENDS6
    assert parse_packet(logged(packet)) == LoggedPacket(PREFIX, protocol, *ends, *ports)


@pytest.mark.parametrize("packet", [b"", TCP4[:19], UDP6[:39], b"\x50" + TCP4[1:], bytes(200)])
def test_what_is_no_packet_of_ip_is_left_out(packet: bytes) -> None:
    assert parse_packet(logged(packet)) is None


def test_a_message_without_a_packet_is_left_out() -> None:
    assert parse_packet(NFNETLINK_HEADER.pack(2, 0, 1) + text(NFULA_PREFIX, PREFIX)) is None
    assert parse_packet(b"") is None


def test_no_more_of_a_packet_is_read_than_the_kernel_is_asked_for() -> None:
    far = ipv6(60, struct.pack("!BB6x", 60, 0) * 10 + struct.pack("!BB6x", UDP, 0) + PORTS)
    assert len(far) > COPIED
    assert parse_packet(logged(far)) == LoggedPacket(PREFIX, UDP, *ENDS6)
