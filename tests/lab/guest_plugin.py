"""The pytest plugin inside the machine: tells the outer pytest of each test as it starts, reports and ends.

One JSON line an event, in a file that both sides share. A line is synced at once: the machine's page cache is its own.
"""

import json
import os
from collections.abc import Iterable
from typing import Any

import pytest


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

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Iterable[Any]) -> None:
        self._tell(event="warning", text=str(warning_message), when=when, nodeid=nodeid)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(EventWriter(config, os.environ["KROUTE_LAB_EVENTS"]), "lab-events")
