"""Whatever objects contain, planning raises nothing, victims keep their plans, and plans and pieces are bounded."""

from ipaddress import ip_network
from itertools import count
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from kroute.director.catalog import DirectorCatalog
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.objects import Applied, Deleted, KubernetesObject, Listed, Node, ObjectKey, ObjectMeta, Pod
from kroute.model.plan import MOST_PROBLEMS, ServicePlan
from kroute.model.steps import Meter
from kroute.planning.backend_slices import NO_BOUND
from kroute.planning.catalog import Catalog
from kroute.planning.pod_routes import PodRouteCatalog
from kroute.planning.weight_facts import MAX_WEIGHT, PAUSE
from tests.builders import (
    LISTED,
    LISTED_WITH_PODS,
    NODE_IPV4,
    endpoint_slice,
    facts,
    finish,
    node,
    planned,
    port,
    service,
    settings,
)
from tests.unit.fuzz.fields import ATTACKERS, histories, nodes
from tests.unit.fuzz.strategies import fuzzed

OLD = "2019-01-01T00:00:00Z"
VICTIMS: list[KubernetesObject] = [
    service("victim", "10.96.0.20", created=OLD, ports=[port(80), port(443, "https")]),
    service(
        "balanced",
        "10.96.0.21",
        created=OLD,
        kind="LoadBalancer",
        balanced=["198.51.100.20"],
        ports=[port(80, node_port=30080)],
        load_balancer_source_ranges=["10.0.0.0/8"],
    ),
    endpoint_slice("victim-1", "10.244.1.9", of="victim"),
    endpoint_slice("balanced-1", "10.244.1.9", of="balanced"),
]
NAMES = ("victim", "balanced")
MOST_SERVERS, MOST_BACKENDS, WORK = 50, 500, 200
LONGEST_PIECE = 3 * (MOST_SERVERS + MOST_BACKENDS) + WORK
"""Units of work: the allowed ones, and one step of one Service; a step may be one port of one slice."""


def catalog_with_victims() -> Catalog:
    """What Nodes change counts at once: between two looks at the clock the pause is over."""
    catalog = Catalog(
        settings(max_virtual_servers=MOST_SERVERS, max_backends=MOST_BACKENDS, pod_weights=True, direct_return=True),
        facts(own=(NODE_IPV4,), pod_cidrs=("10.244.0.0/24",), zone="a"),
        count(0.0, PAUSE).__next__,
    )
    catalog.take([*map(Applied, VICTIMS), *LISTED_WITH_PODS])
    catalog.plan_marked()
    return catalog


def plans_of(catalog: Catalog) -> dict[str, ServicePlan]:
    return {name: catalog.plans[ObjectKey("default", name)] for name in NAMES}


def assert_bounded(plan: ServicePlan) -> None:
    servers = plan.virtual_servers
    assert len(servers) <= MOST_SERVERS
    assert len(plan.vips) <= MOST_SERVERS
    assert sum(len(server.real_servers) for server in servers) <= MOST_BACKENDS
    assert len(plan.set_entries) <= 4 * MOST_SERVERS + 2 * MOST_BACKENDS
    assert len(plan.problems) <= MOST_PROBLEMS + 2
    assert sum(len(problem.message) for problem in plan.problems) < 50_000
    assert plan.health_check is None or max(plan.health_check.local_endpoints.values()) <= MOST_BACKENDS


@fuzzed
@given(items=histories, deletes=st.booleans())
def test_victims_keep_their_plans_and_everything_is_bounded(items: list[KubernetesObject], deletes: bool) -> None:
    catalog = catalog_with_victims()
    before = plans_of(catalog)
    for item in items:
        catalog.take([Applied(item)])
        while catalog.has_marked:
            for plan in catalog.plan_marked(64, WORK):
                if isinstance(plan, ServicePlan):
                    assert plan.key.namespace == ATTACKERS
                    assert_bounded(plan)
    assert plans_of(catalog) == before
    for key in [ObjectKey(ATTACKERS, name) for name in ("a", "b", "c")]:
        finish(catalog.explaining(key))
    if deletes:
        catalog.take([Deleted(type(item), item.key) for item in items])
        while catalog.has_marked:
            catalog.plan_marked(64, WORK)
        assert catalog.plans.keys() == {ObjectKey("default", name) for name in NAMES}
        assert plans_of(catalog) == before


@fuzzed
@given(items=histories)
def test_no_piece_of_planning_is_long(items: list[KubernetesObject]) -> None:
    catalog = catalog_with_victims()
    catalog.take(map(Applied, items))
    with patch("kroute.planning.catalog.Meter", CountedMeter):
        while catalog.has_marked:
            catalog.plan_marked(64, WORK)
            assert CountedMeter.newest.spent <= LONGEST_PIECE


