"""When `kroute migrate --hand-over --stay` ends: it is the first process of a container."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from kroute.checks import preflight
from kroute.cli import migrate
from kroute.migration.take_over import Outcome
from tests.unit.command_line import exit_code

COMMAND = ["migrate", "--to", "kube-proxy", "--hand-over", "--stay"]


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Node:
    """A node whose hand-over is due at once, unless something happens `while_it_waits`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.while_it_waits: Callable[[], None] | None = None
        self.while_it_hands_over: Callable[[], None] = lambda: None
        self.was_handed_over = False
        monkeypatch.setattr(preflight, "missing_for_undoing", self._lacks_nothing)
        monkeypatch.setattr(migrate, "until_it_serves", self._wait)
        monkeypatch.setattr(migrate, "hand_over", self._hand_over)

    async def _lacks_nothing(self, *_: Any) -> list[str]:
        return []

    async def _wait(self, *_: Any) -> None:
        if self.while_it_waits is not None:
            self.while_it_waits()
            await asyncio.sleep(3600)

    async def _hand_over(self, *_: Any, force: bool) -> Outcome:
        self.while_it_hands_over()
        for _ in range(5):  # rounds of the event loop, in which it learns of the signal
            await asyncio.sleep(0.001)
        self.was_handed_over = True
        return Outcome(["delete link kroute0"], [], "kube-proxy has this node")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def test_a_signal_ends_the_wait_for_the_other_proxy(node: Node) -> None:
    node.while_it_waits = terminate
    assert exit_code(*COMMAND) == 0
    assert not node.was_handed_over


def test_a_signal_during_the_hand_over_takes_effect_after_it(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.while_it_hands_over = terminate
    assert exit_code(*COMMAND) == 0
    assert node.was_handed_over
    assert "delete link kroute0" in capsys.readouterr().out


def test_it_stays_until_the_signal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Outcome] = []

    def show(outcome: Outcome, *_: Any) -> None:
        shown.append(outcome)
        asyncio.get_running_loop().call_later(0.01, terminate)

    monkeypatch.setattr(migrate, "show", show)
    assert exit_code(*COMMAND) == 0
    assert len(shown) == 1
