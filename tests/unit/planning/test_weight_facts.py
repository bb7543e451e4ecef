"""A weight that changes plans those Services again that it concerns, and no other."""

from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from kroute.kernel.ipvs.objects import SetRealServer
from kroute.model.objects import WEIGHT, ZONE_LABEL, Applied, Deleted, KubernetesObject, ObjectKey, ObjectMeta, Pod
from kroute.model.plan import NodePlan
from kroute.planning import weight_facts
from kroute.planning.catalog import Catalog
from kroute.planning.weight_facts import PAUSE
from tests.builders import (
    LISTED_WITH_PODS,
    NODE,
    endpoint,
    endpoint_slice,
    facts,
    finish,
    node,
    pod,
    service,
    settings,
)
from tests.unit.fake_node import FakeNode, new_kernel

SERVICES = 50


class Clock:
    """Seconds; at each look `step` more of them have passed."""

    def __init__(self, step: float = PAUSE) -> None:
        self.now = 1000.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def cluster(*more: KubernetesObject, pod_weights: bool = True, clock: Clock | None = None) -> Catalog:
    """Services s0 to s49 on wrr with one pod each, on node0 to node4 in turn."""
    made = Catalog(settings(scheduler="wrr", pod_weights=pod_weights), facts(), clock or Clock())
    for number in range(SERVICES):
        made.take([Applied(service(f"s{number}", f"10.96.1.{number}"))])
        one = endpoint(f"10.244.1.{number}", on=f"node{number % 5}", pod=f"p{number}", uid=f"u{number}")
        made.take([Applied(endpoint_slice(f"s{number}-1", one, of=f"s{number}"))])
    made.take([Applied(it) for it in more])
    made.take(LISTED_WITH_PODS)
    made.plan_marked()
    return made


def planned(made: Catalog, *items: KubernetesObject) -> list[str]:
    """The names of the Services that are planned again after these changes."""
    made.take([Applied(it) for it in items])
    asked: list[str] = []
    planning = made._planning
    made._planning = lambda key, frontends: (asked.append(key.name), planning(key, frontends))[1]  # type: ignore[method-assign, func-returns-value]
    made.plan_marked()
    made._planning = planning  # type: ignore[method-assign]
    return sorted(asked)


def on_node(number: int) -> list[str]:
    return sorted(f"s{service}" for service in range(number, SERVICES, 5))


def test_a_nodes_weight_concerns_the_services_on_it() -> None:
    made = cluster()
    assert planned(made, node(name="node2", labels={WEIGHT: "3"})) == on_node(2)
    assert planned(made, node(name="node2", labels={WEIGHT: "3"})) == [], "a heartbeat"
    assert planned(made, node(name="node2", labels={WEIGHT: "3", ZONE_LABEL: "a"}, ready=True)) == []
    assert planned(made, node(name="node2")) == on_node(2)


def scheduler_of(made: Catalog, name: str) -> str:
    [server] = made.plans[service(name).key].virtual_servers
    return server.scheduler


def test_the_weight_of_a_node_or_a_pod_implies_wrr_where_nothing_chooses_a_scheduler() -> None:
    made = Catalog(settings(pod_weights=True), facts(), Clock())
    pods = [endpoint(f"10.244.1.{number}", on=f"node{number}", pod=f"p{number}") for number in (1, 2, 3)]
    for number, each in enumerate(pods, 1):
        made.take([Applied(service(f"s{number}", f"10.96.1.{number}"))])
        made.take([Applied(endpoint_slice(f"s{number}-1", each, of=f"s{number}"))])
    made.take([Applied(service("s3", "10.96.1.3", annotations={"kroute.io/scheduler": "lc"})), *LISTED_WITH_PODS])
    made.plan_marked()
    names = "s1", "s2", "s3"
    assert [scheduler_of(made, name) for name in names] == ["rr", "rr", "lc"]
    made.take([Applied(node(name="node1", labels={WEIGHT: "3"})), Applied(pod("p2", "5")), Applied(pod("p3", "5"))])
    made.plan_marked()
    assert [scheduler_of(made, name) for name in names] == ["wrr", "wrr", "lc"]
    view = finish(made.explaining(service("s1").key))
    assert view is not None
    assert view.scheduler_reason == "implied by weights of Nodes or Pods, since nothing chooses a scheduler"
    made.take([Applied(service("s1", "10.96.1.1", annotations={"kroute.io/scheduler": "worst"}))])
    made.plan_marked()
    assert scheduler_of(made, "s1") == "wrr"
    assert "is not a scheduler; wrr serves" in made.plans[service("s1").key].problems[0].message
    made.take([Applied(node(name="node1", labels={WEIGHT: "0"})), Deleted(Pod, pod("p2", "5").key)])
    made.plan_marked()
    assert [scheduler_of(made, name) for name in names] == ["rr", "rr", "lc"]


