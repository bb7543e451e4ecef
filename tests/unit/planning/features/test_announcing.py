"""Which addresses of a Service a node announces, by the settings, the annotations and the traffic policies."""

from typing import Any

import pytest

from kroute.model.objects import Endpoint
from tests.builders import NODE, endpoint, endpoint_slice, facts, plan_service, read, service, settings

CLUSTER_IP, EXTERNAL_IP, BALANCED = "10.96.0.10", "198.51.100.7", "203.0.113.7"
HERE, THERE = endpoint("10.244.1.1", on=NODE), endpoint("10.244.1.2", on="node2")
ALL = {"advertise_cluster_ip": True, "advertise_external_ip": True, "advertise_loadbalancer_ip": True}


def announced(*endpoints: Endpoint, **spec: Any) -> set[str]:
    return set(announced_by(*endpoints, **spec))


def announced_by(
    *endpoints: Endpoint, on: dict[str, Any] = ALL, own: str = "192.168.123.9", **spec: Any
) -> dict[str, frozenset[str]]:
    """The nodes that alone may announce each address; none: every node may."""
    of = service(**{"kind": "LoadBalancer", "external_ips": (EXTERNAL_IP,), "balanced": (BALANCED,), **spec})
    slices = read(endpoint_slice("web-1", *(endpoints or (HERE, THERE))))
    return dict(plan_service(of, slices, facts(own=(own,)), settings(**{"announce": True, **on})).announced)


@pytest.mark.parametrize(
    ("on", "expected"),
    {
        "none": ({}, set()),
        "ClusterIPs": ({"advertise_cluster_ip": True}, {CLUSTER_IP}),
        "external IPs": ({"advertise_external_ip": True}, {EXTERNAL_IP}),
        "the load balancer's": ({"advertise_loadbalancer_ip": True}, {BALANCED}),
        "all": (ALL, {CLUSTER_IP, EXTERNAL_IP, BALANCED}),
        "the whole is off": ({**ALL, "announce": False}, set()),
    }.values(),
)
def test_the_settings_say_which_kinds_are_announced(on: dict[str, Any], expected: set[str]) -> None:
    assert announced(on=on) == expected


@pytest.mark.parametrize("prefix", ["kube-router.io/service.advertise.", "kroute.io/advertise-"])
def test_a_service_may_say_otherwise_of_each_kind(prefix: str) -> None:
    words = ("clusterip", "externalip", "loadbalancerip") if "service" in prefix else None
    cluster, external, balanced = words or ("cluster-ip", "external-ip", "loadbalancer-ip")
    off = {f"{prefix}{cluster}": "false", f"{prefix}{balanced}": "off"}
    assert announced(annotations=off) == {EXTERNAL_IP}
    assert announced(annotations={f"{prefix}{external}": "true"}, on={}) == {EXTERNAL_IP}


def test_a_word_that_says_nothing_changes_nothing_and_is_a_problem() -> None:
    annotations = {"kube-router.io/service.advertise.clusterip": "maybe"}
    plan = plan_service(service(annotations=annotations), (), facts(), settings(announce=True, **ALL))
    assert plan.announced == ((CLUSTER_IP, frozenset()),)
    assert [problem.reason for problem in plan.problems] == ["InvalidAnnotation"]


LOCAL = {"external_traffic_policy": "Local"}
LEAVING = endpoint("10.244.1.3", on=NODE, ready=False, serving=True, terminating=True)


@pytest.mark.parametrize(
    ("endpoints", "spec", "expected"),
    {
        "a ready one here": ([HERE], LOCAL, {CLUSTER_IP, EXTERNAL_IP, BALANCED}),
        "none here": ([THERE], LOCAL, {CLUSTER_IP}),
        "one here that terminates": ([LEAVING, THERE], LOCAL, {CLUSTER_IP}),
        "by annotation": ([THERE], {"annotations": {"kube-router.io/service.local": "true"}}, {CLUSTER_IP}),
        "inside": ([THERE], {"internal_traffic_policy": "Local"}, {EXTERNAL_IP, BALANCED}),
        "without endpoints with policy Cluster": (
            [endpoint("10.244.1.1", on=NODE, ready=False)],
            {},
            {CLUSTER_IP, EXTERNAL_IP, BALANCED},
        ),
    }.values(),
)
def test_with_policy_local_only_a_node_with_a_ready_endpoint_announces(
    endpoints: list[Endpoint], spec: dict[str, Any], expected: set[str]
) -> None:
    assert announced(*endpoints, **spec) == expected


def test_of_an_address_with_policy_local_the_nodes_are_known_that_serve_every_port_of_it() -> None:
    third = endpoint("10.244.1.4", on="node3", ready=False)
    of_all = {CLUSTER_IP: frozenset[str]()}
    here = frozenset({NODE})
    assert announced_by(HERE, THERE, third, **LOCAL) == {
        **of_all,
        **dict.fromkeys((EXTERNAL_IP, BALANCED), here | {"node2"}),
    }
    assert announced_by(HERE, third, **LOCAL) == {**of_all, **dict.fromkeys((EXTERNAL_IP, BALANCED), here)}


def test_what_the_node_does_not_serve_as_a_vip_is_not_announced() -> None:
    """Its own address, one that the Service leaves to its load balancer, and those that are not allowed."""
    own = {"external_ips_on_node_addresses": True, **ALL}
    assert announced(own=EXTERNAL_IP, on=own) == {CLUSTER_IP, BALANCED}
    assert announced(annotations={"kroute.io/skip-load-balancer-ips": "on"}) == {CLUSTER_IP, EXTERNAL_IP}
    assert announced(on={"strict_external_ips": True, **ALL}) == {CLUSTER_IP}


def test_addresses_of_direct_return_are_announced() -> None:
    annotations = {"kube-router.io/service.dsr": "tunnel"}
    assert EXTERNAL_IP in announced(annotations=annotations, on={"direct_return": True, **ALL})
