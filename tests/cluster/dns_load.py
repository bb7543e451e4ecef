"""`dns_load.py SERVER FILE`: ask a DNS server again and again until the file is there; then say how it went.

Most queries have a new UDP socket each, as resolvers do it; every tenth is on one UDP socket that is kept, and every
twentieth by TCP. Nothing is asked twice. Only the standard library is needed. The answer is a JSON object: `queries`,
and `lost` with a text for each query that was not answered.
"""

import json
import socket
import struct
import sys
import time
from pathlib import Path

NAME, ADDRESS = "kubernetes.default.svc.cluster.local", "10.96.0.1"
LEAST = 600
"""Queries that are asked in any case."""
TIMEOUT = 5.0
"""Seconds after which a resolver asks again."""
PAUSE = 0.01
A = 1


def query(number: int, name: str = NAME) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", number, 0x100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, A, 1)


def family(server: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in server else socket.AF_INET


def by_udp(server: str, number: int, kept: socket.socket | None = None, name: str = NAME) -> bytes:
    """The answer. Late answers to earlier queries on a kept socket are skipped."""
    asking = kept or socket.socket(family(server), socket.SOCK_DGRAM)
    try:
        asking.settimeout(TIMEOUT)
        asking.connect((server, 53))
        asking.send(query(number, name))
        while True:
            said = asking.recv(4096)
            if said[:2] == struct.pack("!H", number):
                return said
    finally:
        if kept is None:
            asking.close()


def by_tcp(server: str, number: int) -> bytes:
    with socket.create_connection((server, 53), TIMEOUT) as stream, stream.makefile("rb") as answers:
        asked = query(number)
        stream.sendall(struct.pack("!H", len(asked)) + asked)
        return answers.read(*struct.unpack("!H", answers.read(2)))


def main(server: str, end: Path) -> None:
    lost, number = list[str](), 0
    kept = socket.socket(family(server), socket.SOCK_DGRAM)
    while number < LEAST or not end.exists():
        number += 1
        how = "TCP" if number % 20 == 0 else "kept" if number % 10 == 0 else "UDP"
        try:
            asked = number % 0xFFFF
            said = by_tcp(server, asked) if how == "TCP" else by_udp(server, asked, kept if how == "kept" else None)
        except OSError as error:
            said = repr(error).encode()
        if not said.endswith(socket.inet_aton(ADDRESS)):
            lost.append(f"{time.strftime('%T')} {how}: {said!r}")
        time.sleep(PAUSE)
    print(json.dumps({"queries": number, "lost": lost}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
