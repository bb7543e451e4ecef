#!/usr/bin/python3
"""Stands in for the image regression-issue-74839: a server that answers each new connection outside of its window.

A client whose node does not drop the packet as invalid resets the connection, which the log of this program says. The
end-to-end test "proxy implementation should not be vulnerable to the invalid conntrack state bug" reads that log.
"""

import ipaddress
import itertools
import os
import socket
import struct

PORT = 9000
TOO_OLD = 100_000
"""Octets by which the packet lies before the window."""
_SYN, _RST, _PSH, _ACK = 2, 4, 8, 16
_HEADER = struct.Struct("!HHIIBBHHH")


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def answer(segment: bytes, source: str, destination: str) -> bytes:
    """The TCP segment outside the window that answers the ACK `segment`, which came from `source`.

    The sum over the pseudo-header is the same for both families (RFC 9293, RFC 8200): its fields are of 16 bits there
    and of 32 bits here.
    """
    source_port, port, sequence, acknowledged, _, _, window, _, _ = _HEADER.unpack_from(segment)
    data = b"out of window"
    fields = [port, source_port, (acknowledged - TOO_OLD) % 2**32, sequence, 5 << 4, _PSH | _ACK, window, 0, 0]
    pseudo = b"".join(ipaddress.ip_address(address).packed for address in (destination, source))
    pseudo += struct.pack("!II", _HEADER.size + len(data), socket.IPPROTO_TCP)
    fields[-2] = checksum(pseudo + _HEADER.pack(*fields) + data)
    return _HEADER.pack(*fields) + data


def main() -> None:
    address = (os.environ.get("POD_IPS") or os.environ["POD_IP"]).split(",")[0]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, PORT), family=family, backlog=1024)
    raw = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP)
    raw.bind((address, 0))
    opening: set[tuple[str, int]] = set()
    print(f"listening on {address}:{PORT}; the kernel accepts, and {server.fileno()} is never read", flush=True)
    for number in itertools.count():
        packet, (source, *_) = raw.recvfrom(65536)
        segment = packet[(packet[0] & 15) * 4 :] if family == socket.AF_INET else packet  # IPv6 shows no header
        source_port, port, *_, flags, _, _, _ = _HEADER.unpack_from(segment)
        if port != PORT:
            continue
        client = source, source_port
        if flags & _RST:
            print(f"ERROR: RST received from {source}:{source_port} in packet {number}", flush=True)
        elif flags & _SYN:
            opening.add(client)
        elif flags & _ACK and client in opening:
            opening.discard(client)
            print("connection established", flush=True)
            raw.sendto(answer(segment, source, address), (source, 0))
            print("boom packet injected", flush=True)


if __name__ == "__main__":
    main()
