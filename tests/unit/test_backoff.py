"""Retries: exponential backoff for each key alone."""

from kroute.backoff import Retries


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
    assert retries.is_waiting("x", 0.5)
    assert not retries.is_waiting("y", 0.5)
    assert not retries.is_waiting("x", 1)


def test_a_key_that_was_due_and_did_not_fail_again_is_forgotten() -> None:
    retries: Retries[str] = Retries(first=1)
    retries.failed("x", 0)
    retries.failed("y", 5)
    retries.expire(1)
    assert "x" not in retries
    assert "y" in retries
    assert len(retries) == 1
