"""Programming latency: from reading a change to the last stage of the plans that it caused."""

import pytest

from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan
from kroute.reconcile.stage_gate import GOING_LIVE
from kroute.telemetry.changes import APART, LATENCY_BOUNDS, ChangeObserver
from tests.builders import say, stage_gate


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def observer(clock: Clock) -> ChangeObserver:
    return ChangeObserver("node", clock)


def plan(name: str = "web", generation: int = 1) -> ServicePlan:
    return ServicePlan(ObjectKey("default", name), generation=generation)


def pass_all(observer: ChangeObserver, *plans: ServicePlan) -> None:
    for stage in GOING_LIVE:
        observer.passed(stage, plans)


def seconds(observer: ChangeObserver) -> list[float]:
    return [it.seconds for it in observer.newest]


def test_it_is_measured_from_the_reading_to_the_last_stage(clock, observer):
    observer.read([])
    clock.now += 0.002
    observer.published([plan()])
    observer.planned()
    for stage in GOING_LIVE:
        assert observer.statistics().seconds.count == 0
        clock.now += 0.01
        observer.passed(stage, [plan()])
    assert seconds(observer) == [pytest.approx(0.002 + 0.01 * len(GOING_LIVE))]
    assert observer.statistics().waiting == 0


def test_changes_that_are_taken_together_have_the_time_of_the_first(clock, observer):
    observer.read([])
    clock.now += 0.5
    observer.read([])
    observer.published([plan("a"), plan("b")])
    observer.planned()
    pass_all(observer, plan("a"), plan("b"))
    assert seconds(observer) == [pytest.approx(0.5)] * 2


def publish(observer: ChangeObserver, *plans: ServicePlan) -> None:
    observer.read([])
    observer.published(plans)
    observer.planned()


def test_a_plan_that_was_replaced_on_its_way_is_done_with_the_newer_one(clock, observer):
    publish(observer, plan(generation=1))
    clock.now += 1
    publish(observer, plan(generation=2))
    clock.now += 0.25
    pass_all(observer, plan(generation=2))
    assert seconds(observer) == [1.25, 0.25]
    assert observer.statistics().waiting == 0


def test_a_plan_that_is_done_does_not_wait_for_the_newer_one(clock, observer):
    publish(observer, plan(generation=1))
    clock.now += 1
    publish(observer, plan(generation=2))
    pass_all(observer, plan(generation=1))
    assert seconds(observer) == [1]
    clock.now += 1
    assert observer.statistics().oldest == 1, "that is the newer one's"
    pass_all(observer, plan(generation=2))
    assert seconds(observer) == [1, 1]


def test_stages_may_be_passed_by_different_generations(clock, observer):
    first, *others = GOING_LIVE
    publish(observer, plan(generation=1))
    observer.passed(first, [plan(generation=1)])
    publish(observer, plan(generation=2))
    for stage in others:
        observer.passed(stage, [plan(generation=2)])
    assert observer.statistics().seconds.count == 1, "the newer one has not passed the first stage"
    observer.passed(first, [plan(generation=2)])
    assert observer.statistics().seconds.count == 2


def test_a_service_that_never_rests_costs_no_more_and_forgets_no_change(clock, observer):
    for generation in range(1, 101):
        publish(observer, plan(generation=generation))
        clock.now += 1
    pass_all(observer, plan(generation=99))
    assert seconds(observer) == [100, 99, 98]
    pass_all(observer, plan(generation=100))
    assert len(seconds(observer)) == APART
    assert observer.statistics().waiting == 0


def test_what_nothing_was_planned_for_does_not_count_for_what_comes_later(clock, observer):
    observer.read([])
    observer.planned()
    clock.now += 60
    observer.read([])
    observer.published([plan()])
    observer.planned()
    pass_all(observer, plan())
    assert seconds(observer) == [pytest.approx(0)]


def test_plans_that_no_change_of_the_api_caused_are_not_measured(observer):
    observer.published([plan()])
    pass_all(observer, plan())
    assert observer.statistics().seconds.count == 0


def test_the_oldest_one_underway_is_known(clock, observer):
    observer.read([])
    observer.published([plan("a")])
    observer.planned()
    clock.now += 3
    observer.read([])
    observer.published([plan("b")])
    observer.planned()
    clock.now += 1
    assert (observer.statistics().waiting, observer.statistics().oldest) == (2, 4)


def test_each_measurement_is_in_one_bucket(clock, observer):
    for length in (0.0005, 0.0031, 100.0):
        observer.read([])
        observer.published([plan()])
        observer.planned()
        clock.now += length
        pass_all(observer, plan())
    counts = observer.statistics().seconds.counts
    assert [counts[0], counts[LATENCY_BOUNDS.index(0.005)], counts[-1]] == [1, 1, 1]
    assert observer.statistics().seconds.count == 3


def test_it_follows_the_stage_gate(clock, observer):
    gate = stage_gate()
    gate.follow(observer.passed)
    observer.read([])
    observer.published([plan()])
    for stage in GOING_LIVE:
        say(gate, stage, iter([plan()]))
    assert observer.statistics().seconds.count == 1
