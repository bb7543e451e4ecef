"""Fixtures that unit tests of several folders share."""

import os

import pytest

from kroute.cli import director, run
from kroute.director.settings import DirectorSettings
from kroute.runtime import namespace_lock
from kroute.settings import Settings
from kroute.telemetry.loop_watch import LoopWatch


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which agents and directors were started. Nothing runs."""
    seen: list[Settings] = []

    async def serve(settings: Settings, loop_watch: LoopWatch) -> int:
        seen.append(settings)
        return 0

    async def direct(settings: DirectorSettings) -> int:
        seen.append(settings.common)
        return 0

    monkeypatch.setattr(run, "serve", serve)
    monkeypatch.setattr(director, "serve", direct)
    return seen


@pytest.fixture(autouse=True)
def _lock_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use another lock: the tests share a network namespace with any kroute and any other test run on this machine."""
    monkeypatch.setattr(namespace_lock, "PREFIX", f"kroute-test-{os.getpid()}")
