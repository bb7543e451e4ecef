"""A pod's change is measured from the time in its EndpointSlice until it is in this node's kernel."""

import msgspec
import pytest

from kroute.model.objects import SERVICE_NAME_LABEL, Applied, Deleted, EndpointSlice, ObjectKey, ObjectMeta, Service
from kroute.model.plan import ServicePlan
from kroute.reconcile.stage_gate import GOING_LIVE, Stage
from kroute.telemetry.changes import MOST_OF_A_SERVICE, NETWORK_BOUNDS, ChangeObserver
from kroute.watchers.kubernetes.decoding import trigger_time

WEB = ObjectKey("default", "web")
START = 1000.0


class Node:
    """An agent's change observer, on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = START
        self.changes = ChangeObserver("node", lambda: self.now, lambda: self.now)
        self.programming = self.changes.programming.durations["IPv4"]

    def reads(self, triggered: float | None, *, name: str = "web") -> None:
        labels = {SERVICE_NAME_LABEL: name}
        item = EndpointSlice(ObjectMeta(f"{name}-1", "default", labels=labels), "IPv4")
        self.changes.read([Applied(item, triggered)])

    def plans(self, *generations: int) -> list[ServicePlan]:
        plans = [ServicePlan(WEB, generation) for generation in generations]
        self.changes.published(plans)
        self.changes.planned()
        return plans

    def passes(self, plans: list[ServicePlan], *stages: Stage) -> None:
        for stage in stages:
            self.changes.passed(stage, plans)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_change_is_measured_when_its_plan_has_passed_every_stage(node: Node) -> None:
    node.now = START + 10
    node.reads(START + 8)
    plans = node.plans(1)
    node.now = START + 11
    *stages, last = GOING_LIVE
    node.passes(plans, *stages)
    assert node.programming.count == 0
    node.passes(plans, last)
    assert (node.programming.count, node.programming.sum) == (1, 3.0)


def test_changes_that_one_plan_brings_together_are_measured_one_by_one(node: Node) -> None:
    node.now = START + 10
    node.reads(START + 5)
    node.reads(START + 9)
    node.passes(node.plans(1), *GOING_LIVE)
    assert (node.programming.count, node.programming.sum) == (2, 6.0)


def test_a_stage_of_an_older_plan_does_not_end_a_newer_change(node: Node) -> None:
    node.reads(START)
    old = node.plans(1)
    node.reads(START)
    node.passes(old, *list(GOING_LIVE)[:2])
    new = node.plans(2)
    node.passes(old, *GOING_LIVE)
    assert node.programming.count == 0
    node.passes(new, *GOING_LIVE)
    assert node.programming.count == 2


def test_a_change_that_means_nothing_here_is_done_with_its_planning(node: Node) -> None:
    node.now = START + 2
    node.reads(START + 1)
    node.plans()
    assert (node.programming.count, node.programming.sum) == (1, 1.0)


@pytest.mark.parametrize("triggered", [None, START - 1])
def test_what_tells_no_time_or_happened_before_the_start_is_left_out(node: Node, triggered: float | None) -> None:
    node.reads(triggered)
    node.passes(node.plans(1), *GOING_LIVE)
    assert node.programming.count == 0


def test_a_clock_that_is_ahead_does_not_count_backwards(node: Node) -> None:
    node.reads(START + 60)
    node.plans()
    assert node.programming.sum == 0.0


def test_a_service_that_changes_without_end_keeps_so_much_and_no_more(node: Node) -> None:
    node.reads(START)
    plans = node.plans(1)
    for _ in range(10 * MOST_OF_A_SERVICE):
        node.reads(START)
        plans = node.plans(2)
    node.passes(plans, *GOING_LIVE)
    assert node.programming.count == MOST_OF_A_SERVICE


def test_the_ranges_are_those_of_kube_proxy() -> None:
    chosen = [NETWORK_BOUNDS[index] for index in (0, 2, 60, 61, 72, -1)]
    assert chosen == [0.25, 1, 59, 60, 115, 300]
    assert list(NETWORK_BOUNDS) == sorted(set(NETWORK_BOUNDS))


@pytest.mark.parametrize(
    ("metadata", "seconds"),
    [
        ('{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2023-11-14T22:13:20Z"}}', 1.7e9),
        ('{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2023-11-14T22:13:20.5Z"}}', 1.7e9 + 0.5),
        ('{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"yesterday"}}', None),
        ('{"annotations":{"other":"2023-11-14T22:13:20Z"}}', None),
        ('{"annotations":null}', None),
        ("{}", None),
    ],
)
def test_the_time_is_read_out_of_the_annotation(metadata: str, seconds: float | None) -> None:
    named = {"name": "web-1", **msgspec.json.decode(metadata)}
    assert trigger_time(msgspec.convert({"metadata": named, "addressType": "IPv4"}, EndpointSlice)) == seconds
    assert trigger_time(msgspec.convert({"metadata": named, "spec": {}}, Service)) is None


def test_each_family_is_measured_by_itself(node: Node) -> None:
    item = EndpointSlice(ObjectMeta("web-6", "default", labels={SERVICE_NAME_LABEL: "web"}), "IPv6")
    named = EndpointSlice(ObjectMeta("web-n", "default", labels={SERVICE_NAME_LABEL: "web"}), "FQDN")
    node.changes.read([Applied(item, START), Applied(named, START)])
    node.passes(node.plans(1), *GOING_LIVE)
    assert [node.changes.programming.durations[family].count for family in ("IPv4", "IPv6")] == [0, 1]


def test_changes_are_pending_until_every_stage_is_passed(node: Node) -> None:
    node.reads(None)
    node.changes.read([Applied(Service(ObjectMeta("web", "default"))), Applied(Service(ObjectMeta("same", "default")))])
    assert (node.changes.pending(Service), node.changes.pending(EndpointSlice)) == (2, 1)
    plans = node.plans(1)
    assert (node.changes.pending(Service), node.changes.pending(EndpointSlice)) == (1, 1)
    node.passes(plans, *GOING_LIVE)
    assert (node.changes.pending(Service), node.changes.pending(EndpointSlice)) == (0, 0)
    node.changes.read([Deleted(EndpointSlice, ObjectKey("default", "web-1"))])
    assert node.changes.pending(EndpointSlice) == 1
    node.plans()
    assert node.changes.pending(EndpointSlice) == 0