def test_a_zone_concerns_those_that_ask_for_zones_and_readiness_those_with_locality() -> None:
    by_zone = service("s7", "10.96.1.7", annotations={"kroute.io/weights": "zone/a=2"})
    local = service("s8", "10.96.1.8", annotations={"kroute.io/locality": "prefer-zone"})
    made = cluster(by_zone, local)
    assert planned(made, node(name="node4", labels={ZONE_LABEL: "a"}, ready=True)) == ["s7", "s8"]
    assert planned(made, node(name="node4", labels={ZONE_LABEL: "a"}, ready=False)) == ["s8"]
    assert planned(made, service("s7", "10.96.1.7"), service("s8", "10.96.1.8")) == ["s7", "s8"]
    assert planned(made, node(name="node4")) == []


def test_nodes_that_change_again_and_again_count_at_once_and_then_at_times() -> None:
    clock = Clock(step=0)
    local = service("s8", "10.96.1.8", annotations={"kroute.io/locality": "prefer-zone"})
    made = cluster(local, clock=clock)
    clock.now += PAUSE
    assert planned(made, node(name="node4", ready=True)) == ["s8"], "the first change"
    flips = [node(name=f"node{number % 5}", ready=number % 3 > 0, labels={WEIGHT: "2"}) for number in range(50)]
    for flip in flips:
        clock.now += PAUSE / 51
        assert planned(made, flip) == []
    assert made.has_marked is False
    assert made.due_in() == pytest.approx(PAUSE / 51)
    clock.now += PAUSE / 50
    assert made.has_marked is True
    assert planned(made) == sorted(f"s{number}" for number in range(SERVICES)), "all of it together, once"
    assert made.due_in() is None
    assert planned(made, pod("p3", "5", uid="u3"), service("s8", "10.96.1.8")) == ["s3", "s8"], "other changes at once"


def test_a_service_that_is_planned_in_steps_keeps_to_the_nodes_of_its_first_step() -> None:
    endpoints = [endpoint(f"10.244.1.{number}", on=f"node{number % 5}") for number in range(1, 101)]
    local = service("local", annotations={"kroute.io/locality": "prefer-node"})
    nodes = [node(name=f"node{number}", labels={ZONE_LABEL: "a"}, ready=number < 2) for number in range(5)]
    made = cluster(local, endpoint_slice("local-1", *endpoints, of="local"), *nodes, clock=Clock(step=0))
    steps = made._planning(local.key, None)
    next(steps)
    made.take(Applied(node(name=f"node{number}", labels={ZONE_LABEL: "b"}, ready=True)) for number in range(5))
    assert finish(steps) is None, "as planned before"
    assert finish(made._planning(local.key, None)) is not None


def test_a_pods_weight_concerns_the_services_that_name_it() -> None:
    made = cluster()
    assert planned(made, pod("p3", "5", uid="u3")) == ["s3"]
    assert planned(made, pod("p3", "5", uid="u3")) == []
    assert planned(made, pod("p999", "5")) == []
    made.take([Deleted(Pod, pod("p3", "5").key)])
    assert planned(made) == ["s3"]


def test_a_pod_that_two_slices_name_counts_till_both_are_gone() -> None:
    both = [endpoint_slice(f"s3-{number}", endpoint("10.244.1.3", pod="p3"), of="s3") for number in (1, 2)]
    made = cluster(*both)
    assert planned(made, pod("p3", "5")) == ["s3"]
    made.take([Deleted(type(both[0]), both[0].key)])
    assert planned(made, pod("p3", "6")) == ["s3"]
    assert planned(made, endpoint_slice("s3-2", endpoint("10.244.1.3", pod="p3"), of="s4")) == ["s3", "s4"]
    assert planned(made, pod("p3", "7")) == ["s4"]
    made.take([Deleted(type(both[1]), both[1].key)])
    made.plan_marked()
    assert planned(made, pod("p3", "8")) == []


