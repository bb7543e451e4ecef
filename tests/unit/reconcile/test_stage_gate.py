"""The stage gate: which stage the newest plan of each Service has passed."""

import asyncio

import pytest

from kroute.model.plan import ServicePlan
from kroute.reconcile.stage_gate import (
    EARLIER_RUN,
    ENTRIES_PREPARED,
    GOING_LIVE,
    ROUTES_PREPARED,
    WITHDRAWN,
    Revision,
    Stage,
    StageGate,
)
from tests.builders import plan, say, stage_gate

ROUTES, ENTRIES = ROUTES_PREPARED, ENTRIES_PREPARED
KEY = plan().key


def test_a_plan_has_passed_nothing_at_first() -> None:
    assert not stage_gate().has_passed(plan(), ROUTES)


def test_a_plan_has_passed_a_stage_when_the_controller_says_so() -> None:
    gate = stage_gate()
    say(gate, ROUTES, [plan("a"), plan("b")])
    assert gate.has_passed(plan("a"), ROUTES)
    assert gate.has_passed(plan("b"), ROUTES)
    assert not gate.has_passed(plan("c"), ROUTES)


def test_every_stage_that_is_asked_for_must_be_passed() -> None:
    gate = stage_gate()
    say(gate, ROUTES, [plan()])
    assert not gate.has_passed(plan(), ROUTES, ENTRIES)
    say(gate, ENTRIES, [plan()])
    assert gate.has_passed(plan(), ROUTES, ENTRIES)


def test_an_older_plan_that_passed_a_stage_says_nothing_of_a_newer_one() -> None:
    gate = stage_gate()
    say(gate, ROUTES, [plan(generation=1)])
    assert not gate.has_passed(plan(generation=2), ROUTES)


def test_a_newer_plan_that_passed_a_stage_counts_for_the_older_one() -> None:
    gate = stage_gate()
    say(gate, ROUTES, [plan(generation=2)])
    say(gate, ROUTES, [plan(generation=1)])
    assert gate.has_passed(plan(generation=1), ROUTES)
    assert gate.has_passed(plan(generation=2), ROUTES)


def test_a_gone_service_is_forgotten_once_it_has_passed_every_stage() -> None:
    gate = stage_gate()
    gone = ServicePlan(KEY, generation=2)
    for stage in GOING_LIVE:
        say(gate, stage, [plan(generation=1)])
    for stage in GOING_LIVE:
        assert gate.has_passed(plan(generation=1), stage)
        say(gate, stage, [gone])
    assert {stage: passage.passed for stage, passage in gate._passages.items()} == {stage: {} for stage in GOING_LIVE}


def test_a_gone_service_is_remembered_while_a_stage_is_still_to_pass() -> None:
    gate = stage_gate()
    gone = ServicePlan(KEY, generation=2)
    say(gate, WITHDRAWN, [gone])
    say(gate, ROUTES, [gone])
    assert gate.has_passed(gone, WITHDRAWN, ROUTES)
    assert not gate.has_passed(gone, ENTRIES)


def test_a_service_that_comes_back_before_it_was_gone_everywhere_is_remembered() -> None:
    gate = stage_gate()
    say(gate, ROUTES, [plan(generation=3)])
    say(gate, ENTRIES, [plan(generation=3)])
    say(gate, WITHDRAWN, [ServicePlan(KEY, generation=2)])
    assert gate.has_passed(plan(generation=3), ROUTES, ENTRIES)


def test_what_an_earlier_run_left_is_withdrawn_once_and_for_all() -> None:
    gate = stage_gate()
    assert not gate.has_passed(EARLIER_RUN, WITHDRAWN)
    for stage in GOING_LIVE:
        say(gate, stage, [EARLIER_RUN])
    assert gate.has_passed(EARLIER_RUN, *GOING_LIVE)


def test_a_stage_that_was_taken_back_must_be_passed_anew() -> None:
    gate = stage_gate()
    say(gate, ROUTES, [plan("a"), plan("b")])
    say(gate, ENTRIES, [plan("a")])
    gate.revoke(ROUTES, [plan("a").key])
    assert not gate.has_passed(plan("a"), ROUTES)
    assert gate.has_passed(plan("a"), ENTRIES)
    assert gate.has_passed(plan("b"), ROUTES)
    say(gate, ROUTES, [plan("a")])
    assert gate.has_passed(plan("a"), ROUTES)


def test_the_services_that_lost_a_stage_are_reported_once() -> None:
    gate = stage_gate()
    gate.revoke(ROUTES, [plan("a").key])
    gate.revoke(ROUTES, [plan("b").key])
    assert gate.take_revoked(ENTRIES) == set()
    assert gate.take_revoked(ROUTES) == {plan("a").key, plan("b").key}
    assert gate.take_revoked(ROUTES) == set()


