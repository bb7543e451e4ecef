"""When a controller looks and resyncs: by what a resync costs, and by what the last ones found."""

import pytest

from kroute.reconcile.resync_schedule import LONGEST_PAUSE, LONGEST_UNDISTURBED, UNDISTURBED, ResyncSchedule

PERIOD = 30.0
SHARE = 0.001


class Run:
    """A schedule on a clock that stands still, except in `resync`."""

    def __init__(self, share: float = SHARE) -> None:
        self.now = 100.0
        self.schedule = ResyncSchedule(PERIOD, share, self.now)

    def resync(self, cost: float, *, is_clean: bool = True) -> float:
        """Resync when it is due; returns the seconds until the next one."""
        self.now = max(self.now, self.schedule.resync_due)
        self.schedule.begins(self.now)
        self.schedule.ends(cost, is_clean=is_clean)
        return self.schedule.resync_due - self.now


def test_the_first_resync_is_due_at_once() -> None:
    assert ResyncSchedule(PERIOD, SHARE, 7.0).resync_due == 7.0


def test_what_costs_less_than_its_share_is_resynced_every_period() -> None:
    assert Run().resync(0.02 * UNDISTURBED) == PERIOD


def test_what_costs_more_is_resynced_as_often_as_the_share_allows() -> None:
    run = Run()
    assert run.resync(1.5) == 1500.0 / UNDISTURBED
    assert run.schedule.pause == 1500.0 / UNDISTURBED


@pytest.mark.parametrize(("share", "cost"), [(SHARE, 600.0), (0.0, 0.001)], ids=["too expensive", "no share"])
def test_no_pause_is_longer_than_a_day_and_after_drift_than_an_hour(share: float, cost: float) -> None:
    run = Run(share)
    assert run.resync(cost) == run.resync(cost) == LONGEST_UNDISTURBED
    assert run.resync(cost, is_clean=False) == PERIOD
    assert [run.resync(cost) for _ in range(9)][-2:] == [LONGEST_PAUSE, LONGEST_PAUSE]


def test_a_controller_may_want_shorter_pauses_from_the_beginning() -> None:
    schedule = ResyncSchedule(PERIOD, 0.0, 0.0, LONGEST_PAUSE)
    schedule.begins(0.0)
    schedule.ends(1.0, is_clean=True)
    assert schedule.pause == LONGEST_PAUSE


def test_after_drift_resyncs_are_a_period_apart_and_then_further_and_further() -> None:
    run = Run()
    run.resync(0.2)
    assert [run.resync(0.2, is_clean=False), *(run.resync(0.2) for _ in range(4))] == [30, 60, 120, 200, 200]


def test_a_look_is_due_every_period_however_far_the_next_resync_is() -> None:
    run = Run()
    run.resync(1.5)
    assert run.schedule.next_due() == run.schedule.look_due == run.now + PERIOD
    run.schedule.looked(run.now + PERIOD)
    assert run.schedule.look_due == run.now + 2 * PERIOD


def test_who_asks_for_a_resync_gets_it_however_expensive_it_is() -> None:
    run = Run()
    run.resync(1.5)
    run.schedule.resync_by(run.now + 1)
    assert run.schedule.next_due() == run.now + 1


def test_a_resync_that_was_asked_for_while_one_ran_is_not_put_off() -> None:
    run = Run()
    run.schedule.begins(run.now)
    run.schedule.resync_by(run.now + 1)
    run.schedule.ends(1.5, is_clean=True)
    assert run.schedule.resync_due == run.now + 1


def test_an_interrupted_resync_is_repeated_after_a_period() -> None:
    run = Run()
    run.schedule.begins(run.now)
    assert run.schedule.resync_due == run.now + PERIOD


def test_what_was_written_since_the_first_resync_puts_the_next_one_off() -> None:
    run = Run()
    assert run.resync(0.001) == PERIOD
    run.schedule.costs(1.5)
    assert run.schedule.resync_due - run.now == run.schedule.pause == 1500.0 / UNDISTURBED
    run.schedule.costs(0.001)
    assert run.schedule.pause == 1500.0 / UNDISTURBED


def test_a_resync_that_was_asked_for_is_not_put_off() -> None:
    run = Run()
    run.resync(0.001)
    run.schedule.resync_by(run.now + 1)
    run.schedule.costs(1.5)
    assert run.schedule.resync_due == run.now + 1
