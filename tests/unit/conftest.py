"""What unit tests of several folders share."""

import pytest

from kroute.cli import run
from kroute.settings import Settings
from kroute.telemetry.loop_watch import LoopWatch


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that agents were started with."""
    seen: list[Settings] = []

    async def serve(settings: Settings, loop_watch: LoopWatch) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(run, "serve", serve)
    return seen
