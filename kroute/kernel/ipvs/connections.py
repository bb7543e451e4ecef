"""Reads /proc/net/ip_vs_conn: every connection of IPVS (net/netfilter/ipvs/ip_vs_conn.c, ip_vs_conn_seq_show)."""

import asyncio
import errno
import socket
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from kroute.kernel.errors import UNINTELLIGIBLE, KernelError
from kroute.kernel.ipvs.objects import PROTOCOL_NAMES, RealServerKey, VirtualServerKey

CONNECTIONS = Path("/proc/net/ip_vs_conn")
HEADING_LINES = 1

_PROTOCOLS = {name: number for number, name in PROTOCOL_NAMES.items()}


class Connection(NamedTuple):
    """A client's connection through a virtual server to a real server; IPVS forgets it after `expires` seconds.

    A persistence template is listed as a connection whose client has port 0.
    """

    client: str
    client_port: int
    virtual_server: VirtualServerKey
    real_server: RealServerKey
    state: str
    expires: int


async def read_connections(virtual_servers: Collection[VirtualServerKey], path: Path = CONNECTIONS) -> list[Connection]:
    """The connections through these virtual servers, in the kernel's order. A thread reads the whole file.

    Raises:
        KernelError: a line of the file cannot be parsed.
    """
    return await asyncio.to_thread(_read, frozenset(virtual_servers), path)


def _read(wanted: frozenset[VirtualServerKey], path: Path) -> list[Connection]:
    with path.open() as lines:
        found = (_parse(line) for number, line in enumerate(lines) if number >= HEADING_LINES)
        try:
            return [
                connection for connection in found if connection is not None and connection.virtual_server in wanted
            ]
        except UNINTELLIGIBLE as error:
            raise KernelError(f"a line of {path} cannot be understood ({error})", errno=errno.EBADMSG) from error


def _parse(line: str) -> Connection | None:
    """Parse a line; None if its protocol is not TCP, UDP or SCTP, as for a firewall mark."""
    words = line.split()
    protocol, client, client_port, address, port, server, server_port, state, expires = words[:9]
    if protocol not in _PROTOCOLS:
        return None
    return Connection(
        _address(client),
        int(client_port, 16),
        (_PROTOCOLS[protocol], _address(address), int(port, 16)),
        (_address(server), int(server_port, 16)),
        state,
        int(expires),
    )


def _address(text: str) -> str:
    """The canonical text of an address: eight hexadecimal digits, or IPv6 written in full."""
    if ":" in text:
        return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(text.replace(":", "")))
    return socket.inet_ntop(socket.AF_INET, bytes.fromhex(text))
