"""One agent and one director run in a network namespace, whatever their state directories; nobody can block them."""

import asyncio
import os
import re
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.runtime import namespace_lock
from kroute.runtime.namespace_lock import LockRole, NamespaceInUseError, hold
from kroute.runtime.state_dir import StateDirectory, StateDirectoryError, StateDirectoryInUseError


def squat(number: int, stack: ExitStack, *, listening: bool = True) -> None:
    """Hold a name of the lock as another user's process could."""
    squatter = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    squatter.bind(f"\0{namespace_lock.PREFIX}-agent-{number}")
    if listening:
        squatter.listen()


def test_a_second_one_with_another_directory_is_refused_and_named_the_first(tmp_path: Path) -> None:
    expected = f"already running in this network namespace (process {os.getpid()}), with another state directory"
    with (
        StateDirectory.claim(tmp_path / "a"),
        pytest.raises(StateDirectoryError, match=re.escape(expected)) as refused,
        StateDirectory.claim(tmp_path / "b"),
    ):
        pass
    assert not isinstance(refused.value, StateDirectoryInUseError)  # that error means: the same directory


def test_a_refused_one_leaves_what_it_found(tmp_path: Path) -> None:
    with StateDirectory.claim(tmp_path / "a"):
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "ready").touch()
        with pytest.raises(StateDirectoryError), StateDirectory.claim(tmp_path / "b"):
            pass
        assert (tmp_path / "b" / "ready").exists()


def test_a_director_may_be_beside_an_agent(tmp_path: Path) -> None:
    with StateDirectory.claim(tmp_path / "a"), StateDirectory.claim(tmp_path / "b", LockRole.DIRECTOR):
        pass


def test_it_is_free_when_the_holder_has_gone() -> None:
    for _ in range(2):
        with hold(LockRole.AGENT):
            pass


def test_whoever_is_neither_root_nor_us_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        squat(0, stack)
        squat(1, stack, listening=False)
        ours = os.getuid()
        real = namespace_lock._holder

        def as_seen(name: str) -> tuple[int, int] | None:
            holder = real(name)
            return (holder[0], ours + 1000) if holder and name.endswith("-0") else holder

        monkeypatch.setattr(namespace_lock, "_holder", as_seen)
        with hold(LockRole.AGENT), pytest.raises(NamespaceInUseError), hold(LockRole.AGENT):
            pass


def test_it_is_refused_for_a_name_beyond_the_one_that_is_free() -> None:
    with ExitStack() as stack:
        squat(5, stack)  # the first names were taken when this agent started
        with pytest.raises(NamespaceInUseError), hold(LockRole.AGENT):
            pass


def test_where_others_hold_every_name_it_works_without_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_lock, "_holder", lambda _: (1, os.getuid() + 1000))
    with ExitStack() as stack, capture_logs() as logs:
        for number in range(namespace_lock.NAMES):
            squat(number, stack)
        stack.enter_context(hold(LockRole.AGENT))
    assert [line["event"] for line in logs] == ["namespace_lock.unavailable"]


async def test_any_number_of_refusals_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_lock, "_QUEUE", 4)
    monkeypatch.setattr(namespace_lock, "_EMPTY_EVERY", 0.0)
    with hold(LockRole.AGENT):
        for _ in range(20):
            with pytest.raises(NamespaceInUseError), hold(LockRole.AGENT):
                pass
            await asyncio.sleep(0)
            await asyncio.sleep(0)


async def test_the_event_loop_sleeps_while_nobody_connects() -> None:
    with hold(LockRole.AGENT):
        assert not asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
