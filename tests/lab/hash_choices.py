"""Where the kernel's schedulers mh and sh send clients: a datagram from each of many addresses asks the kernel itself.

Run it in a namespace of its own: it adds local addresses, and every datagram leaves a connection in IPVS's table.
"""

import ipaddress
import itertools
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

CLIENTS = ("198.18.0.0/15", "fd00:198:18::/64")
"""The networks of the clients, IPv4 and IPv6."""
SERVERS = ("10.200.0.0/16", "fd00:10:200::/64")
"""The networks of real servers that are not there: the choice is all that is asked for."""
VIPS = ("10.201.0.1", "fd00:10:201::1")
_IPV6_FREEBIND = 78
"""linux/in6.h."""
_PORTS = itertools.count(20000)
"""A source port that was used before would find the connection of that time."""


def prepare() -> None:
    """Make every address of the networks, and the VIPs, local to this namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for network in (*CLIENTS, *SERVERS):
        subprocess.run(["ip", "route", "replace", "local", network, "dev", "lo"], check=True)
    for vip in VIPS:
        subprocess.run(["ip", "address", "replace", vip, "dev", "lo"], check=True)
    Path("/proc/sys/net/ipv4/vs/conntrack").write_text("0")
    Path("/proc/sys/net/ipv4/vs/expire_nodest_conn").write_text("1")


def servers(family: int, count: int) -> list[str]:
    """The first addresses of real servers."""
    return _first(SERVERS[family == socket.AF_INET6], count)


def clients(family: int, count: int) -> list[str]:
    """The first addresses of clients."""
    return _first(CLIENTS[family == socket.AF_INET6], count)


def choices(vip: str, port: int, addresses: Sequence[str]) -> dict[str, str]:
    """Send a datagram from each address, and return the real server that IPVS chose for each that it did not refuse."""
    source_port = next(_PORTS)
    family = socket.AF_INET6 if ":" in vip else socket.AF_INET
    for address in addresses:
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            if family == socket.AF_INET6:
                sender.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
            sender.bind((address, source_port))
            try:
                sender.sendto(b"?", (vip, port))
            except ConnectionRefusedError:
                continue
    return {client: server for client, at, server in _connections(vip) if at == source_port}


def _connections(vip: str) -> Iterator[tuple[str, int, str]]:
    """(client, its port, real server) of each connection to the VIP in /proc/net/ip_vs_conn."""
    for line in itertools.islice(Path("/proc/net/ip_vs_conn").read_text().splitlines(), 1, None):
        _, client, port, virtual, _, server = line.split()[:6]
        if _text(virtual) == vip:
            yield _text(client), int(port, 16), _text(server)


def _text(word: str) -> str:
    if ":" in word:
        return str(ipaddress.ip_address(word.strip("[]")))
    return socket.inet_ntoa(struct.pack("!I", int(word, 16)))


def _first(network: str, count: int) -> list[str]:
    start = ipaddress.ip_network(network).network_address + 1
    return [str(start + number) for number in range(count)]
