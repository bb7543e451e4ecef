"""/proc/net/ip_vs_conn: every connection that IPVS knows (net/netfilter/ipvs/ip_vs_conn.c, ip_vs_conn_seq_show)."""

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
    """A client's connection to a real server by way of a virtual server; it is forgotten after `expires` seconds.

    A template of persistence is one as well: its client has port 0.
    """

    client: str
    client_port: int
    virtual_server: VirtualServerKey
    real_server: RealServerKey
    state: str
    expires: int


async def read_connections(virtual_servers: Collection[VirtualServerKey], path: Path = CONNECTIONS) -> list[Connection]:
    """The connections by these virtual servers, in the kernel's order. The whole file is read, in a thread.

    Raises:
        KernelError: it is no such file.
    """
    return await asyncio.to_thread(_read, frozenset(virtual_servers), path)


def _read(wanted: frozenset[VirtualServerKey], path: Path) -> list[Connection]:
    with path.open() as lines:
        found = (_parse(line) for number, line in enumerate(lines) if number >= HEADING_LINES)
        try:
            return [it for it in found if it is not None and it.virtual_server in wanted]
        except UNINTELLIGIBLE as error:
            raise KernelError(f"a line of {path} cannot be understood ({error})", errno=errno.EBADMSG) from error


def _parse(line: str) -> Connection | None:
    """A line; None for one of a firewall mark or of a protocol that is none of Services."""
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
    """Canonical text of eight hexadecimal digits, or of an IPv6 address written in full."""
    if ":" in text:
        return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(text.replace(":", "")))
    return socket.inet_ntop(socket.AF_INET, bytes.fromhex(text))
