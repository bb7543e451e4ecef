"""What the kernel of a node reports of its own changes: addresses, routes, rules of routing, and nf_tables.

A link that is made again has its addresses and routes made again. Bridges report their ports whenever they like.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.lab.cluster import Node
from tests.lab.firewall import has_nf_tables

_MARK = "203.0.113.254"
"""An address that nobody else has: a change of its route or table shows that a monitor has reported all before it."""
PATIENCE = 300.0
"""Seconds in which a monitor must have reported a change."""


class _Monitor:
    """A program that prints every change, and the pair of commands whose changes mark a moment."""

    def __init__(self, node: Node, argv: tuple[str, ...], mark: tuple[str, str], output: Path) -> None:
        self._node = node
        self._mark = mark
        self._output = output
        with output.open("wb") as file, node.namespace.inside():
            self._process = subprocess.Popen(["stdbuf", "-oL", *argv], stdout=file)

    def reported(self) -> list[str]:
        """Return the lines until now, without marks. Raises AssertionError if the monitor does not follow."""
        before, deadline = self._marks(), time.monotonic() + PATIENCE
        while self._marks() < before + 2 or not self._ends_with_a_mark():
            assert time.monotonic() < deadline, f"the monitor reports nothing: {self._output.read_text()}"
            for command in self._mark:
                self._node.run(*command.split())
            time.sleep(0.05)
        return [line for line in self._lines() if not self._is_mark(line)]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _lines(self) -> list[str]:
        return [it for line in self._output.read_text().splitlines() if (it := line.strip()) and it[0] != "#"]

    def _marks(self) -> int:
        return sum(map(self._is_mark, self._lines()))

    def _ends_with_a_mark(self) -> bool:
        lines = self._lines()
        return bool(lines) and self._is_mark(lines[-1])

    @staticmethod
    def _is_mark(line: str) -> bool:
        return _MARK in line or "lab-mark" in line


@contextmanager
def kernel_events(node: Node) -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns all changes of a node since the beginning of the `with`, a line for each."""
    kinds = {
        "ip": (
            ("ip", "monitor", "address", "route", "rule"),
            (f"ip route add blackhole {_MARK}", f"ip route del blackhole {_MARK}"),
        ),
        "nft": (("nft", "monitor"), ("nft add table ip lab-mark", "nft delete table ip lab-mark")),
    }
    with tempfile.TemporaryDirectory(prefix="kernel-events-") as directory, ExitStack() as running:
        monitors = []
        for name in kinds if has_nf_tables() else ("ip",):
            monitors.append(_Monitor(node, *kinds[name], Path(directory, name)))
            running.callback(monitors[-1].close)
        for monitor in monitors:
            monitor.reported()
        yield lambda: [line for monitor in monitors for line in monitor.reported()]
