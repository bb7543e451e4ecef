"""Programming latency: from the reading of a change to the last stage of the plans that it caused."""

import pytest

from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan
from kroute.reconcile.stages import Milestones, Stage
from kroute.telemetry.latency import APART, BOUNDS, ProgrammingLatency


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def latency(clock: Clock) -> ProgrammingLatency:
    return ProgrammingLatency(clock)


def plan(name: str = "web", generation: int = 1) -> ServicePlan:
    return ServicePlan(ObjectKey("default", name), generation=generation)


def pass_all(latency: ProgrammingLatency, *plans: ServicePlan) -> None:
    for stage in Stage:
        latency.passed(stage, plans)


def seconds(latency: ProgrammingLatency) -> list[float]:
    return [it.seconds for it in latency.newest]


def test_it_is_measured_from_the_reading_to_the_last_stage(clock, latency):
    latency.read()
    clock.now += 0.002
    latency.published([plan()])
    latency.planned()
    for stage in Stage:
        assert latency.statistics().count == 0
        clock.now += 0.01
        latency.passed(stage, [plan()])
    assert seconds(latency) == [pytest.approx(0.002 + 0.01 * len(Stage))]
    assert latency.statistics().waiting == 0


def test_changes_that_are_taken_together_have_the_time_of_the_first(clock, latency):
    latency.read()
    clock.now += 0.5
    latency.read()
    latency.published([plan("a"), plan("b")])
    latency.planned()
    pass_all(latency, plan("a"), plan("b"))
    assert seconds(latency) == [pytest.approx(0.5)] * 2


def publish(latency: ProgrammingLatency, *plans: ServicePlan) -> None:
    latency.read()
    latency.published(plans)
    latency.planned()


def test_a_plan_that_was_replaced_on_its_way_is_done_with_the_newer_one(clock, latency):
    publish(latency, plan(generation=1))
    clock.now += 1
    publish(latency, plan(generation=2))
    clock.now += 0.25
    pass_all(latency, plan(generation=2))
    assert seconds(latency) == [1.25, 0.25]
    assert latency.statistics().waiting == 0


def test_a_plan_that_is_done_does_not_wait_for_the_newer_one(clock, latency):
    publish(latency, plan(generation=1))
    clock.now += 1
    publish(latency, plan(generation=2))
    pass_all(latency, plan(generation=1))
    assert seconds(latency) == [1]
    clock.now += 1
    assert latency.statistics().oldest == 1, "that is the newer one's"
    pass_all(latency, plan(generation=2))
    assert seconds(latency) == [1, 1]


def test_stages_may_be_passed_by_different_generations(clock, latency):
    first, *others = Stage
    publish(latency, plan(generation=1))
    latency.passed(first, [plan(generation=1)])
    publish(latency, plan(generation=2))
    for stage in others:
        latency.passed(stage, [plan(generation=2)])
    assert latency.statistics().count == 1, "the newer one has not passed the first stage"
    latency.passed(first, [plan(generation=2)])
    assert latency.statistics().count == 2


def test_a_service_that_never_rests_costs_no_more_and_forgets_no_change(clock, latency):
    for generation in range(1, 101):
        publish(latency, plan(generation=generation))
        clock.now += 1
    pass_all(latency, plan(generation=99))
    assert seconds(latency) == [100, 99, 98]
    pass_all(latency, plan(generation=100))
    assert len(seconds(latency)) == APART
    assert latency.statistics().waiting == 0


def test_what_nothing_was_planned_for_does_not_count_for_what_comes_later(clock, latency):
    latency.read()
    latency.planned()
    clock.now += 60
    latency.read()
    latency.published([plan()])
    latency.planned()
    pass_all(latency, plan())
    assert seconds(latency) == [pytest.approx(0)]


def test_plans_that_no_change_of_the_api_caused_are_not_measured(latency):
    latency.published([plan()])
    pass_all(latency, plan())
    assert latency.statistics().count == 0


def test_the_oldest_one_underway_is_known(clock, latency):
    latency.read()
    latency.published([plan("a")])
    latency.planned()
    clock.now += 3
    latency.read()
    latency.published([plan("b")])
    latency.planned()
    clock.now += 1
    assert (latency.statistics().waiting, latency.statistics().oldest) == (2, 4)


def test_each_measurement_is_in_one_bucket(clock, latency):
    for length in (0.0005, 0.0031, 100.0):
        latency.read()
        latency.published([plan()])
        latency.planned()
        clock.now += length
        pass_all(latency, plan())
    counts = latency.statistics().buckets
    assert [counts[0], counts[BOUNDS.index(0.005)], counts[-1]] == [1, 1, 1]
    assert sum(counts) == latency.statistics().count == 3


def test_it_follows_the_milestones(clock, latency):
    milestones = Milestones()
    milestones.follow(latency.passed)
    latency.read()
    latency.published([plan()])
    for stage in Stage:
        milestones.reach(stage, iter([plan()]))
    assert latency.statistics().count == 1
