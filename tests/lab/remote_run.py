"""Tests that run in machines of the lab, seen from outside: start them, follow their events, say so when one dies."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.machine import PROJECT, Machine, MachineError
from tests.lab.run import environment

SILENCE = 600.0
"""Seconds without any event after which a machine counts as hung. No test may take that long without an end."""

_PASSED_ON = {"tbstyle": "--tb", "verbose": "--verbosity", "hypothesisseed": "--hypothesis-seed"}
"""Options of the outer pytest that shape what the inner one reports."""


@dataclass
class RemoteRun:
    """Some of the tests, in one machine. `waiting` holds those that have not ended, in the order in which they run."""

    number: int
    items: list[pytest.Item]
    machine: Machine = field(init=False)
    waiting: dict[str, pytest.Item] = field(init=False)
    _offset: int = 0
    _heard: float = 0.0

    def __post_init__(self) -> None:
        self.machine = Machine(f"lab{self.number}", self.number)
        self.waiting = {item.nodeid: item for item in self.items}

    def start(self, config: pytest.Config) -> None:
        """Boot the machine with a pytest in it that runs exactly these tests."""
        arguments = self.machine.shared / "arguments"
        arguments.write_text("".join(f"{nodeid}\n" for nodeid in self.waiting))
        options = [f"{flag}={value}" for name, flag in _PASSED_ON.items() if (value := config.getoption(name, None))]
        if config.getoption("showlocals"):
            options.append("--showlocals")
        self.machine.start(
            [
                *(
                    sys.executable,
                    "-m",
                    "pytest",
                    "-p",
                    "tests.lab.guest_plugin",
                    "-p",
                    "no:cacheprovider",
                    "--color=no",
                ),
                *(f"--rootdir={PROJECT}", "-o", "faulthandler_timeout=300", *options, f"@{arguments}"),
            ],
            environment=environment(
                KROUTE_LAB_EVENTS=str(self._events),
                PYTHONDONTWRITEBYTECODE="1",
                HYPOTHESIS_STORAGE_DIRECTORY="/run/tmp/hypothesis",  # the project itself is read-only in there
            ),
        )
        self._heard = time.monotonic()

    def events(self) -> Iterator[dict[str, Any]]:
        """Return the events that have arrived since the last call.

        Raises:
            MachineError: the machine has ended or fallen silent, with tests still waiting.
        """
        alive = self.machine.running  # asked first, so that nothing written before the end is missed
        lines = self._new_lines()
        if lines:
            self._heard = time.monotonic()
        for line in lines:
            yield json.loads(line)
        if not self.waiting or lines:
            return
        if not alive:
            raise MachineError(f"the lab machine ended before this test did; its console:\n{self.machine.last_lines()}")
        if time.monotonic() - self._heard > SILENCE:
            raise MachineError(f"no word for {SILENCE:.0f} s from the lab; its console:\n{self.machine.last_lines()}")

    @property
    def _events(self) -> Path:
        return self.machine.shared / "events"

    def _new_lines(self) -> list[bytes]:
        """Return the complete lines that have been added to the file of events."""
        if not self._events.exists():
            return []
        with self._events.open("rb") as file:
            file.seek(self._offset)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return complete.splitlines()