def test_a_controller_is_woken_by_the_stages_that_it_waits_for_only() -> None:
    gate, waker = stage_gate(), asyncio.Event()
    gate.join(waker, says={}, waits_for=(ROUTES, ENTRIES))
    say(gate, WITHDRAWN, [plan()])
    gate.revoke(ROUTES, [KEY])
    assert not waker.is_set()
    say(gate, ENTRIES, [plan()])
    assert waker.is_set()


def test_the_controller_that_says_a_stage_is_woken_when_it_is_taken_back_only() -> None:
    gate, waker = StageGate(), asyncio.Event()
    gate.join(waker, says={ROUTES: ready})
    gate.join(asyncio.Event(), says={ENTRIES: ready})
    say(gate, ROUTES, [plan()])
    gate.revoke(ENTRIES, [KEY])
    assert not waker.is_set()
    gate.revoke(ROUTES, [KEY])
    assert waker.is_set()


def test_nobody_is_woken_because_nobody_has_lost_a_stage() -> None:
    gate, waker = StageGate(), asyncio.Event()
    gate.join(waker, says={ROUTES: ready})
    gate.revoke(ROUTES, [])
    assert not waker.is_set()


def test_everybody_who_waits_for_a_stage_is_woken_again_and_again() -> None:
    gate, wakers = stage_gate(), [asyncio.Event(), asyncio.Event()]
    gate.join(wakers[0], says={}, waits_for=(WITHDRAWN,))
    gate.join(wakers[1], says={}, waits_for=(WITHDRAWN, ROUTES))
    for generation in (1, 2):
        say(gate, WITHDRAWN, [plan(generation=generation)])
        assert all(waker.is_set() for waker in wakers)
        for waker in wakers:
            waker.clear()


def ready(_plan: Revision) -> bool:
    return True


def test_a_stage_is_said_by_one_controller_only() -> None:
    with pytest.raises(ValueError, match="two controllers say the stage withdrawn"):
        stage_gate().join(asyncio.Event(), says={WITHDRAWN: ready})


async def test_candidates_pass_when_their_controller_finds_them_ready() -> None:
    gate, prepared = StageGate(), {"a"}
    gate.join(asyncio.Event(), says={ROUTES: lambda candidate: candidate.key.name in prepared})
    gate.submit(plan("a"), ROUTES)
    gate.submit(plan("b"), ROUTES)
    await gate.advance(ROUTES)
    assert gate.has_passed(plan("a"), ROUTES)
    assert not gate.has_passed(plan("b"), ROUTES)
    prepared.add("b")
    await gate.advance(ROUTES)
    assert gate.has_passed(plan("b"), ROUTES)
    assert not gate.has_candidates(ROUTES)


async def test_only_the_candidates_that_may_have_passed_are_looked_at() -> None:
    gate = StageGate()
    gate.join(asyncio.Event(), says={ROUTES: ready})
    for name in ("a", "b"):
        gate.submit(plan(name), ROUTES)
    await gate.advance(ROUTES, [plan("b").key, plan("c").key])
    assert [gate.has_passed(plan(name), ROUTES) for name in ("a", "b", "c")] == [False, True, False]


async def test_a_newer_candidate_takes_the_place_of_the_older_one() -> None:
    gate = StageGate()
    gate.join(asyncio.Event(), says={ROUTES: ready})
    gate.submit(plan(generation=1), ROUTES)
    gate.submit(plan(generation=2), ROUTES)
    seen: list[int] = []
    gate.follow(lambda _stage, plans: seen.extend(each.generation for each in plans))
    await gate.advance(ROUTES)
    assert seen == [2]


def test_one_of_whom_nothing_waits_is_not_woken() -> None:
    gate, waker, doubts = stage_gate(), asyncio.Event(), set[str]()
    gate.join(waker, says={}, waits_for=(WITHDRAWN,), needs=lambda _: bool(doubts))
    say(gate, WITHDRAWN, [plan(generation=1)])
    assert not waker.is_set()
    doubts.add("10.96.0.1")
    say(gate, WITHDRAWN, [plan(generation=2)])
    assert waker.is_set()


async def test_one_is_woken_by_the_plans_that_matter_to_it_alone() -> None:
    gate, waker, other = stage_gate(), asyncio.Event(), asyncio.Event()
    web, db = plan("web", generation=1), plan("db", generation=1)
    gate.join(waker, says={}, waits_for=(WITHDRAWN,), needs=lambda revisions: web in revisions)
    gate.join(other, says={}, waits_for=(WITHDRAWN,))
    gate.join(waker, says={}, waits_for=(ENTRIES,))
    say(gate, WITHDRAWN, [db])
    assert (waker.is_set(), other.is_set()) == (False, True)
    say(gate, WITHDRAWN, [db, web])
    assert waker.is_set()
    waker.clear()
    say(gate, ENTRIES, [db])
    assert waker.is_set(), "it waits for another stage in another way"


