"""Retries: exponential backoff for each key separately, and patience while the system lacks a resource."""

import os
from collections.abc import Callable
from errno import EACCES, EIO, EMFILE, ENFILE, ENOBUFS, ENOMEM

import pytest
from structlog.testing import capture_logs

from kroute.base.backoff import Retries, exhaustion, retry_when_exhausted
from kroute.kernel.errors import KernelError


def test_each_failure_doubles_the_wait_up_to_a_limit() -> None:
    retries: Retries[str] = Retries(first=1, limit=5)
    waits = []
    for _ in range(5):
        retries.failed("x", 100)
        waits.append(retries.next_due())
    assert waits == [101, 102, 104, 105, 105]


def test_a_key_that_has_failed_for_weeks_is_still_tried() -> None:
    retries: Retries[str] = Retries(first=1, limit=5)
    for _ in range(100_000):
        retries.failed("x", 0)
    assert retries.next_due() == 5


def test_only_the_first_failure_in_a_row_is_new() -> None:
    retries: Retries[str] = Retries()
    assert retries.failed("x", 0)
    assert not retries.failed("x", 1)
    retries.succeeded("x")
    assert retries.failed("x", 2)


def test_keys_wait_alone() -> None:
    retries: Retries[str] = Retries(first=1)
    retries.failed("x", 0)
    assert retries.waiting(0.5) == {"x"}
    assert retries.waiting(1) == set()


def test_keys_that_fail_for_long_come_due_together_and_no_later_than_alone() -> None:
    for moment in range(1000, 2000):
        retries: Retries[str] = Retries(first=30, limit=30)
        retries.failed("x", now := moment * 0.73)
        due = retries.next_due()
        assert due is not None
        assert due % 15 == 0
        assert now + 15 < due <= now + 30


@pytest.mark.parametrize(("later", "is_new", "wait"), [(4, False, 2), (6, True, 1)])
def test_a_key_that_fails_soon_after_its_turn_goes_on_where_it_was(later: float, is_new: bool, wait: float) -> None:
    retries: Retries[str] = Retries(first=1)
    retries.failed("x", 100)
    retries.expire(101)
    assert not retries
    retries.expire(101 + later)
    assert retries.failed("x", 101 + later) is is_new
    assert retries.next_due() == 101 + later + wait


@pytest.mark.parametrize("forget", [lambda it: it.clear(), lambda it: it.succeeded("x")], ids=["cleared", "succeeded"])
def test_a_key_that_is_known_to_have_succeeded_is_new_when_it_fails_again(
    forget: Callable[[Retries[str]], None],
) -> None:
    retries: Retries[str] = Retries(first=1)
    retries.failed("x", 100)
    retries.expire(101)
    forget(retries)
    assert retries.failed("x", 102)


def test_a_key_that_was_due_and_did_not_fail_again_is_forgotten() -> None:
    retries: Retries[str] = Retries(first=1)
    retries.failed("x", 0)
    retries.failed("y", 5)
    retries.expire(1)
    assert "x" not in retries
    assert "y" in retries
    assert len(retries) == 1


EXHAUSTED = [
    *(OSError(number, os.strerror(number)) for number in (EMFILE, ENFILE, ENOMEM, ENOBUFS, EIO)),
    KernelError("cannot open a netlink socket", errno=EMFILE),
    MemoryError(),
    RuntimeError("can't start new thread"),
]


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kroute.base.backoff._FIRST_RETRY", 0.0)


@pytest.mark.parametrize("error", EXHAUSTED, ids=repr)
async def test_what_has_run_out_is_waited_for_and_said_once_with_a_next_step(error: Exception, no_pause: None) -> None:
    failures = [error] * 3

    async def attempt() -> str:
        if failures:
            raise failures.pop()
        return "done"

    with capture_logs() as logs:
        assert await retry_when_exhausted("opening it", attempt) == "done"
    assert [line["event"] for line in logs] == ["resources.exhausted", "resources.available"]
    assert logs[0]["next_step"].endswith("; trying again")


@pytest.mark.parametrize("error", [OSError(EACCES, "no"), ValueError("x"), RuntimeError("a defect")], ids=repr)
async def test_whatever_else_fails_is_raised_at_once(error: Exception) -> None:
    async def attempt() -> None:
        raise error

    with pytest.raises(type(error)):
        await retry_when_exhausted("opening it", attempt)


def test_what_was_caused_by_it_is_it() -> None:
    error = ValueError("cannot read the certificate")
    error.__cause__ = OSError(EMFILE, "too many")
    assert exhaustion(error) == exhaustion(error.__cause__)
