"""A pytest in a machine of the lab, seen from outside: it gets tests, its events are read, and its loss is reported."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.places import PROJECT
from tests.lab.run import environment
from tests.lab.vm.machine import Machine, MachineError
from tests.lab.vm.work import Work

SILENCE = 900.0
"""Seconds without an event after which a machine counts as hung. Every test must end sooner, also on a slow host."""
OFF_WITHIN = 60.0
"""Seconds after its last event within which a machine without further work should be off."""
STACKS_AFTER = 700
"""Seconds after which a running test's stacks are written to the console, before it counts as hung."""

_PASSED_ON = {"tbstyle": "--tb", "verbose": "--verbosity", "hypothesisseed": "--hypothesis-seed"}
"""Options of the outer pytest that change what the inner one reports."""


class RemoteRun:
    """One machine that takes files of tests from `work` until none is left.

    `owed` are those that it has not finished. `place` is its number among those that run now.
    """

    def __init__(self, number: int, work: Work, config: pytest.Config, place: int = 0) -> None:
        self.work = work
        self.place = place
        self.machine = Machine(f"lab{number}", place, work.kernel)
        self.owed: dict[str, pytest.Item] = {}
        self._underway = ""
        self._newest = 0  # how many tests the file has that was given last
        self._assignments = 0
        self._is_last_given = False
        self._offset = 0
        self._heard = time.monotonic()
        try:
            self._start(config)
        except MachineError:
            self.machine.close()
            raise
        self._give_more()

    def events(self) -> Iterator[dict[str, Any]]:
        """Return the new events, and give the machine more work.

        Raises:
            MachineError: the machine has ended or fallen silent, and owes tests.
        """
        self.work.has_been_up |= self.machine.is_up
        alive = self.machine.running  # read first, so that nothing written before the end is missed
        lines = self._new_lines()
        if lines:
            self._heard = time.monotonic()
        for line in lines:
            event = json.loads(line)
            self._note(event)
            yield event
        if len(self.owed) <= (self._newest if self.machine.is_up else 1):
            self._give_more()
        if lines:
            return
        if alive:
            self.machine.check()
        elif self.owed:
            self.machine.check()
            raise MachineError(f"pytest ended in the lab machine; its console:\n{self.machine.last_lines()}")
        if self.owed and time.monotonic() - self._heard > SILENCE:
            raise MachineError(f"no word for {SILENCE:.0f} s from the lab; its console:\n{self.machine.last_lines()}")

    @property
    def is_over(self) -> bool:
        """Whether it has finished its work, and is off. A machine that stays on is not waited for."""
        is_done = self._is_last_given and not self.owed
        return is_done and (not self.machine.running or time.monotonic() - self._heard > OFF_WITHIN)

    def lost(self) -> list[pytest.Item]:
        """Give up the machine. Returns the tests that are lost with it; the others return to the waiting work.

        A machine that is lost during a test costs that test. One that is lost otherwise costs all that it was given, so
        that nothing is tried endlessly. If no machine with its kernel has ever come up, no test can run.
        """
        self.machine.close()
        owed = dict(self.owed)
        self.owed.clear()
        if underway := owed.pop(self._underway, None):
            self.work.give_back(list(owed.values()))
            return [underway]
        return [*owed.values(), *([] if self.work.has_been_up else self.work.take_all())]

    def _start(self, config: pytest.Config) -> None:
        """Boot the machine. The pytest in it collects all files that it may be given."""
        arguments = self.machine.shared / "arguments"
        arguments.write_text("".join(f"{name}\n" for name in self.work.files))
        self._assigned.mkdir()
        options = [f"{flag}={value}" for name, flag in _PASSED_ON.items() if (value := config.getoption(name, None))]
        if config.getoption("showlocals"):
            options.append("--showlocals")
        self.machine.start(
            [
                *(sys.executable, "-m", "pytest", "-p", "tests.lab.vm.guest_plugin", "-p", "no:cacheprovider"),
                *(f"--rootdir={PROJECT}", "--color=no", "-o", f"faulthandler_timeout={STACKS_AFTER}"),
                *(*options, f"@{arguments}"),
            ],
            environment=environment(
                KROUTE_LAB_EVENTS=str(self._events),
                KROUTE_LAB_ASSIGNED=str(self._assigned),
                KROUTE_FEED=self.work.feed,
                PYTHONDONTWRITEBYTECODE="1",
                HYPOTHESIS_STORAGE_DIRECTORY="/run/tmp/hypothesis",  # the project is read-only in the machine
            ),
        )

    def _give_more(self) -> None:
        """Give the machine the next file's tests, or an empty list if there are none left.

        Once it is up it always has one file in reserve: the outer pytest looks only between its own tests, of which
        some take minutes.
        """
        if self._is_last_given:
            return
        items = self.work.take()
        self.owed.update((item.nodeid, item) for item in items)
        self._newest = len(items)
        self._is_last_given = not items
        assignment = self._assigned / str(self._assignments)
        self._assignments += 1
        unfinished = assignment.with_suffix(".unfinished")
        unfinished.write_text(json.dumps([item.nodeid for item in items]))
        unfinished.rename(assignment)

    def _note(self, event: dict[str, Any]) -> None:
        match event:
            case {"event": "start", "nodeid": nodeid}:
                self._underway = nodeid
            case {"event": "finish", "nodeid": nodeid}:
                self.owed.pop(nodeid, None)
                self._underway = ""

    @property
    def _events(self) -> Path:
        return self.machine.shared / "events"

    @property
    def _assigned(self) -> Path:
        return self.machine.shared / "assigned"

    def _new_lines(self) -> list[bytes]:
        """Return the complete new lines of the events' file."""
        if not self._events.exists():
            return []
        with self._events.open("rb") as file:
            file.seek(self._offset)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return complete.splitlines()
