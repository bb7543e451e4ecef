"""/proc/net/ip_vs: the whole IPVS table in one read.

What it does not say (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_info_seq_show): the scheduler flags, and the persistence
timeout in seconds (it prints jiffies, whose length nobody tells). `Parsed.incomplete` names the virtual servers for
which that matters.
"""

import asyncio
import socket
from functools import lru_cache
from typing import NamedTuple

from kroute.kernel.ipvs_objects import (
    FLAG_ONE_PACKET,
    PROTOCOL_NAMES,
    RealServerKey,
    RealServerState,
    VirtualServerKey,
    VirtualServerOptions,
    VirtualServerState,
)

LINES_A_SLICE = 2000
HEADING_LINES = 3
FLAG_SCHEDULERS = frozenset({"mh", "sh"})
"""The schedulers that take flags."""

_PROTOCOLS = {name: number for number, name in PROTOCOL_NAMES.items()}


class ParsedTable(NamedTuple):
    """The virtual servers (those of a firewall mark are left out), and which of them have more options than it says."""

    virtual_servers: dict[VirtualServerKey, VirtualServerState]
    incomplete: set[VirtualServerKey]


async def parse_table(contents: str) -> ParsedTable:
    """Parse the file; other tasks run between slices of it."""
    table = ParsedTable({}, set())
    lines = contents.splitlines()
    real_servers: dict[RealServerKey, RealServerState] = {}
    for start in range(HEADING_LINES, len(lines), LINES_A_SLICE):
        real_servers = _parse_slice(lines[start : start + LINES_A_SLICE], table, real_servers)
        await asyncio.sleep(0)
    return table


def _parse_slice(
    lines: list[str], table: ParsedTable, real_servers: dict[RealServerKey, RealServerState]
) -> dict[RealServerKey, RealServerState]:
    """Parse some lines; `real_servers` belong to the virtual server that was met last, and so does what is returned."""
    for line in lines:
        words = line.split()
        if words[0] == "->":
            _, endpoint, method, weight, active, inactive = words
            state = RealServerState(int(weight), int(active), int(inactive), method)
            real_servers[_decode_endpoint(endpoint)] = state
        else:
            real_servers = {}
            _add_virtual_server(words, table, real_servers)
    return real_servers


def _add_virtual_server(
    words: list[str], table: ParsedTable, real_servers: dict[RealServerKey, RealServerState]
) -> None:
    protocol = _PROTOCOLS.get(words[0])
    if protocol is None:
        return
    key = (protocol, *_decode_endpoint(words[1]))
    scheduler = words[2]
    flags = FLAG_ONE_PACKET if "ops" in words[3:] else 0
    table.virtual_servers[key] = VirtualServerState(VirtualServerOptions(scheduler, flags), real_servers)
    if scheduler in FLAG_SCHEDULERS or "persistent" in words[3:]:
        table.incomplete.add(key)


@lru_cache(16384)
def _decode_endpoint(word: str) -> tuple[str, int]:
    """`0A600001:0050` or `[fd00:0000:…:0001]:0050`."""
    address, _, port = word.rpartition(":")
    if address.startswith("["):
        text = socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, address[1:-1]))
    else:
        text = socket.inet_ntoa(bytes.fromhex(address))
    return text, int(port, 16)
