"""`make lab` at a terminal: a cluster with an agent on each node, and a shell that knows the nodes."""

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.places import PROJECT

pytestmark = pytest.mark.machine

PATIENCE = 1200.0
"""Seconds in which the program prints what a test waits for: only one that hangs takes so long."""


class Terminal:
    """The screen of a program, and a keyboard."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def type(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())

    def until(self, text: str) -> str:
        """Return what is printed up to and including `text`, or everything when the program ends."""
        printed = b""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in printed:
            readable, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{text!r} has not come: {printed.decode(errors='replace')}"
            try:
                printed += os.read(self._descriptor, 4096)
            except OSError:  # the program has closed its end of the terminal
                break
        return printed.decode(errors="replace")


@contextmanager
def lab_shell(*node: str) -> Iterator[Terminal]:
    """Run `make lab` on its own terminal; it must exit with 0. A test that fails in between interrupts it."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(PROJECT)
        os.environ["KROUTE_LAB"] = "vm"
        program = (sys.executable, "-m", "tests.lab.run", "-i", sys.executable, "-m", "tests.lab.shell", *node)
        os.execv(program[0], program)
    terminal = Terminal(descriptor)
    try:
        yield terminal
        terminal.until("(nothing more)")
    except BaseException:
        os.kill(pid, signal.SIGINT)
        raise
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(descriptor)
    assert os.waitstatus_to_exitcode(status) == 0


def test_beside_the_nodes_it_says_what_there_is_and_reaches_it() -> None:
    with lab_shell() as terminal:
        assert "An agent of kroute runs on each" in terminal.until("lab# ")
        for name in ("node1", "node2", "node3"):
            terminal.type(f"enter {name} kroute show services")
            assert "default/web" in terminal.until("lab# ")
        terminal.type("enter client busybox wget -qO- http://192.168.123.248:30080")
        assert '"host":"web-' in terminal.until("lab# ")
        terminal.type("exit")


def test_inside_a_node_kroute_is_that_nodes() -> None:
    with lab_shell("node2") as terminal:
        assert "You are inside node2." in terminal.until("node2# ")
        terminal.type("kroute show services")
        assert "default/web" in terminal.until("node2# ")
        terminal.type("hostname -I; ip -o -4 address show dev eth0")
        assert "192.168.123.248/24" in terminal.until("node2# ")
        terminal.type("exit")
