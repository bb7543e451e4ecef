"""Which addresses of a Service its pods answer themselves, and why not the others."""

from typing import Any

import pytest

from kroute.base.forwarding import TUNNEL
from kroute.model.objects import Endpoint
from kroute.model.plan import AddressSet, ServicePlan, TunnelEnd
from kroute.planning.address_owners import AddressOwners
from tests.builders import NODE, endpoint, endpoint_slice, facts, node, plan_service, port, read, service, settings

VIP = "198.51.100.7"
HERE, THERE = endpoint("10.244.1.1", on=NODE), endpoint("10.244.1.2", on="node2")


def make(
    *endpoints: Endpoint, on: bool = True, owners: AddressOwners | None = None, target: int = 80, **spec: Any
) -> ServicePlan:
    annotations = spec.pop("annotations", {"kube-router.io/service.dsr": "tunnel"})
    of = service(annotations=annotations, **{"external_ips": (VIP,), **spec})
    slices = read(endpoint_slice("web-1", *(endpoints or (HERE, THERE)), ports=(target,)))
    return plan_service(of, slices, facts(own=("192.168.123.9",)), settings(direct_return=on), owners=owners)


def tunnelled(plan: ServicePlan) -> set[str]:
    return {it.key.address for it in plan.virtual_servers if it.method == TUNNEL}


def test_pods_answer_from_external_addresses_and_nodes_from_all_others() -> None:
    plan = make()
    assert tunnelled(plan) == {VIP}
    assert plan.direct_vips == (VIP,)
    assert plan.tunnel_ends == (TunnelEnd("10.244.1.1", VIP),)
    assert [it.address for it in plan.vips] == ["10.96.0.10"]
    assert plan.problems == ()


def test_nothing_of_it_is_masqueraded_and_its_other_ports_are_refused_as_those_of_any_vip() -> None:
    sets = {it.set for it in make().set_entries if it.element[0] == VIP}
    assert sets == {AddressSet.EXTERNAL_LOCAL, AddressSet.VIP}
    assert not any(it.set is AddressSet.EXTERNAL for it in make().set_entries)


def test_without_the_annotation_nothing_is_direct() -> None:
    plan = make(annotations={})
    assert (tunnelled(plan), plan.direct_vips, plan.tunnel_ends) == (set(), (), ())


def test_without_endpoints_the_address_stays_direct() -> None:
    """Else it would be bound for the moment in which all pods are replaced."""
    assert make(endpoint("10.244.1.1", on=NODE, ready=False)).direct_vips == (VIP,)


NODES = AddressOwners()
NODES.place_node("node7", node(("InternalIP", "192.0.2.9"), name="node7"))
SHARED = AddressOwners()
SHARED.place_service(service().key, service(external_ips=(VIP,)))
SHARED.place_service(service("other").key, service("other", external_ips=(VIP,)))

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "the setting is off": ({"on": False}, "without --direct-return"),
    "policy Local": ({"kind": "LoadBalancer", "external_traffic_policy": "Local"}, "Local"),
    "another port in the pod": ({"target": 8080}, "leads to port 8080, and a tunnel translates no port"),
    "SCTP": ({"ports": [port(80, protocol="SCTP")]}, "is SCTP"),
    "a pod in the host's network": ({"owners": NODES, "endpoints": [endpoint("192.0.2.9")]}, "hostNetwork"),
    "this node as an endpoint": ({"endpoints": [endpoint("192.168.123.9", on=NODE)]}, "hostNetwork"),
    "nobody knows where a pod is": ({"endpoints": [endpoint("10.244.1.1", on=None)]}, "no nodeName"),
    "an address of two Services": ({"owners": SHARED}, "Service default/other names 198.51.100.7 too"),
}


@pytest.mark.parametrize(("given", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_served_by_translation_with_a_problem(given: dict[str, Any], why: str) -> None:
    endpoints = given.get("endpoints", ())
    plan = make(*endpoints, **{name: it for name, it in given.items() if name != "endpoints"})
    assert (tunnelled(plan), plan.direct_vips, plan.tunnel_ends) == (set(), (), ())
    assert VIP in [it.address for it in plan.vips]
    if "SCTP" not in why:
        [problem] = plan.problems
        assert problem.reason == "NoDirectReturn"
        assert why in problem.message


def test_another_word_than_tunnel_is_a_problem() -> None:
    plan = make(annotations={"kroute.io/direct-return": "yes"})
    assert "is no way of direct return" in plan.problems[0].message
    assert tunnelled(plan) == set()


def test_who_begins_or_ceases_to_share_an_address_is_planned_again() -> None:
    owners = AddressOwners(shared=True)
    first, second, third = (service(it, external_ips=(VIP,)) for it in ("a", "b", "c"))
    assert first.key in owners.place_service(first.key, first)
    assert {first.key, second.key} <= owners.place_service(second.key, second)
    assert owners.place_service(third.key, third) == set()  # nothing changes for the others
    owners.place_service(third.key, None)
    assert first.key in owners.place_service(second.key, None)