class CountedMeter(Meter):
    """Makes the meter of the newest call of `plan_marked` available."""

    newest: "CountedMeter"

    def __init__(self, limit: int | None) -> None:
        super().__init__(limit)
        CountedMeter.newest = self


@fuzzed
@given(items=histories, order=st.randoms())
def test_what_is_kept_does_not_depend_on_the_order(items: list[KubernetesObject], order: object) -> None:
    newest = list({(type(item), item.key): item for item in items}.values())
    other = list(newest)
    order.shuffle(other)  # type: ignore[attr-defined]
    found = []
    for sequence in (newest, other):
        catalog = catalog_with_victims()
        catalog.take(map(Applied, sequence))
        while catalog.has_marked:
            catalog.plan_marked(64, WORK if sequence is other else NO_BOUND)
        found.append(catalog.plans)
    one, two = found
    assert one.keys() == two.keys()
    assert all(plan.same_as(two[key]) for key, plan in one.items())


def director_with_victim() -> DirectorCatalog:
    chosen = settings(
        external_ip_ranges=("198.51.100.0/24", "203.0.0.0/8"),
        max_virtual_servers=MOST_SERVERS,
        max_backends=MOST_BACKENDS,
    )
    catalog = DirectorCatalog(chosen, NodeFacts("", interfaces=NodeInterfaces(frozenset({"192.0.2.5"}))))
    victim = service("victim", "10.96.0.20", created=OLD, external_ips=["198.51.100.20"], ports=[port(80)])
    near = node(("InternalIP", "192.168.123.251"), name="node1", ready=True)
    catalog.take([*map(Applied, (victim, VICTIMS[2], near)), *LISTED])
    planned(catalog)
    return catalog


@fuzzed
@given(items=histories, data=st.data())
def test_a_director_keeps_the_plans_of_victims(items: list[KubernetesObject], data: st.DataObject) -> None:
    catalog = director_with_victim()
    [before] = catalog.plans.values()
    [(server, [real_server])] = [(it, it.real_servers) for it in before.virtual_servers]
    for item in items:
        if isinstance(item, Pod):  # a director watches none
            continue
        catalog.take([Applied(item)])
        planned(catalog)
        others = sorted(it for it in catalog.probes if it.address != real_server.address)
        catalog.set_failing(
            frozenset(data.draw(st.sets(st.sampled_from(others), max_size=3))) if others else frozenset()
        )
        for plan in planned(catalog):
            assert len(plan.virtual_servers) <= MOST_SERVERS
            assert all(0 <= it.weight <= MAX_WEIGHT for each in plan.virtual_servers for it in each.real_servers)
    [kept] = catalog.plans[before.key].virtual_servers
    assert real_server in kept.real_servers
    assert kept.key == server.key
    catalog.take([Deleted(type(item), item.key) for item in items if not isinstance(item, Pod)])
    planned(catalog)
    [after] = catalog.plans.values()
    assert after.same_as(before)


POD_NETWORKS = tuple(map(ip_network, ("10.244.0.0/16", "fd00:244::/48")))
OWN_PODS = "10.244.0.0/24"


@fuzzed
@given(st.lists(nodes.filter(lambda it: it.metadata.name != ""), max_size=6))
def test_no_node_takes_the_pods_of_an_older_one_or_of_this_one(them: list[Node]) -> None:
    chosen = settings(pod_network=True, cluster_cidrs=tuple(map(str, POD_NETWORKS)))
    catalog = PodRouteCatalog(chosen)
    victim = node(("InternalIP", "192.0.2.77"), name="a-victim", pod_cidrs=("10.244.7.0/24",))
    victim = Node(ObjectMeta("a-victim", creation_timestamp=""), victim.spec, victim.status)
    catalog.take([Applied(victim), *map(Applied, them), Listed(Node)])
    catalog.set_node(facts(own=(NODE_IPV4,), pod_cidrs=(OWN_PODS,)))
    routes = {}
    while plans := catalog.plan_marked():
        for plan in plans:
            assert not routes.keys() & plan.routes.keys()
            routes |= plan.routes
    assert routes["10.244.7.0/24"].node == "192.0.2.77"
    for network in map(ip_network, routes):
        assert any(network.version == of.version and network.subnet_of(of) for of in POD_NETWORKS)
        assert not network.overlaps(ip_network(OWN_PODS))
    assert all(len(problem.message) < 500 for of_node in catalog.problems.values() for problem in of_node)
