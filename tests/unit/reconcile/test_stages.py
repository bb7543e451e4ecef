"""Milestones: which stage the newest plan of each Service has reached."""

import asyncio

from kroute.model.plan import ServicePlan
from kroute.reconcile.stages import PREDECESSOR, Milestones, Stage
from tests.builders import plan

ROUTES, ENTRIES, WITHDRAWN = Stage.ROUTES_PREPARED, Stage.ENTRIES_PREPARED, Stage.WITHDRAWN
KEY = plan().key


def test_a_plan_has_reached_nothing_at_first() -> None:
    assert not Milestones().has_reached(plan(), ROUTES)


def test_a_plan_has_reached_a_stage_when_the_controller_says_so() -> None:
    milestones = Milestones()
    milestones.reach(ROUTES, [plan("a"), plan("b")])
    assert milestones.has_reached(plan("a"), ROUTES)
    assert milestones.has_reached(plan("b"), ROUTES)
    assert not milestones.has_reached(plan("c"), ROUTES)


def test_every_stage_that_is_asked_for_must_be_reached() -> None:
    milestones = Milestones()
    milestones.reach(ROUTES, [plan()])
    assert not milestones.has_reached(plan(), ROUTES, ENTRIES)
    milestones.reach(ENTRIES, [plan()])
    assert milestones.has_reached(plan(), ROUTES, ENTRIES)


def test_an_older_plan_that_reached_a_stage_says_nothing_of_a_newer_one() -> None:
    milestones = Milestones()
    milestones.reach(ROUTES, [plan(generation=1)])
    assert not milestones.has_reached(plan(generation=2), ROUTES)


def test_a_newer_plan_that_reached_a_stage_counts_for_the_older_one() -> None:
    milestones = Milestones()
    milestones.reach(ROUTES, [plan(generation=2)])
    milestones.reach(ROUTES, [plan(generation=1)])
    assert milestones.has_reached(plan(generation=1), ROUTES)
    assert milestones.has_reached(plan(generation=2), ROUTES)


def test_a_gone_service_is_forgotten_once_it_has_passed_every_stage() -> None:
    milestones = Milestones()
    gone = ServicePlan(KEY, generation=2)
    for stage in Stage:
        milestones.reach(stage, [plan(generation=1)])
    for stage in Stage:
        assert milestones.has_reached(plan(generation=1), stage)
        milestones.reach(stage, [gone])
    assert milestones._reached == {stage: {} for stage in Stage}


def test_a_gone_service_is_remembered_while_a_stage_is_still_to_pass() -> None:
    milestones = Milestones()
    gone = ServicePlan(KEY, generation=2)
    milestones.reach(WITHDRAWN, [gone])
    milestones.reach(ROUTES, [gone])
    assert milestones.has_reached(gone, WITHDRAWN, ROUTES)
    assert not milestones.has_reached(gone, ENTRIES)


def test_a_service_that_comes_back_before_it_was_gone_everywhere_is_remembered() -> None:
    milestones = Milestones()
    milestones.reach(ROUTES, [plan(generation=3)])
    milestones.reach(ENTRIES, [plan(generation=3)])
    milestones.reach(WITHDRAWN, [ServicePlan(KEY, generation=2)])
    assert milestones.has_reached(plan(generation=3), ROUTES, ENTRIES)


def test_what_an_earlier_run_left_is_withdrawn_once_and_for_all() -> None:
    milestones = Milestones()
    assert not milestones.has_reached(PREDECESSOR, WITHDRAWN)
    for stage in Stage:
        milestones.reach(stage, [PREDECESSOR])
    assert milestones.has_reached(PREDECESSOR, *Stage)


def test_a_stage_that_was_taken_back_must_be_passed_anew() -> None:
    milestones = Milestones()
    milestones.reach(ROUTES, [plan("a"), plan("b")])
    milestones.reach(ENTRIES, [plan("a")])
    milestones.retract(ROUTES, [plan("a").key])
    assert not milestones.has_reached(plan("a"), ROUTES)
    assert milestones.has_reached(plan("a"), ENTRIES)
    assert milestones.has_reached(plan("b"), ROUTES)
    milestones.reach(ROUTES, [plan("a")])
    assert milestones.has_reached(plan("a"), ROUTES)


def test_the_services_that_lost_a_stage_are_told_once() -> None:
    milestones = Milestones()
    milestones.retract(ROUTES, [plan("a").key])
    milestones.retract(ROUTES, [plan("b").key])
    assert milestones.take_retracted(ENTRIES) == set()
    assert milestones.take_retracted(ROUTES) == {plan("a").key, plan("b").key}
    assert milestones.take_retracted(ROUTES) == set()


def test_a_watcher_is_woken_by_the_stages_that_it_watches_only() -> None:
    milestones, waker = Milestones(), asyncio.Event()
    milestones.watch(waker, ROUTES, ENTRIES)
    milestones.reach(WITHDRAWN, [plan()])
    milestones.retract(ROUTES, [KEY])
    assert not waker.is_set()
    milestones.reach(ENTRIES, [plan()])
    assert waker.is_set()


def test_a_stages_own_controller_is_woken_when_the_stage_is_taken_back_only() -> None:
    milestones, waker = Milestones(), asyncio.Event()
    milestones.serve(waker, ROUTES)
    milestones.reach(ROUTES, [plan()])
    milestones.retract(ENTRIES, [KEY])
    assert not waker.is_set()
    milestones.retract(ROUTES, [KEY])
    assert waker.is_set()


def test_every_watcher_of_a_stage_is_woken_again_and_again() -> None:
    milestones, wakers = Milestones(), [asyncio.Event(), asyncio.Event()]
    milestones.watch(wakers[0], WITHDRAWN)
    milestones.watch(wakers[1], WITHDRAWN, ROUTES)
    for generation in (1, 2):
        milestones.reach(WITHDRAWN, [plan(generation=generation)])
        assert all(waker.is_set() for waker in wakers)
        for waker in wakers:
            waker.clear()
