"""`nft monitor trace` on a node: the rules that the kernel says that packets have met."""

import contextlib
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.lab.cluster import Node
from tests.lab.world import Family

_TABLE = """
table {family} lab-trace {{
    chain prerouting {{
        type filter hook prerouting priority -400;
        {match} meta nftrace set 1
    }}
    chain output {{
        type filter hook output priority -400;
        {match} meta nftrace set 1
    }}
}}
"""
PATIENCE = 300.0
"""Seconds in which nft has started to listen, unless it hangs."""
_FIRST_PACKETS = "tcp flags & (syn | ack) == syn", "meta l4proto udp"
_KROUTES = re.compile(r'^trace id (\w+) ip6? kroute \S+ rule .* comment "([^"]*)"', re.MULTILINE)


class Trace:
    """What the kernel has said since `forget` was called last."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def forget(self) -> None:
        """Leave out what has been said until now."""
        self._file.read()

    def ways(self) -> list[list[str]]:
        """Return for each packet since then the comments of kroute's rules that the packet has met, in order.

        A way may lack its end: the kernel drops messages that nft does not read in time.
        """
        start = self._file.tell()
        said = self._file.read()
        self._file.seek(start)
        ways: dict[str, list[str]] = {}
        for packet, comment in _KROUTES.findall(said):
            ways.setdefault(packet, []).append(comment)
        return list(ways.values())


def _wait_until_it_listens(node: Node, family: Family, output: Path) -> None:
    """Send packets to the node itself until one has been reported."""
    kind, loopback = (socket.AF_INET6, "::1") if family.name == "IPv6" else (socket.AF_INET, "127.0.0.1")
    deadline = time.monotonic() + PATIENCE
    with node.namespace.socket(kind, socket.SOCK_DGRAM) as probe:
        while not output.stat().st_size:
            assert time.monotonic() < deadline, "nft monitor trace reports nothing"
            with contextlib.suppress(ConnectionRefusedError):
                probe.sendto(b"?", (loopback, 9))
            time.sleep(0.05)


@contextmanager
def traced(node: Node, family: Family) -> Iterator[Trace]:
    """Trace the first packets of TCP connections, and those of UDP, for the length of a `with`."""
    table = {"IPv4": "ip", "IPv6": "ip6"}[family.name]
    rules = [_TABLE.format(family=table, match=match) for match in _FIRST_PACKETS]
    node.run("nft", "-f", "-", stdin="".join(rules))
    with tempfile.NamedTemporaryFile(prefix="nft-trace-") as output, Path(output.name).open(encoding="utf-8") as said:
        with node.namespace.inside():
            monitor = subprocess.Popen(["stdbuf", "-oL", "nft", "monitor", "trace"], stdout=output)
        try:
            _wait_until_it_listens(node, family, Path(output.name))
            yield Trace(said)
        finally:
            monitor.kill()
            monitor.wait()
            node.run("nft", "delete", "table", table, "lab-trace")
