"""The weight of a real server is the product of what is said of it, and only of servers that serve."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.base.schedulers import BY_SHARE, SCHEDULERS
from kroute.model.objects import WEIGHT, ZONE_LABEL, Applied, Endpoint, KubernetesObject, Node, ObjectKey, Pod, Service
from kroute.model.plan import ServicePlan
from kroute.planning.catalog import Catalog
from tests.builders import LISTED_WITH_PODS, endpoint, endpoint_slice, facts, finish, node, pod, service, settings

KEY = ObjectKey("default", "web")
ENDPOINTS = (
    endpoint("10.244.1.1", on="node1", pod="web-1", uid="u1"),
    endpoint("10.244.2.2", on="node2", pod="web-2", uid="u2"),
    endpoint("10.244.3.3", on="node3", pod="web-3", uid="u3"),
)
NODES = (
    node(name="node1", labels={ZONE_LABEL: "a"}, ready=True),
    node(name="node2", labels={ZONE_LABEL: "a", WEIGHT: "3"}, ready=True),
    node(name="node3", labels={ZONE_LABEL: "b"}, ready=True),
)


def weighed(**annotations: str) -> Service:
    """A Service with these annotations of kroute, and the scheduler wrr."""
    named = {f"kroute.io/{name}": text for name, text in annotations.items()}
    return service(annotations={"kroute.io/scheduler": "wrr", **named})


def catalog(web: Service, *others: KubernetesObject, endpoints: Iterable[Endpoint] = ENDPOINTS) -> Catalog:
    made = Catalog(settings(pod_weights=True), facts(zone="a"))
    made.take([Applied(it) for it in (web, endpoint_slice("web-1", *endpoints), *others)])
    made.take(LISTED_WITH_PODS)
    return made


def plan_of(web: Service, *others: KubernetesObject, endpoints: Iterable[Endpoint] = ENDPOINTS) -> ServicePlan:
    plans = {plan.key: plan for plan in catalog(web, *others, endpoints=endpoints).plan_marked()}
    plan = plans[KEY]
    assert isinstance(plan, ServicePlan)
    return plan


def weights(plan: ServicePlan) -> list[int]:
    [server] = plan.virtual_servers
    return [it.weight for it in server.real_servers]


def test_nobody_says_anything() -> None:
    assert weights(plan_of(service())) == [1, 1, 1]


def test_a_node_weighs_its_servers() -> None:
    assert weights(plan_of(weighed(), *NODES)) == [1, 3, 1]


def test_a_pod_weighs_itself_and_the_factors_multiply() -> None:
    web = weighed(weights="zone/a=2,node/node3=5")
    plan = plan_of(web, *NODES, pod("web-2", "4", uid="u2"), pod("web-3", "0", annotation="7"))
    assert weights(plan) == [2, 4 * 3 * 2, 7 * 5]


def test_0_drains_whatever_else_is_said() -> None:
    assert weights(plan_of(weighed(weights="zone/b=0"), *NODES, pod("web-3", "9"))) == [1, 3, 0]
    assert weights(plan_of(weighed(weights="zone/a=0,zone/b=0"), *NODES)) == [0, 0, 0]


def test_a_pod_of_another_uid_or_namespace_is_another_one() -> None:
    plan = plan_of(weighed(), pod("web-2", "4", uid="before"), pod("web-3", "4", namespace="other"))
    assert weights(plan) == [1, 1, 1]


def test_a_wrong_weight_of_a_pod_is_told_once_and_counts_as_one() -> None:
    plan = plan_of(weighed(), pod("web-2", "many"), pod("web-1", "-1"), pod("web-3", "2"))
    assert weights(plan) == [1, 1, 2]
    [problem] = plan.problems
    assert problem.reason == "InvalidWeight"
    assert problem.message == (
        "label kroute.io/weight=-1 of Pod web-1 and 1 more: no weight; the pod weighs 1. Allowed: 0 to 65535."
    )


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_scheduler_that_knows_no_weights_is_told_with_those_that_do(scheduler: str) -> None:
    web = service(annotations={"kroute.io/scheduler": scheduler, "kroute.io/weights": "node/node1=2"})
    problems = [it for it in plan_of(web).problems if it.reason == "SchedulerIgnoresWeights"]
    assert bool(problems) is (scheduler in {"rr", "lc", "dh"})
    for problem in problems:
        assert problem.message == (
            f"scheduler {scheduler} ignores all weights except 0. "
            "Choose one that divides connections by weight: wrr, wlc, sed, nq, mh, sh, twos."
        )


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_locality_needs_a_scheduler_that_divides_by_weight(scheduler: str) -> None:
    web = service(annotations={"kroute.io/scheduler": scheduler, "kroute.io/locality": "prefer-node"})
    plan = plan_of(web, *NODES)
    is_obeyed = scheduler in BY_SHARE
    assert [it.subject for it in plan.problems] == ([] if is_obeyed else [f"scheduler {scheduler}"])
    # node1 has room for 3/5 of its own connections, and node2 for more than its own.
    assert weights(plan) == ([3, 2, 0] if is_obeyed else [1, 3, 1])


class TestLocality:
    def test_what_is_near_comes_first_till_its_share_is_used(self) -> None:
        plain = tuple(node(name=it.key.name, labels={ZONE_LABEL: it.metadata.labels[ZONE_LABEL]}, ready=True)
                      for it in NODES if it.metadata.labels)  # fmt: skip
        web = weighed(locality="prefer-node, spill 60%")
        # 60 % at home; node2 has no more room for its zone; of the rest each has 40 % of its room.
        assert weights(plan_of(web, *plain)) == [11, 2, 2]

    def test_policies_and_hints_choose_and_weights_only_weigh(self) -> None:
        local = service(
            annotations={"kroute.io/scheduler": "wrr", "kroute.io/locality": "prefer-zone"},
            internal_traffic_policy="Local",
        )
        [server] = plan_of(local, *NODES, pod("web-2", "9")).virtual_servers
        assert [(it.address, it.weight) for it in server.real_servers] == [("10.244.1.1", 1)]
        hinted = [
            endpoint("10.244.1.1", on="node1", zones=["a"]),
            endpoint("10.244.2.2", on="node2", zones=["a"]),
            endpoint("10.244.3.3", on="node3", zones=["b"]),
        ]
        [server] = plan_of(weighed(weights="zone/b=9"), *NODES, endpoints=hinted).virtual_servers
        assert [(it.address, it.weight) for it in server.real_servers] == [("10.244.1.1", 1), ("10.244.2.2", 3)]

    def test_where_hints_are_for_this_node_no_other_node_has_clients(self) -> None:
        both = [endpoint(f"10.244.{it}.{it}", on=f"node{it}", zones=["a"], nodes=["node1"]) for it in (1, 2)]
        plain = [node(name=f"node{it}", labels={ZONE_LABEL: "a"}, ready=True) for it in (1, 2)]
        # Half of this node's connections fit at home; the other half fits into the zone.
        assert weights(plan_of(weighed(locality="prefer-node"), *plain, endpoints=both)) == [1, 1]
        assert weights(plan_of(weighed(locality="prefer-node", weights="node/node1=3"), *plain, endpoints=both)) == [
            3,
            1,
        ]

    def test_a_cluster_without_nodes_weighs_alike(self) -> None:
        assert weights(plan_of(weighed(locality="prefer-node"))) == [1, 1, 1]


class TestReasons:
    def test_a_view_says_where_each_weight_comes_from(self) -> None:
        made = catalog(weighed(weights="zone/a=2"), *NODES, pod("web-2", "4"), pod("web-3", "0"))
        made.plan_marked()
        assert self.reasons(made) == [
            "ready, weight 2 = zone/a 2",
            "ready, weight 24 = pod 4 x node 3 x zone/a 2",
            "ready, weight 0 = pod 0",
        ]

    def test_a_scaled_weight_is_told_apart(self) -> None:
        made = catalog(weighed(locality="prefer-node, spill 60%"), *NODES)
        made.plan_marked()
        [first, *others] = self.reasons(made)
        assert first.startswith("ready, weight ")
        assert " ~ locality " in first
        assert "% of this node's connections" in first
        assert all(" ~ " in it for it in others)

    def test_without_weights_nothing_is_said(self) -> None:
        made = catalog(service())
        made.plan_marked()
        assert self.reasons(made) == ["ready", "ready", "ready"]

    @staticmethod
    def reasons(made: Catalog) -> list[str]:
        view = finish(made.explaining(KEY))
        assert view is not None
        return [it.reason for it in view.frontends[0].endpoints]


WEIGHTS = st.sampled_from(["0", "1", "2", "7", "65535", "x"])
ENDPOINT = st.builds(
    endpoint,
    st.integers(1, 9).map("10.244.0.{}".format),
    ready=st.booleans(),
    serving=st.booleans(),
    terminating=st.booleans(),
    on=st.sampled_from(["node1", "node2", "node3", None]),
    zones=st.sampled_from([(), ("a",), ("b",)]),
    nodes=st.sampled_from([(), ("node1",), ("node1", "node2")]),
    pod=st.sampled_from(["web-1", "web-2", ""]),
)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "kroute.io/scheduler": st.sampled_from(SCHEDULERS),
        "kroute.io/weights": st.sampled_from(["zone/a=3,node/node2=0", "zone/b=65535,node/node3=65535", "?"]),
        "kroute.io/locality": st.sampled_from(["prefer-node", "prefer-zone, spill 30%", "?"]),
    },
)
SOME_NODES = st.lists(
    st.builds(
        lambda name, zone, weight, ready: node(name=name, labels={ZONE_LABEL: zone, WEIGHT: weight}, ready=ready),
        st.sampled_from(["node1", "node2", "node3"]),
        st.sampled_from(["a", "b"]),
        WEIGHTS,
        st.booleans(),
    )
)


@given(
    st.lists(ENDPOINT, max_size=9, unique_by=lambda it: it.addresses),
    ANNOTATIONS,
    SOME_NODES,
    st.lists(st.builds(pod, st.sampled_from(["web-1", "web-2"]), WEIGHTS)),
    st.sampled_from(["Local", None]),
    st.randoms(use_true_random=False),
)
def test_weights_bring_nobody_in_and_leave_nobody_out(
    endpoints: list[Endpoint],
    annotations: dict[str, str],
    nodes: list[Node],
    pods: list[Pod],
    policy: str | None,
    random: object,
) -> None:
    web = service(annotations=annotations, internal_traffic_policy=policy)
    zones = [node(name=it.key.name, labels={ZONE_LABEL: (it.metadata.labels or {})[ZONE_LABEL]}) for it in nodes]
    plain = plan_of(service(internal_traffic_policy=policy), *zones, endpoints=endpoints)
    plan = plan_of(web, *nodes, *pods, endpoints=endpoints)
    [before], [after] = plain.virtual_servers, plan.virtual_servers
    assert [it[:2] for it in before.real_servers] == [it[:2] for it in after.real_servers]
    assert all(0 <= it.weight <= 65535 for it in after.real_servers)
    assert plain.set_entries == plan.set_entries
    last: dict[ObjectKey, KubernetesObject] = {it.key: it for it in [*nodes, *pods]}
    random.shuffle(objects := [*last.values()])  # type: ignore[attr-defined]
    again = plan_of(web, *objects, endpoints=reversed(endpoints))
    assert again.virtual_servers == plan.virtual_servers
