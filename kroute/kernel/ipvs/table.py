"""Parses /proc/net/ip_vs: the whole IPVS table in one file.

The file lacks the scheduler flags, and has the persistence timeout in jiffies, whose length is not known, instead of
seconds (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_info_seq_show). `Section.is_complete` is False where that matters.
"""

import errno
import socket
from binascii import unhexlify
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from socket import inet_ntoa
from typing import NamedTuple

from kroute.base.schedulers import SCHEDULERS_WITH_FLAGS
from kroute.kernel.errors import UNINTELLIGIBLE, KernelError
from kroute.kernel.ipvs.objects import (
    FLAG_ONE_PACKET,
    PROTOCOL_NAMES,
    RealServerKey,
    RealServerState,
    VirtualServerKey,
    VirtualServerOptions,
    VirtualServerState,
)

BYTES_A_SLICE = 64 * 1024
"""About 1,000 lines: a few milliseconds."""
BYTES_A_READ = 64 * 1024
"""The most bytes of one read. The kernel returns about 4 KiB at a time, in some tenths of a millisecond."""
HEADING_LINES = 3
REAL_SERVER = b"  -> "

_SPACE = ord(" ")
_INDENT = len(REAL_SERVER)
_IPV4_END = _INDENT + len("0A600001:0050")
"""Where the endpoint of an IPv4 real server ends; one of IPv6 is longer."""
_PROTOCOLS = {name.encode(): number for number, name in PROTOCOL_NAMES.items()}


class Section(NamedTuple):
    """A virtual server with its real servers. `is_complete`: the file has all of its options."""

    key: VirtualServerKey
    state: VirtualServerState
    is_complete: bool


def pages(table: Path) -> Iterator[bytes]:
    """The contents of the file, while they are read."""
    try:
        with table.open("rb", buffering=0) as file:
            while page := file.read(BYTES_A_READ):
                yield page
    except FileNotFoundError as error:
        raise KernelError("there is no IPVS table: load the module ip_vs; trying later", errno=error.errno) from error


def parse_table(pieces: Iterable[bytes]) -> Iterator[list[Section]]:
    """Parse the file, given in pieces that may end anywhere, in slices between which the caller may let others run.

    Virtual servers of a firewall mark are left out. Raises KernelError EBADMSG for a line that cannot be parsed.
    """
    text = b""
    heading = HEADING_LINES
    searched = 0
    for piece in pieces:
        text += piece
        while heading and (end := text.find(b"\n") + 1):
            text, heading = text[end:], heading - 1
        if not heading and len(text) >= BYTES_A_SLICE:
            if end := _last_virtual_server(text, searched):
                yield _parse_slice(text[:end].split(b"\n"))
                text = text[end:]
            searched = max(0, text.rfind(b"\n"))
    if not heading and text:
        yield _parse_slice(text.split(b"\n"))


def _last_virtual_server(text: bytes, start: int) -> int:
    """The offset of the last virtual server, whose real servers may not all have been read yet; 0 if it is the first.

    Lines of real servers begin with a space. Text before `start` was searched by an earlier call and is skipped,
    because one virtual server may have 100,000 real servers.
    """
    line = len(text)
    while line := text.rfind(b"\n", start, line) + 1:
        if line < len(text) and text[line] != _SPACE:
            return line
        line -= 1
    return 0


def _parse_slice(lines: list[bytes]) -> list[Section]:
    try:
        return _sections(lines)
    except (*UNINTELLIGIBLE, OSError) as error:
        sentence = f"a line of /proc/net/ip_vs cannot be understood ({error}); reading it again"
        raise KernelError(sentence, errno=errno.EBADMSG) from error


def _sections(lines: list[bytes]) -> list[Section]:
    """Parse the lines of some virtual servers with all of their real servers."""
    sections: list[Section] = []
    real_servers: dict[RealServerKey, RealServerState] = {}
    for line in lines:
        if line[:_INDENT] == REAL_SERVER:
            if line[_IPV4_END] == _SPACE:
                address, port = line[_INDENT : _INDENT + 8], line[_INDENT + 9 : _IPV4_END]
                real_servers[inet_ntoa(unhexlify(address)), int(port, 16)] = _decode_state(line[_IPV4_END:])
            else:
                endpoint, _, columns = line[_INDENT:].partition(b" ")
                real_servers[_decode_endpoint(endpoint)] = _decode_state(columns)
        elif line:
            real_servers = {}
            section = _decode_virtual_server(line.split(), real_servers)
            if section is not None:
                sections.append(section)
    return sections


def _decode_virtual_server(words: list[bytes], real_servers: dict[RealServerKey, RealServerState]) -> Section | None:
    protocol = _PROTOCOLS.get(words[0])
    if protocol is None:
        return None
    scheduler = words[2].decode()
    options = VirtualServerOptions(scheduler, FLAG_ONE_PACKET if b"ops" in words[3:] else 0)
    is_complete = scheduler not in SCHEDULERS_WITH_FLAGS and b"persistent" not in words[3:]
    key = (protocol, *_decode_endpoint(words[1]))
    return Section(key, VirtualServerState(options, real_servers), is_complete)


@lru_cache(1024)
def _decode_state(columns: bytes) -> RealServerState:
    """Parse method, weight, active and inactive connections. It is cached because most lines have equal columns."""
    method, weight, active, inactive = columns.split()
    return RealServerState(int(weight), int(active), int(inactive), method.decode())


def _decode_endpoint(word: bytes) -> tuple[str, int]:
    """Parse `0A600001:0050` or `[fd00:0000:…:0001]:0050`."""
    if word.startswith(b"["):
        address, _, port = word.rpartition(b":")
        text = socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, address[1:-1].decode()))
        return text, int(port, 16)
    return inet_ntoa(unhexlify(word[:8])), int(word[9:], 16)
