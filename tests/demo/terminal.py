"""A terminal of 80 columns, on which kroute prints as for a person, and which the demo reads."""

import asyncio
import os
import pty
import re
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.demo.screen import WIDTH
from tests.lab.cluster import Node
from tests.lab.kroute_process import KrouteProcess

_ROWS = 60
_ENVIRONMENT = {"COLUMNS": str(WIDTH), "LINES": str(_ROWS), "NO_COLOR": "1", "TERM": "xterm"}
_REDRAW = re.compile(r"(?:\r|\x1b\[2K|\x1b\[1A)+")
"""By this a live table goes back to its first line, over which it is drawn anew."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Any control sequence (ECMA-48), such as colours."""


def readable(printed: str) -> str:
    """What a person sees in the end: of a table that is drawn again and again, the last one, without control."""
    drawn = (_CONTROL.sub("", part) for part in _REDRAW.split(printed.replace("\r\n", "\n")))
    return next((part for part in reversed(list(drawn)) if part.strip()), "")


class Terminal:
    """What has been printed on it is read in parts."""

    def __init__(self) -> None:
        self._master, self._slave = pty.openpty()
        termios.tcsetwinsize(self._slave, (_ROWS, WIDTH))
        os.set_blocking(self._master, False)
        self._printed = bytearray()
        asyncio.get_running_loop().add_reader(self._master, self._take)

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Self]:
        """A terminal for the length of a `with`."""
        terminal = cls()
        try:
            yield terminal
        finally:
            asyncio.get_running_loop().remove_reader(terminal._master)
            os.close(terminal._master)
            os.close(terminal._slave)

    async def kroute(self, node: Node, *argv: str) -> KrouteProcess:
        """Start `kroute ARGV...` on a node, with this terminal as its output."""
        process = await KrouteProcess.start(
            [*argv, "--state-dir", str(node.state_dir)],
            namespace=node.namespace,
            state_dir=node.state_dir,
            log=Path(os.ttyname(self._slave)),
            environment=_ENVIRONMENT,
        )
        node.processes.append(process)
        return process

    def read(self) -> str:
        """What has been printed since the last time, as it is `readable`."""
        self._take()
        text = self._printed.decode()
        self._printed.clear()
        return readable(text)

    def _take(self) -> None:
        with suppress(BlockingIOError):
            while part := os.read(self._master, 1 << 16):
                self._printed += part
