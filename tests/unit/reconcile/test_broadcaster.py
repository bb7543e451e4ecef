"""The broadcaster: one queue for each subscriber, which keeps the newest plan of each Service."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan
from kroute.reconcile.broadcaster import GATHERED, Broadcaster, Subscription
from tests.builders import plan

KEY = ObjectKey("default", "web")


def gone(name: str = "web", generation: int = 9) -> ServicePlan:
    return ServicePlan(ObjectKey("default", name), generation=generation)


def generations(subscription: Subscription) -> dict[str, int]:
    return {key.name: taken.generation for key, taken in subscription.take().items()}


async def test_each_subscriber_gets_each_plan_once() -> None:
    broadcaster = Broadcaster()
    first, second = broadcaster.subscribe("first"), broadcaster.subscribe("second")
    broadcaster.publish([plan("a", generation=1), plan("b", generation=2)])
    for subscription in (first, second):
        assert subscription.has_arrived
        assert generations(subscription) == {"a": 1, "b": 2}
        assert generations(subscription) == {}


async def test_a_newer_plan_replaces_the_one_that_waits() -> None:
    broadcaster = Broadcaster()
    subscription = broadcaster.subscribe("s")
    broadcaster.publish([plan(generation=1)])
    broadcaster.publish([plan(generation=2)])
    assert generations(subscription) == {"web": 2}


async def test_a_plan_that_comes_and_goes_while_it_waits_is_seen_as_gone() -> None:
    broadcaster = Broadcaster()
    subscription = broadcaster.subscribe("s")
    broadcaster.publish([plan(generation=1)])
    broadcaster.publish([gone()])
    [taken] = subscription.take().values()
    assert taken.is_empty


async def test_a_slow_subscriber_does_not_affect_another() -> None:
    broadcaster = Broadcaster()
    slow, quick = broadcaster.subscribe("slow"), broadcaster.subscribe("quick")
    seen = []
    for generation in range(1, 6):
        broadcaster.publish([plan(generation=generation)])
        seen.append(generations(quick))
    assert seen == [{"web": generation} for generation in range(1, 6)]
    assert generations(slow) == {"web": 5}


async def test_what_one_subscriber_does_to_its_batch_does_not_affect_another() -> None:
    broadcaster = Broadcaster()
    broadcaster.publish([plan()])
    first, second = broadcaster.subscribe("first"), broadcaster.subscribe("second")
    first.take().clear()
    assert set(broadcaster.services) == {KEY}
    assert generations(second) == {"web": 1}


async def test_the_plans_of_services_are_for_reading_only_and_follow_what_is_published() -> None:
    broadcaster = Broadcaster()
    services = broadcaster.services
    broadcaster.publish([plan()])
    assert set(services) == {KEY}
    with pytest.raises(TypeError):
        services[KEY] = plan()  # type: ignore[index]


async def test_a_late_subscriber_gets_the_current_plans_and_not_those_that_went() -> None:
    broadcaster = Broadcaster()
    broadcaster.publish([plan("a", generation=1), plan("b", generation=2), plan("c", generation=3)])
    broadcaster.publish([plan("a", generation=4), gone("b")])
    late = broadcaster.subscribe("late")
    assert late.has_arrived
    assert generations(late) == {"a": 4, "c": 3}


async def test_subscribers_wait_for_the_first_publish() -> None:
    broadcaster = Broadcaster()
    subscription = broadcaster.subscribe("s")
    assert not subscription.has_arrived
    waker = asyncio.Event()
    subscription.notify(waker)
    broadcaster.publish([plan()])
    assert waker.is_set()
    assert subscription.has_arrived
    assert generations(subscription) == {"web": 1}
    assert not subscription.has_arrived


async def test_the_first_publish_wakes_subscribers_even_without_any_service() -> None:
    broadcaster = Broadcaster()
    early = broadcaster.subscribe("early")
    broadcaster.publish([])
    assert early.has_arrived
    assert broadcaster.subscribe("late").has_arrived


async def test_of_an_initial_sync_in_parts_subscribers_are_told_when_it_is_complete() -> None:
    broadcaster = Broadcaster()
    early = broadcaster.subscribe("early")
    waker = asyncio.Event()
    early.notify(waker)
    broadcaster.publish([plan("a", generation=1)], more=True)
    between = broadcaster.subscribe("between")
    broadcaster.publish([plan("b", generation=2)], more=True)
    assert [early.has_arrived, waker.is_set(), between.has_arrived, broadcaster.has_started] == [False] * 4
    broadcaster.publish([])
    assert [early.has_arrived, waker.is_set(), between.has_arrived, broadcaster.has_started] == [True] * 4
    assert generations(early) == generations(between) == {"a": 1, "b": 2}


async def test_a_plan_without_news_wakes_nobody_who_reads_little() -> None:
    broadcaster = Broadcaster()
    choosy = broadcaster.subscribe("choosy", lambda _now, before: before is None)
    other = broadcaster.subscribe("other")
    waker = asyncio.Event()
    choosy.notify(waker)
    broadcaster.publish([plan("a", generation=1)])
    assert waker.is_set()
    assert generations(choosy) == generations(other) == {"a": 1}
    waker.clear()
    broadcaster.publish([plan("a", generation=2)])
    assert not waker.is_set()
    assert not choosy.has_arrived
    assert [it.depth for it in broadcaster.statistics()] == [0, 1]
    assert generations(choosy) == {}
    assert generations(other) == {"a": 2}
    broadcaster.publish([plan("a", generation=3), plan("b", generation=4)])
    assert waker.is_set()
    assert generations(choosy) == {"b": 4}


async def test_who_reads_little_is_woken_by_the_end_of_the_initial_sync_all_the_same() -> None:
    broadcaster = Broadcaster()
    choosy = broadcaster.subscribe("choosy", lambda _now, _before: False)
    broadcaster.publish([plan()], more=True)
    assert not choosy.has_arrived
    broadcaster.publish([])
    assert choosy.has_arrived


async def test_no_plans_wake_nobody_after_the_initial_sync() -> None:
    broadcaster = Broadcaster()
    subscription = broadcaster.subscribe("s")
    broadcaster.publish([])
    subscription.take()
    broadcaster.publish([])
    assert not subscription.has_arrived


async def test_after_the_initial_sync_each_part_goes_out_at_once() -> None:
    broadcaster = Broadcaster()
    subscription = broadcaster.subscribe("s")
    broadcaster.publish([])
    subscription.take()
    broadcaster.publish([plan("a", generation=1)], more=True)
    assert subscription.has_arrived
    assert generations(subscription) == {"a": 1}


@pytest.mark.parametrize("batches", [1, 50])
async def test_a_queue_is_never_deeper_than_there_are_services(batches: int) -> None:
    broadcaster = Broadcaster()
    subscription = broadcaster.subscribe("s")
    for batch in range(batches):
        broadcaster.publish([plan(f"s{number}", generation=batch + 1) for number in range(10)])
    assert [it.depth for it in broadcaster.statistics()] == [10]
    subscription.take()
    assert [it.depth for it in broadcaster.statistics()] == [0]


async def test_lag_is_the_age_of_the_oldest_plan_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("kroute.reconcile.broadcaster.time.monotonic", lambda: now)
    broadcaster = Broadcaster()
    subscription = broadcaster.subscribe("s")
    now = 110.0
    broadcaster.publish([plan("a")])
    now = 112.0
    broadcaster.publish([plan("b")])
    now = 115.0
    assert subscription.statistics().lag == 5.0
    subscription.take()
    assert subscription.statistics().lag == 0.0


@pytest.mark.parametrize(("plans", "later", "waited"), [(62, 0.0, []), (63, 0.0, [GATHERED]), (63, 0.2, [])])
async def test_changes_are_gathered_while_many_plans_are_published(
    plans: int, later: float, waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, slept = 100.0, []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("kroute.reconcile.broadcaster.time.monotonic", lambda: now)
    monkeypatch.setattr("kroute.reconcile.broadcaster.asyncio.sleep", sleep)
    broadcaster = Broadcaster()
    now = 100.125
    broadcaster.publish([plan(f"p{number}") for number in range(plans)])
    now += later
    await broadcaster.gather()
    assert slept == waited


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()) | st.none(), max_size=40)


@given(STEPS)
def test_a_subscriber_that_takes_now_and_then_ends_up_with_the_current_plans(
    steps: list[tuple[str, bool] | None],
) -> None:
    """At None the subscriber takes; every other step publishes a plan, or the deletion of its Service."""
    broadcaster = Broadcaster()
    subscription = broadcaster.subscribe("s")
    seen: dict[ObjectKey, ServicePlan] = {}
    for generation, step in enumerate([*steps, None], start=1):
        if step is None:
            seen.update(subscription.take())
        else:
            name, exists = step
            broadcaster.publish([plan(name, generation=generation) if exists else gone(name, generation)])
            assert subscription.statistics().depth <= 3
    assert {key: it for key, it in seen.items() if not it.is_empty} == broadcaster.services


async def test_a_plan_without_news_is_skipped_unless_one_before_it_still_waits() -> None:
    broadcaster, skipped = Broadcaster(), list[tuple[int, int]]()
    subscription = broadcaster.subscribe("s", lambda plan, before: before is None or plan.is_empty)
    subscription.skip = lambda before, plan: skipped.append((before.generation, plan.generation))
    broadcaster.publish([plan(generation=1)])
    broadcaster.publish([plan(generation=2)])
    assert generations(subscription) == {"web": 2}
    broadcaster.publish([plan(generation=3)])
    broadcaster.publish([plan(generation=4)])
    assert generations(subscription) == {}
    assert not subscription.has_arrived
    assert skipped == [(2, 3), (3, 4)]
    broadcaster.publish([gone(generation=5)])
    assert generations(subscription) == {"web": 5}
