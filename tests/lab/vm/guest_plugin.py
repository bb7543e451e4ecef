"""The pytest plugin inside a machine: runs the tests that it is given, and reports each to the outer pytest.

Both directions use a directory that the two sides share. Out: one JSON line for each event, when a test starts, reports
and ends. A line is synced at once, since the machine has its own page cache. In: files named 0, 1, 2 …, each with a
JSON list of the tests to run next; an empty list is the last.
"""

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

_POLL = 0.02


class EventWriter:
    """Writes the events of a run to the file `path`."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self._config = config
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def _tell(self, **event: Any) -> None:
        os.write(self._descriptor, json.dumps(event).encode() + b"\n")
        os.fsync(self._descriptor)

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell(event="start", nodeid=nodeid, location=location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(
            event="report", report=self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        )

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._tell(event="finish", nodeid=nodeid, location=location)

    def say_alive(self) -> None:
        """Say that a test of a quarter of an hour and more goes on, so that its machine is not taken for hung."""
        self._tell(event="alive")

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Iterable[Any]) -> None:
        self._tell(event="warning", text=str(warning_message), when=when, nodeid=nodeid)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(EventWriter(config, os.environ["KROUTE_LAB_EVENTS"]), "lab-events")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the assigned tests, each once the next is known: pytest then keeps the fixtures that the two share."""
    if session.testsfailed:
        return None  # pytest's own loop reports collection errors
    collected = {item.nodeid: item for item in session.items}
    assigned = (collected[nodeid] for nodeid in _assigned(Path(os.environ["KROUTE_LAB_ASSIGNED"])))
    for item, following in itertools.pairwise(itertools.chain(assigned, [None])):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return True


def _assigned(directory: Path) -> Iterator[str]:
    for number in itertools.count():
        assignment = directory / str(number)
        while not assignment.exists():
            time.sleep(_POLL)
        nodeids = json.loads(assignment.read_text())
        if not nodeids:
            return
        yield from nodeids