def test_a_slice_costs_its_own_pods_and_not_those_of_the_other_slices() -> None:
    made = cluster()
    many = [endpoint(f"10.244.{number // 250}.{number % 250 + 1}", pod=f"q{number}") for number in range(1000)]
    slices = [endpoint_slice(f"s3-{at}", *many[at : at + 100], of="s3") for at in range(0, 1000, 100)]
    made.take(map(Applied, slices))
    made.plan_marked()
    with patch.object(weight_facts, "ObjectKey", Mock(side_effect=ObjectKey)) as keys:
        made.take([Applied(slices[4])])
    assert keys.call_count == 100


def test_without_the_setting_nothing_is_kept_of_pods() -> None:
    made = cluster(pod_weights=False)
    assert planned(made, pod("p3", "5")) == []
    assert all(not piece.pods for slices in made.slices.by_service.values() for piece in slices)


def test_of_the_pods_that_come_for_network_policies_those_with_a_weight_count() -> None:
    made = cluster(pod("p3", "5"))
    assert planned(made, Pod(ObjectMeta("p4", "default"))) == []
    assert made._weights._pods.keys() == {pod("p3", "5").key}
    assert planned(made, Pod(ObjectMeta("p3", "default"))) == ["s3"]


def test_nothing_is_kept_of_what_went() -> None:
    made = cluster(service("s7", "10.96.1.7", annotations={"kroute.io/weights": "zone/a=2"}), pod("p3", "5"))
    for number in range(SERVICES):
        made.take([Deleted(type(service()), service(f"s{number}").key)])
        made.take([Deleted(type(endpoint_slice()), endpoint_slice(f"s{number}-1").key)])
    made.take([Deleted(Pod, pod("p3", "5").key), Applied(node(name="n", labels={WEIGHT: "2"}, ready=True))])
    made.take([Deleted(type(node()), node(name="n").key)])
    made.plan_marked()
    weights = made._weights
    assert (weights._asking, weights._pods, weights._service_of) == ({}, {}, {})
    assert (weights._slices._values, weights._slices._owners) == ({}, {})
    assert weights._nodes == {}


@pytest.mark.parametrize(
    ("text", "scheduler", "message"),
    [
        ("3", "wrr", None),
        ("1", "rr", None),
        ("0", "rr", None),
        ("3", "auto", None),
        (
            "heavy",
            "wrr",
            "label kroute.io/weight=heavy: no weight; the real servers of Node node1 weigh 1. Allowed: 0 to 65535.",
        ),
        (
            "3",
            "rr",
            (
                "weight 3 of Node node1 has no effect on Services with the scheduler rr, which is --scheduler's. "
                "Take one that divides connections by weight: wrr, wlc, sed, nq, mh, sh, twos."
            ),
        ),
    ],
)
def test_a_nodes_own_agent_says_what_is_wrong_with_its_weight(text: str, scheduler: str, message: str | None) -> None:
    made = Catalog(settings(scheduler=scheduler), facts())
    made.take([Applied(node(name=NODE)), *LISTED_WITH_PODS])
    made.plan_marked()
    made.take([Applied(node(name=NODE, labels={WEIGHT: text})), Applied(node(name="other", labels={WEIGHT: "?"}))])
    plans = made.plan_marked()
    found = [problem.message for plan in plans if isinstance(plan, NodePlan) for problem in plan.problems]
    assert found == ([message] if message else [])


async def test_a_changed_weight_is_one_message_to_the_kernel(tmp_path: Path) -> None:
    made = Catalog(settings(scheduler="wrr", pod_weights=True), facts())
    pods = [endpoint(f"10.244.1.{number}", on="node2", pod=f"p{number}") for number in range(1, 101)]
    made.take([Applied(service("web")), Applied(endpoint_slice("web-1", *pods)), *LISTED_WITH_PODS])
    here = await FakeNode(tmp_path, new_kernel()).start(*made.plan_marked())
    for weight in (7, 0, 7):
        here.kernel.writes.clear()
        made.take([Applied(pod("p50", str(weight)))])
        await here.apply(*made.plan_marked())
        [change] = here.kernel.writes
        assert isinstance(change, SetRealServer)
        assert (change.real_server, change.weight) == (("10.244.1.50", 8080), weight)
