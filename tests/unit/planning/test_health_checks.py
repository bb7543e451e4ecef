"""Health check node ports: what they report, and where the node's firewall lets load balancers in."""

from typing import Any

import pytest

from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Applied, Endpoint, Service
from kroute.model.plan import AddressSet, HealthCheck, ServicePlan
from kroute.planning.catalog import Catalog
from tests.builders import (
    LISTED,
    NODE,
    NODE_IPV4,
    NODE_IPV6,
    endpoint,
    endpoint_slice,
    facts,
    plan_service,
    read,
    service,
    settings,
)

HERE = endpoint("10.244.1.1", on=NODE)
THERE = endpoint("10.244.1.2", on="node2")
LEAVING_HERE = endpoint("10.244.1.3", on=NODE, ready=False, serving=True, terminating=True)
LOCAL: dict[str, Any] = {
    "kind": "LoadBalancer",
    "external_traffic_policy": "Local",
    "health_check_node_port": 31000,
}


def make(of: Service, *endpoints: Endpoint, node: NodeFacts | None = None, **chosen: Any) -> ServicePlan:
    return plan_service(of, read(endpoint_slice("web-1", *endpoints)), node or facts(), settings(**chosen))


def open_at(plan: ServicePlan) -> list[tuple[str | int, ...]]:
    return [it.element for it in plan.set_entries if it.set is AddressSet.HEALTH_CHECK]


def test_it_counts_ready_endpoints_of_this_node_each_once_by_family() -> None:
    slices = [
        endpoint_slice("web-1", HERE, THERE, LEAVING_HERE, ports=[8080]),
        endpoint_slice("web-2", HERE, endpoint("10.244.1.9", on=NODE), ports=[9090]),
        endpoint_slice("web-6", endpoint("fd00:10::1", on=NODE), address_type="IPv6"),
    ]
    of = service("web", "10.96.0.10", "fd00:96::a", **LOCAL)
    assert plan_service(of, read(*slices), facts(), settings()).health_check == HealthCheck(
        31000, {Family.IPV4: 2, Family.IPV6: 1}
    )


def test_without_local_endpoints_it_counts_none() -> None:
    assert make(service(**LOCAL), THERE, LEAVING_HERE).health_check == HealthCheck(31000, {Family.IPV4: 0})


@pytest.mark.parametrize("field", [{"kind": "NodePort"}, {"external_traffic_policy": "Cluster"}])
def test_it_is_for_load_balancers_with_policy_local(field: dict[str, str]) -> None:
    plan = make(service(**{**LOCAL, **field}), HERE)
    assert (plan.health_check, open_at(plan)) == (None, [])


def test_the_firewall_lets_in_on_every_address_for_node_ports_whatever_families_the_service_has() -> None:
    """The socket listens on all of them; it is one for both families."""
    plan = make(service(**LOCAL), HERE, node=facts(own=(NODE_IPV4, NODE_IPV6)))
    assert open_at(plan) == [(NODE_IPV4, 6, 31000), (NODE_IPV6, 6, 31000)]


def test_no_service_opens_a_protected_port() -> None:
    plan = make(service(**{**LOCAL, "health_check_node_port": 10250}), HERE)
    assert (plan.health_check, open_at(plan)) == (HealthCheck(10250, {Family.IPV4: 1}), [])


def test_new_addresses_of_the_node_are_opened_for_a_service_without_node_ports() -> None:
    catalog = Catalog(settings(), facts(own=(NODE_IPV4,)))
    catalog.take([Applied(service(**LOCAL)), *LISTED])
    catalog.plan_marked()
    catalog.set_node(facts(own=(NODE_IPV4, "192.168.123.7")))
    plans = [plan for plan in catalog.plan_marked() if isinstance(plan, ServicePlan)]
    assert [open_at(plan) for plan in plans] == [[(NODE_IPV4, 6, 31000), ("192.168.123.7", 6, 31000)]]
