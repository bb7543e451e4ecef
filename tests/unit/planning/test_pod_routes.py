"""Which routes a node has to the pods of others, by the Nodes alone, and what of hostile Nodes is left out."""

from itertools import permutations
from typing import Any

import pytest

from kroute.model.node_facts import ApiFacts, NodeFacts, NodeInterfaces
from kroute.model.objects import Applied, Deleted, Listed, Node, NodeSpec, ObjectKey, ObjectMeta
from kroute.model.pod_routes import PlannedRoute
from kroute.planning.pod_routes import PodRouteCatalog
from tests.builders import node, settings

ME, IP, IP6 = "node1", "192.168.123.11", "fd00:123::11"
CLUSTER = ("10.244.0.0/16", "fd00:244::/48")
OWN = ("10.244.1.0/24", "fd00:244:0:1::/64")
ON_LINKS = frozenset({("eth0", f"{IP}/24"), ("eth0", f"{IP6}/64"), ("pods", "10.244.1.1/24")})


def here(**changed: Any) -> NodeFacts:
    interfaces = NodeInterfaces(frozenset({IP, IP6}), (IP, IP6), on_links=changed.pop("on_links", ON_LINKS))
    return NodeFacts(**{"name": ME, "ipv4": IP, "ipv6": IP6, "pod_cidrs": OWN, "interfaces": interfaces, **changed})


def a_node(number: int, *cidrs: str, addresses: tuple[str, ...] = (), created: str = "") -> Node:
    """A Node with a number in its name, its addresses and its networks."""
    written = addresses or (f"192.168.123.{10 + number}", f"fd00:123::{10 + number}")
    made = node(*(("InternalIP", it) for it in written), name=f"node{number}")
    networks = cidrs or (f"10.244.{number}.0/24", f"fd00:244:0:{number}::/64")
    metadata = ObjectMeta(f"node{number}", creation_timestamp=created or f"2026-01-{number:02}T00:00:00Z")
    return Node(metadata, NodeSpec(pod_cidrs=networks), made.status)


def catalog_of(*nodes: Node, on: NodeFacts | None = None, **given: Any) -> PodRouteCatalog:
    catalog = PodRouteCatalog(settings(**{"node_name": ME, "pod_network": True, "cluster_cidrs": CLUSTER, **given}))
    catalog.take([*map(Applied, [a_node(1), *nodes]), Listed(Node)])
    catalog.set_node(on or here())
    return catalog


def planned(*nodes: Node, on: NodeFacts | None = None, **given: Any) -> tuple[dict[str, PlannedRoute], list[str]]:
    catalog = catalog_of(*nodes, on=on, **given)
    routes = {network: route for plan in catalog.plan_marked() for network, route in plan.routes.items()}
    return routes, [it.message for problems in catalog.problems.values() for it in problems]


NEAR = a_node(2)
FAR = a_node(3, addresses=("192.168.7.13", "fd00:7::13"))


def tunnelled(routes: dict[str, PlannedRoute]) -> dict[str, bool]:
    return {route.node: route.is_tunnelled for route in routes.values()}


def test_pods_of_nodes_in_the_same_subnet_are_reached_by_their_nodes_and_others_by_tunnels() -> None:
    routes, problems = planned(NEAR, FAR)
    assert problems == []
    assert routes == {
        "10.244.2.0/24": PlannedRoute("192.168.123.12", IP, False),
        "fd00:244:0:2::/64": PlannedRoute("fd00:123::12", IP6, False),
        "10.244.3.0/24": PlannedRoute("192.168.7.13", IP, True),
        "fd00:244:0:3::/64": PlannedRoute("fd00:7::13", IP6, True),
    }


def test_with_a_full_overlay_all_are_reached_by_tunnels() -> None:
    routes, _ = planned(NEAR, FAR, overlay="full")
    assert set(tunnelled(routes).values()) == {True}
    assert len(routes) == 4


def test_without_overlay_routers_know_the_way_to_nodes_in_other_subnets() -> None:
    routes, problems = planned(NEAR, FAR, overlay="off")
    assert tunnelled(routes) == {"192.168.123.12": False, "fd00:123::12": False}
    assert problems == []


def test_a_node_of_one_family_has_routes_of_that_family() -> None:
    routes, problems = planned(NEAR, on=here(ipv6=None))
    assert list(routes) == ["10.244.2.0/24"]
    assert problems == []


def test_the_networks_of_this_nodes_pods_are_those_of_its_families() -> None:
    assert catalog_of().own == OWN
    assert catalog_of(on=here(ipv4=None)).own == OWN[1:]


@pytest.mark.parametrize(
    ("cidrs", "message"),
    [
        ((), "Node node1 has no podCIDRs of its families"),
        (("10.9.0.0/24",), "podCIDR '10.9.0.0/24' of Node node1 is not in --cluster-cidr"),
        (("pods",), "podCIDR 'pods' of Node node1 is not a network"),
    ],
)
def test_what_is_wrong_with_this_nodes_own_networks_is_said(cidrs: tuple[str, ...], message: str) -> None:
    catalog = catalog_of(on=here(pod_cidrs=cidrs))
    assert catalog.own == ()
    [problem] = catalog.problems[ME]
    assert problem.message.startswith(message)
    catalog.set_node(here())
    assert (catalog.own, catalog.problems[ME]) == (OWN, ())


