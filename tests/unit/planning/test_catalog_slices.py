"""Plans that are made in slices of a limited size, with changes in between."""

from kroute.model.objects import Applied, Deleted, KubernetesObject, Service
from kroute.model.plan import NodePlan, ServicePlan
from kroute.planning.catalog import Catalog
from tests.builders import NODE_IPV4, endpoint, endpoint_slice, facts, port, service, settings
from tests.unit.planning.test_catalog import LISTED, listed, real_servers, served


def take(catalog: Catalog, *items: KubernetesObject) -> None:
    catalog.take(map(Applied, items))


def names(catalog: Catalog, limit: int) -> list[str]:
    """Commit a slice; return the names of the planned Services."""
    return [plan.key.name for plan in catalog.plan_marked(limit) if isinstance(plan, ServicePlan)]


def numbered(*numbers: int) -> list[Service]:
    return [service(f"s{number}", f"10.96.1.{number}") for number in numbers]


def test_each_is_planned_once_those_that_have_waited_longest_first() -> None:
    catalog = listed()
    take(catalog, *numbered(1, 2, 3, 4, 5))
    taken = []
    while catalog.has_marked:
        taken.append(names(catalog, 2))
    assert taken == [["s1", "s2"], ["s3", "s4"], ["s5"]]


def test_the_first_slice_of_all_has_the_nodes_own_plan() -> None:
    catalog = Catalog(settings(), facts())
    take(catalog, *numbered(1, 2))
    assert (catalog.plan_marked(1), catalog.has_marked) == ([], True)
    catalog.take(LISTED)
    assert [plan.key.name for plan in catalog.plan_marked(1)] == [NodePlan.key.name, "s1"]
    assert catalog.has_marked


def test_a_change_between_slices_counts_for_one_that_waits() -> None:
    catalog = listed(*numbered(1, 2))
    take(catalog, *(endpoint_slice(f"e{n}", "10.244.1.5", of=f"s{n}") for n in (1, 2)))
    assert names(catalog, 1) == ["s1"]
    take(catalog, endpoint_slice("e2", "10.244.1.6", of="s2"))
    [plan] = catalog.plan_marked(1)
    assert real_servers(plan) == ["10.244.1.6:8080"]
    assert not catalog.has_marked


def test_a_change_between_slices_makes_one_that_was_planned_wait_again_behind_the_others() -> None:
    catalog = listed()
    take(catalog, *numbered(1, 2, 3))
    assert names(catalog, 1) == ["s1"]
    take(catalog, service("s1", "10.96.1.1", ports=[81]))
    assert names(catalog, 2) == ["s2", "s3"]
    [plan] = catalog.plan_marked(2)
    assert served(plan) == ["TCP 10.96.1.1:81"]


def test_a_service_that_goes_between_slices_is_planned_as_gone() -> None:
    catalog = listed(*numbered(1, 2))
    catalog.set_node(facts("192.168.123.239"))
    assert names(catalog, 1) == ["s1"]
    catalog.take([Deleted(Service, numbered(2)[0].key)])
    [plan] = catalog.plan_marked(1)
    assert (plan.key.name, plan.is_empty) == ("s2", True)


def test_services_between_which_an_address_changes_hands_are_planned_together() -> None:
    young = service("young", "10.96.0.10", created="2026-01-02T00:00:00Z")
    catalog = listed(young)
    take(catalog, service("old", "10.96.0.10"), *numbered(1, 2))
    assert set(names(catalog, 1)) == {"old", "young"}
    catalog.take([Deleted(Service, service("old").key)])
    assert names(catalog, 1) == ["s1"]
    catalog.plan_marked(1)
    assert set(names(catalog, 1)) == {"old", "young"}
    assert not catalog.has_marked


def test_a_port_of_the_node_changes_hands_in_one_slice_whoever_else_claims_it() -> None:
    catalog = Catalog(settings(), facts(own=(NODE_IPV4,)))
    created = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z")
    rivals = [
        service(f"s{n}", f"10.96.1.{n}", kind="NodePort", ports=[port(80, node_port=30080)], created=when)
        for n, when in enumerate(created, start=1)
    ]
    catalog.take([*map(Applied, rivals), *LISTED])
    while catalog.has_marked:
        catalog.plan_marked(1)
    take(catalog, service("s1", "10.96.1.1", kind="ClusterIP"))
    plans = {plan.key.name: served(plan) for plan in catalog.plan_marked(1)}
    assert [name for name, servers in plans.items() if f"TCP {NODE_IPV4}:30080" in servers] == ["s2"]
    assert plans.keys() == {"s1", "s2"}
    [third] = catalog.plan_marked(1)
    assert third.problems[0].message.count("default/s2") == 1
    assert not catalog.has_marked


def test_a_service_that_changes_while_others_are_planned_gets_no_address_of_another() -> None:
    holder = service("holder", "10.96.0.10", external_ips=["198.51.100.7"], created="2026-01-01T00:00:00Z")
    before, after = (
        service("late", "10.96.0.12", external_ips=addresses, created="2026-01-02T00:00:00Z")
        for addresses in (None, ["198.51.100.7"])
    )
    catalog = listed(holder, before, service("large", "10.96.0.11"))
    endpoints = [endpoint(f"10.244.{number // 200}.{number % 200 + 1}") for number in range(3000)]
    take(catalog, endpoint_slice("e1", *endpoints, of="large"), endpoint_slice("e2", "10.244.99.7", of="late"))
    assert catalog.plan_marked(64, 100) == []
    take(catalog, after)
    plans = [plan for _ in range(1000) for plan in catalog.plan_marked(64, 100) if isinstance(plan, ServicePlan)]
    assert not catalog.has_marked
    assert [served(plan) for plan in plans if plan.key.name == "late"] == [["TCP 10.96.0.12:80"]] * 2
    assert plans[-1].problems[0].reason == "AddressConflict"