ANNOUNCED = Stage("announced")
"""The stage of a controller that this test adds."""


def test_one_more_stage_holds_up_only_those_who_wait_for_it() -> None:
    gate, advertiser, follower = stage_gate(), asyncio.Event(), asyncio.Event()
    gate.join(advertiser, says={ANNOUNCED: ready}, waits_for=(ROUTES,))
    gate.join(follower, says={}, waits_for=(ANNOUNCED,))
    for stage in GOING_LIVE:
        say(gate, stage, [plan()])
    assert advertiser.is_set()
    assert gate.has_passed(plan(), *GOING_LIVE)
    assert not follower.is_set()
    say(gate, ANNOUNCED, [plan()])
    assert follower.is_set()


def test_a_gone_service_is_remembered_until_one_more_stage_has_been_passed_too() -> None:
    gate, gone = stage_gate(), ServicePlan(KEY, generation=2)
    gate.join(asyncio.Event(), says={ANNOUNCED: ready})
    for stage in GOING_LIVE:
        say(gate, stage, [gone])
    assert gate.has_passed(gone, WITHDRAWN)
    say(gate, ANNOUNCED, [gone])
    assert not any(passage.passed for passage in gate._passages.values())


def test_a_newer_plan_without_news_has_passed_a_stage_that_the_one_before_has_passed() -> None:
    gate, seen = stage_gate(), list[tuple[Stage, int]]()
    gate.follow(lambda stage, plans: seen.extend((stage, each.generation) for each in plans))
    say(gate, ROUTES, [plan(generation=1)])
    gate.renew(ROUTES, plan(generation=1), plan(generation=2))
    assert gate.has_passed(plan(generation=2), ROUTES)
    assert seen == [(ROUTES, 1), (ROUTES, 2)]


def test_newer_plans_without_news_pass_a_stage_with_the_one_before() -> None:
    gate, waker, seen = stage_gate(), asyncio.Event(), list[int]()
    gate.join(waker, says={}, waits_for=(ROUTES,), needs=lambda plans: any(each.generation == 4 for each in plans))
    gate.follow(lambda _, plans: seen.extend(each.generation for each in plans))
    say(gate, ROUTES, [plan(generation=1)])
    gate.renew(ROUTES, plan(generation=2), plan(generation=3))  # 2 is news, and its controller has yet to see it
    gate.renew(ROUTES, plan(generation=3), plan(generation=4))
    say(gate, ROUTES, [plan(generation=1)])
    assert not gate.has_passed(plan(generation=2), ROUTES)
    say(gate, ROUTES, [plan(generation=2)])
    assert gate.has_passed(plan(generation=4), ROUTES)
    assert waker.is_set()
    assert seen == [1, 1, 4]


def test_news_after_plans_without_news_have_to_pass_by_themselves() -> None:
    gate = stage_gate()
    gate.renew(ROUTES, plan(generation=1), plan(generation=2))
    gate.renew(ROUTES, plan(generation=3), plan(generation=4))  # 3 is news
    say(gate, ROUTES, [plan(generation=1)])
    assert not gate.has_passed(plan(generation=3), ROUTES)
    say(gate, ROUTES, [plan(generation=3)])
    assert gate.has_passed(plan(generation=4), ROUTES)


def test_a_plan_without_news_passes_a_stage_again_that_was_taken_back() -> None:
    gate = stage_gate()
    say(gate, ROUTES, [plan(generation=1)])
    gate.renew(ROUTES, plan(generation=1), plan(generation=2))
    gate.revoke(ROUTES, [KEY])
    gate.renew(ROUTES, plan(generation=2), plan(generation=3))
    assert not gate.has_passed(plan(generation=1), ROUTES)
    say(gate, ROUTES, [plan(generation=1)])  # the plan that its controller knows
    assert gate.has_passed(plan(generation=3), ROUTES)


def test_nothing_is_remembered_of_a_gone_service_whose_plans_had_no_news() -> None:
    gate = stage_gate()
    gate.renew(ROUTES, plan(generation=1), plan(generation=2))
    say(gate, ROUTES, [plan(generation=1)])
    gate.revoke(ROUTES, [KEY])
    for stage in GOING_LIVE:
        say(gate, stage, [ServicePlan(KEY, generation=3)])
    passage = gate._passages[ROUTES]
    assert (passage.passed, passage.renewed, passage.had_passed) == ({}, {}, {})