@pytest.mark.parametrize(
    ("cidr", "why"),
    [
        ("0.0.0.0/0", "is not in --cluster-cidr"),
        ("::/0", "is not in --cluster-cidr"),
        ("192.168.123.0/24", "is not in --cluster-cidr"),
        ("192.168.123.0%eth0/24", "is not a network"),
        ("x" * 500, "is not a network"),
        ("10.244.1.0/24", "overlaps with 10.244.1.0/24, the network of this node's own pods"),
        ("10.244.128.0/18", "is too large beside this node's own: at most a /20 counts"),
        ("10.244.0.0/20", "overlaps with 10.244.1.0/24, the network of this node's own pods"),
        ("10.244.1.64/28", "overlaps with 10.244.1.0/24, the network of this node's own pods"),
        ("10.244.2.0/24", "overlaps with that of Node node2, which is older"),
        ("10.244.2.192/26", "overlaps with that of Node node2, which is older"),
        ("10.244.2.0/23", "overlaps with that of Node node2, which is older"),
        ("10.244.96.0/20", "overlaps with the Service range (10.244.100.0/24)"),
        ("10.244.53.0/24", "overlaps with 10.244.53.53/32, an address that this node needs"),
        ("10.244.200.0/25", "overlaps with 10.244.200.0/24, the network of this node's interface eth1"),
    ],
)
def test_a_hostile_nodes_network_is_left_out_with_one_problem_and_takes_nothing_from_others(
    cidr: str, why: str
) -> None:
    on_links = frozenset({*ON_LINKS, ("eth1", "10.244.200.7/24")})
    facts = here(on_links=on_links, api=ApiFacts(servers=frozenset({"10.244.53.53"})))
    routes, [problem] = planned(NEAR, a_node(9, cidr), on=facts, service_cidrs=("10.244.100.0/24",))
    assert list(routes) == ["10.244.2.0/24", "fd00:244:0:2::/64"]
    assert why in problem
    assert "of Node node9" in problem
    assert len(problem) < 400


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (IP, f"claims {IP}, which is this node's"),
        ("10.244.2.7", "the address 10.244.2.7 of its Node is one of pods"),
        ("127.0.0.1", "its Node has no IPv4 address"),
        ("224.0.0.1", "its Node has no IPv4 address"),
        ("8.8.8.8", "the address 8.8.8.8 of its Node is not in --node-address-range"),
    ],
)
def test_pods_behind_an_address_that_no_node_can_have_are_not_reached(address: str, why: str) -> None:
    ranges = ("192.168.0.0/16", "fd00:123::/64")
    hostile = a_node(9, "10.244.9.0/24", addresses=(address,))
    routes, [problem] = planned(NEAR, hostile, node_address_ranges=ranges)
    assert list(routes) == ["10.244.2.0/24", "fd00:244:0:2::/64"]
    assert why in problem


def test_the_older_of_two_nodes_has_a_network_in_whatever_order_they_are_seen() -> None:
    both = [a_node(2, "10.244.8.0/24"), a_node(3, "10.244.8.0/25"), a_node(4, "10.244.8.128/25")]
    for order in permutations(both):
        catalog = catalog_of()
        catalog.plan_marked()
        for each in order:
            catalog.take([Applied(each)])
            catalog.plan_marked()
        assert {name for name, problems in catalog.problems.items() if problems} == {"node3", "node4"}
        catalog.take([Deleted(Node, ObjectKey("", "node2"))])
        plans = {plan.key.name: list(plan.routes) for plan in catalog.plan_marked()}
        assert plans == {"node2": [], "node3": ["10.244.8.0/25"], "node4": ["10.244.8.128/25"]}


def test_an_old_node_that_claims_the_whole_range_takes_nothing_from_newer_ones() -> None:
    greedy = a_node(9, "10.244.128.0/17", "10.244.0.0/16", created="2020-01-01T00:00:00Z")
    routes, problems = planned(NEAR, FAR, greedy)
    assert len(routes) == 4
    assert ["too large" in problem for problem in problems] == [True, True]


def test_a_change_of_one_node_plans_that_node_alone() -> None:
    catalog = catalog_of(*(a_node(number) for number in range(2, 30)))
    while catalog.has_marked:
        catalog.plan_marked()
    moved = a_node(7, addresses=("192.168.123.99",))
    catalog.take([Applied(moved), Applied(a_node(8))])
    [plan] = catalog.plan_marked()
    assert plan.key.name == "node7"
    assert plan.routes["10.244.7.0/24"].node == "192.168.123.99"


def test_nothing_is_planned_before_all_nodes_are_known() -> None:
    catalog = PodRouteCatalog(settings(node_name=ME, pod_network=True, cluster_cidrs=CLUSTER))
    catalog.take([Applied(NEAR)])
    catalog.set_node(here())
    assert not catalog.has_marked
    assert catalog.plan_marked() == []
    catalog.take([Listed(Node)])
    assert [plan.key.name for plan in catalog.plan_marked()] == ["node2"]


def test_when_the_nodes_own_address_changes_all_routes_are_planned_again() -> None:
    catalog = catalog_of(NEAR, FAR)
    catalog.plan_marked()
    catalog.set_node(here())
    assert not catalog.has_marked, "nothing has changed"
    catalog.set_node(here(ipv4="192.168.123.77"))
    sources = {route.source for plan in catalog.plan_marked() for route in plan.routes.values()}
    assert sources == {"192.168.123.77", IP6}
