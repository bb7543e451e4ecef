"""Whatever objects contain, a director's planning raises nothing, victims keep their plans, and plans are bounded."""

from hypothesis import given
from hypothesis import strategies as st

from kroute.director.catalog import DirectorCatalog
from kroute.director.plan import MOST_CHECKS
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Applied, EndpointSlice, KubernetesObject, Listed, Node, ObjectKey, Service
from kroute.model.plan import MOST_PROBLEMS, ServicePlan
from tests.builders import endpoint_slice, node, planned, port, service, settings
from tests.unit.fuzz.fields import ATTACKERS, objects
from tests.unit.fuzz.strategies import fuzzed

MOST_SERVERS, MOST_BACKENDS = 50, 500
LONGEST_STEP = 3 * (MOST_SERVERS + MOST_BACKENDS) + 100
"""Units of work: the allowed ones of one Service, and what is planned before a step ends."""
OLD = "2019-01-01T00:00:00Z"
NODES = [
    node(("InternalIP", f"10.0.0.{last}"), ("InternalIP", f"fd00:1::{last}"), name=f"n{last}", ready=True)
    for last in range(1, 4)
]
VICTIMS: list[KubernetesObject] = [
    service("victim", "10.96.0.20", created=OLD, ports=[port(80), port(443, "https")], external_ips=["203.0.113.20"]),
    service(
        "local",
        "10.96.0.21",
        created=OLD,
        kind="NodePort",
        ports=[port(80, node_port=30080)],
        external_ips=["203.0.113.21"],
        external_traffic_policy="Local",
    ),
    endpoint_slice("victim-1", "10.244.1.9", of="victim"),
    endpoint_slice("local-1", "10.244.1.9", of="local"),
]
NAMES = ("victim", "local")


def catalog_with_victims() -> DirectorCatalog:
    made = DirectorCatalog(
        settings(scheduler="wrr", max_virtual_servers=MOST_SERVERS, max_backends=MOST_BACKENDS), NodeFacts("")
    )
    made.take([*map(Applied, [*NODES, *VICTIMS]), *map(Listed, (Service, EndpointSlice, Node))])
    planned(made)
    return made


def plans_of(catalog: DirectorCatalog) -> dict[str, ServicePlan]:
    wanted = {ObjectKey("default", name) for name in NAMES}
    return {key.name: plan for key, plan in catalog.plans.items() if key in wanted}


def plan_in_steps(catalog: DirectorCatalog) -> list[ServicePlan]:
    """The plans of what is marked, made in steps none of which is long."""
    steps = catalog.planning_marked()
    while True:
        try:
            assert next(steps) <= LONGEST_STEP
        except StopIteration as end:
            return list(end.value)


@fuzzed
@given(items=st.lists(objects, max_size=4), verdicts=st.randoms())
def test_victims_keep_their_plans_and_everything_is_bounded(items: list[KubernetesObject], verdicts: object) -> None:
    catalog = catalog_with_victims()
    before, of_victims = plans_of(catalog), set(catalog.probes)
    for item in items:
        if isinstance(item, Node):
            continue  # a Node that is ready is a real server of all, as it should be
        catalog.take([Applied(item)])
        for _ in range(2):
            for plan in plan_in_steps(catalog):
                assert plan.key.namespace == ATTACKERS
                assert len(plan.virtual_servers) <= MOST_SERVERS
                assert sum(len(server.real_servers) for server in plan.virtual_servers) <= MOST_BACKENDS
                assert len(plan.problems) <= MOST_PROBLEMS + 2
                assert len(catalog._probes.get(plan.key, ())) <= MOST_CHECKS
            others = sorted(set(catalog.probes) - of_victims)
            catalog.set_failing(verdicts.sample(others, len(others) // 2))  # type: ignore[attr-defined]
    assert plans_of(catalog) == before


@fuzzed
@given(items=st.lists(objects, max_size=6), order=st.randoms())
def test_a_catalog_that_has_seen_changes_plans_as_one_that_lists(items: list[KubernetesObject], order: object) -> None:
    catalog = catalog_with_victims()
    for item in items:
        catalog.take([Applied(item)])
        plan_in_steps(catalog)
    newest = list({(type(item), item.key): item for item in items}.values())
    order.shuffle(newest)  # type: ignore[attr-defined]
    other = catalog_with_victims()
    other.take(map(Applied, newest))
    plan_in_steps(other)
    found, expected = (each.plans for each in (catalog, other))
    assert found.keys() == expected.keys()
    assert all(plan.same_as(expected[key]) for key, plan in found.items())
    asked = {probe for probe, namespaces in catalog.take_asked().items() if namespaces}
    assert asked == set(catalog.probes) == set(other.probes)
