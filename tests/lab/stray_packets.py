"""TCP packets outside of any window, as a broken middlebox or a late retransmission sends them."""

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
        for sequence_number in _SEQUENCE_NUMBERS:
            raw.sendto(_segment(answer, sequence_number), (answer.peer, 0))


def _segment(answer: Answer, sequence_number: int) -> bytes:
    """A TCP segment of one byte with its checksum (RFC 9293, section 3.1)."""

    def header(checksum: int) -> bytes:
        return struct.pack(
            "!HHIIBBHHH",
            answer.port,
            answer.peer_port,
            sequence_number,
            sequence_number,
            5 << 4,
            _ACK,
            _WINDOW,
            checksum,
            0,
        )

    payload = b"!"
    segment = header(0) + payload
    addresses = ipaddress.ip_address(answer.address).packed + ipaddress.ip_address(answer.peer).packed
    pseudo_header = addresses + struct.pack("!II", len(segment), socket.IPPROTO_TCP)
    return header(_checksum(pseudo_header + segment)) + payload


def _checksum(octets: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    padded = octets + b"\0" * (len(octets) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
