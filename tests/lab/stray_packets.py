"""TCP packets that no socket sends: with any flags, and outside of any window."""

import ipaddress
import socket
import struct

from tests.lab.hosts import Host
from tests.lab.servers import Answer

_ACK = 0x10
_WINDOW = 65535
_SEQUENCE_NUMBERS = (1, 1 + (1 << 31))
"""Two sequence numbers as far apart as possible: at most one of them is in the receiver's window."""


def send_out_of_window(server: Host, answer: Answer) -> None:
    """Have `server` send packets outside the window of the connection on which it gave `answer`."""
    family = socket.AF_INET6 if ":" in answer.peer else socket.AF_INET
    with server.namespace.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.bind((answer.address, 0))
        ends = (answer.address, answer.port), (answer.peer, answer.peer_port)
        for number in _SEQUENCE_NUMBERS:
            stray = segment(ends, _ACK, sequence_number=number, acknowledged=number, payload=b"!")
            raw.sendto(stray, (answer.peer, 0))


def segment(
    ends: tuple[tuple[str, int], tuple[str, int]],
    flags: int,
    *,
    sequence_number: int = 0,
    acknowledged: int = 0,
    payload: bytes = b"",
) -> bytes:
    """A TCP segment from one address and port to another, with its checksum (RFC 9293, section 3.1)."""
    (source, from_port), (destination, to_port) = ends

    def header(checksum: int) -> bytes:
        numbers = from_port, to_port, sequence_number, acknowledged, 5 << 4, flags, _WINDOW, checksum, 0
        return struct.pack("!HHIIBBHHH", *numbers)

    whole = header(0) + payload
    addresses = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    pseudo_header = addresses + struct.pack("!II", len(whole), socket.IPPROTO_TCP)
    return header(_checksum(pseudo_header + whole)) + payload


def _checksum(octets: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    padded = octets + b"\0" * (len(octets) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
