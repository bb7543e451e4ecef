"""A Service to which the cluster has assigned an address takes precedence over one that only names it."""

import pytest

from kroute.model.node_facts import NodeInterfaces
from kroute.model.objects import Applied, Deleted, Service
from kroute.model.plan import ServicePlan
from kroute.planning.catalog import Catalog
from tests.builders import LISTED, NODE_IPV4, facts, port, service, settings

FREE = "198.51.100.7"
OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def holders(*items: Service) -> dict[str, list[str]]:
    """Return the Services that are served, each with its addresses and ports beside their ClusterIPs."""
    made = Catalog(settings(), facts())
    made.set_interfaces(NodeInterfaces(frozenset({NODE_IPV4}), (NODE_IPV4,)))
    made.take([*map(Applied, items), *LISTED])
    return {
        plan.key.name: [str(it.key) for it in plan.virtual_servers if not it.key.address.startswith("10.")]
        for plan in made.plan_marked()
        if isinstance(plan, ServicePlan)
    }


SQUATTER = service("squatter", "10.96.0.1", external_ips=(FREE,), created=OLD)
ASSIGNED = {
    "a load balancer's address": service("victim", "10.96.0.2", kind="LoadBalancer", balanced=[FREE], created=NEW),
    "one that the Service also names itself": service(
        "victim", "10.96.0.2", kind="LoadBalancer", balanced=[FREE], external_ips=(FREE,), created=NEW
    ),
    "one of a Service of no known age": service(
        "victim", "10.96.0.2", kind="LoadBalancer", balanced=[FREE], created=None
    ),
}


@pytest.mark.parametrize("victim", ASSIGNED.values(), ids=list(ASSIGNED))
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["squatter first", "victim first"])
def test_an_assigned_address_is_not_squatted_on_by_an_older_service(victim: Service, order: tuple[int, int]) -> None:
    items = [(SQUATTER, victim)[index] for index in order]
    assert holders(*items) == {"squatter": [], "victim": [f"TCP {FREE}:80"]}


def test_of_two_that_only_name_an_address_the_older_has_it() -> None:
    younger = service("younger", "10.96.0.2", external_ips=(FREE,), created=NEW)
    assert holders(younger, SQUATTER) == {"younger": [], "squatter": [f"TCP {FREE}:80"]}


def test_the_address_is_the_squatters_again_when_it_is_assigned_to_nobody() -> None:
    made = Catalog(settings(), facts())
    victim = ASSIGNED["a load balancer's address"]
    made.take([Applied(SQUATTER), Applied(victim), *LISTED])
    made.plan_marked()
    made.take([Deleted(Service, victim.key)])
    [again] = [plan for plan in made.plan_marked() if plan.key == SQUATTER.key]
    assert [it.key.address for it in again.virtual_servers] == ["10.96.0.1", FREE]
    assert again.problems == ()


def test_a_node_port_comes_before_an_older_external_ip_on_the_nodes_address() -> None:
    made = Catalog(settings(external_ips_on_node_addresses=True), facts())
    made.set_interfaces(NodeInterfaces(frozenset({NODE_IPV4}), (NODE_IPV4,)))
    old = service("squatter", "10.96.0.1", external_ips=(NODE_IPV4,), ports=[30080], created=OLD)
    new = service("victim", "10.96.0.2", kind="NodePort", ports=[port(80, node_port=30080)], created=NEW)
    made.take([Applied(old), Applied(new), *LISTED])
    plans = {plan.key.name: plan for plan in made.plan_marked()}
    assert [problem.reason for problem in plans["squatter"].problems] == ["AddressConflict"]
    assert plans["victim"].problems == ()
