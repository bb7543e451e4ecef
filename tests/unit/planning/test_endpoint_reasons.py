"""A Service is shown with its frontends, and each endpoint with the reason why it serves or not, as the plan has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Applied, Endpoint, ObjectKey, Service
from kroute.model.plan import Protocol, ServicePlan, VirtualServerKey
from kroute.planning.catalog import Catalog
from kroute.planning.endpoint_reasons import ServiceView
from kroute.settings import Settings
from tests.builders import LISTED, NODE, endpoint, endpoint_slice, facts, finish, service

KEY = ObjectKey("default", "web")


def seen(web: Service, *endpoints: Endpoint, node: NodeFacts | None = None) -> tuple[ServiceView, ServicePlan]:
    catalog = Catalog(Settings(node_name=NODE), node or facts())
    catalog.take([Applied(web), Applied(endpoint_slice("web-1", *endpoints))])
    catalog.take(LISTED)
    plans = {plan.key: plan for plan in catalog.plan_marked()}
    view = finish(catalog.explaining(KEY))
    assert view is not None
    return view, plans[KEY]


def reasons(view: ServiceView, kind: str = "clusterIP") -> dict[str, tuple[bool, str]]:
    [frontend] = [it for it in view.frontends if it.kind == kind]
    return {it.address: (it.serves, it.reason) for it in frontend.endpoints}


def test_by_state() -> None:
    view, _ = seen(
        service(),
        endpoint("10.244.1.1"),
        endpoint("10.244.1.2", ready=False),
        endpoint("10.244.1.3", ready=False, serving=True, terminating=True),
        endpoint("10.244.1.4", ready=False, serving=False, terminating=True),
    )
    assert reasons(view) == {
        "10.244.1.1": (True, "ready"),
        "10.244.1.2": (False, "not ready"),
        "10.244.1.3": (False, "terminating"),
        "10.244.1.4": (False, "terminating, and does not serve any more"),
    }


def test_where_none_is_ready_those_that_leave_serve() -> None:
    leaving = endpoint("10.244.1.3", ready=False, serving=True, terminating=True)
    view, _ = seen(service(), leaving, endpoint("10.244.1.2", ready=False))
    assert reasons(view) == {
        "10.244.1.3": (True, "terminating, but none is ready"),
        "10.244.1.2": (False, "not ready"),
    }


@pytest.mark.parametrize(("zone", "serves"), [("a", True), ("b", False)])
def test_by_hints(zone: str, serves: bool) -> None:
    near, far = endpoint("10.244.1.1", zones=["a"]), endpoint("10.244.1.2", zones=["b"])
    view, _ = seen(service(), near, far, node=facts(zone=zone))
    assert reasons(view)["10.244.1.1"] == ((True, "ready") if serves else (False, "its hints are for zone a"))


def test_by_policy() -> None:
    here, there = endpoint("10.244.1.1", on=NODE), endpoint("10.244.1.2")
    view, _ = seen(service(internal_traffic_policy="Local"), here, there)
    assert reasons(view) == {
        "10.244.1.1": (True, "ready"),
        "10.244.1.2": (False, "on another node, and the policy is Local"),
    }


def test_policy_local_without_a_local_endpoint_is_widened_for_this_nodes_clients() -> None:
    web = service(external_ips=("203.0.113.7",), external_traffic_policy="Local")
    view, _ = seen(web, endpoint("10.244.1.2"))
    assert reasons(view, "externalIP") == {"10.244.1.2": (True, "ready")}
    view, _ = seen(web, endpoint("10.244.1.2"), endpoint("10.244.1.1", on=NODE))
    assert reasons(view, "externalIP")["10.244.1.2"] == (False, "on another node, and the policy is Local")


def test_an_older_services_address_is_said_to_be_held() -> None:
    catalog = Catalog(Settings(node_name=NODE), facts())
    for name, created in (("web", "2026-01-02T00:00:00Z"), ("old", "2026-01-01T00:00:00Z")):
        catalog.take([Applied(service(name, created=created))])
    catalog.take(LISTED)
    catalog.plan_marked()
    view = finish(catalog.explaining(KEY))
    assert view is not None
    assert [it.held_by for it in view.frontends] == ["default/old"]
    assert catalog.holder_of(VirtualServerKey(Protocol.TCP, "10.96.0.10", 80)) == ObjectKey("default", "old")
    assert catalog.holder_of(VirtualServerKey(Protocol.UDP, "10.96.0.10", 80)) is None


def test_of_no_such_service_there_is_no_view() -> None:
    assert finish(Catalog(Settings(node_name=NODE), facts()).explaining(KEY)) is None


CONDITIONS = st.sampled_from([None, True, False])
HINTS = st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True)
ENDPOINTS = st.lists(
    st.builds(
        lambda ready, serving, terminating, on, zones: (ready, serving, terminating, on, zones),
        CONDITIONS,
        CONDITIONS,
        CONDITIONS,
        st.sampled_from([NODE, "node2", None]),
        HINTS,
    ),
    max_size=5,
)
POLICY = st.sampled_from([None, "Cluster", "Local"])


@given(ENDPOINTS, POLICY, POLICY)
def test_who_is_said_to_serve_is_who_was_planned(drawn: list, internal: str | None, external: str | None) -> None:
    endpoints = [
        endpoint(f"10.244.1.{number}", ready=ready, serving=serving, terminating=terminating, on=on, zones=zones)
        for number, (ready, serving, terminating, on, zones) in enumerate(drawn, 1)
    ]
    web = service(external_ips=("203.0.113.7",), internal_traffic_policy=internal, external_traffic_policy=external)
    view, plan = seen(web, *endpoints, node=facts(zone="a"))
    planned = {it.key: [server.address for server in it.real_servers] for it in plan.virtual_servers}
    assert {it.key: [each.address for each in it.endpoints if each.serves] for it in view.frontends} == planned
