"""What the catalog keeps: only the fields that planning reads, and one copy of equal values."""

import sys

from hypothesis import given

from kroute.model.objects import Applied, Deleted, Service
from kroute.model.plan import ServicePlan
from kroute.planning.backend_slices import read_slice
from kroute.planning.catalog import Catalog
from kroute.planning.interning import interned
from tests.builders import NODE_IPV4, endpoint, endpoint_slice, facts, plan_service, port, service, settings
from tests.unit.planning.test_catalog import listed
from tests.unit.planning.test_catalog_properties import ODD_SERVICES


def changed(catalog: Catalog, *items: object) -> ServicePlan:
    """Take these objects, and return the one plan that they change."""
    catalog.take(map(Applied, items))  # type: ignore[arg-type]
    [plan] = [plan for plan in catalog.plan_marked() if isinstance(plan, ServicePlan)]
    return plan


@given(ODD_SERVICES)
def test_a_condensed_service_means_the_same(item: Service) -> None:
    node = facts(own=(NODE_IPV4,))
    slices = [read_slice(endpoint_slice("web-1", "10.244.1.5", of=item.metadata.name))]
    assert plan_service(interned(item), slices, node, settings()) == plan_service(item, slices, node, settings())


def test_labels_and_annotations_that_mean_nothing_to_planning_are_not_kept() -> None:
    kept = interned(
        service(
            labels={"app": "web", "service.kubernetes.io/service-proxy-name": "x"},
            annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}" * 1000, "service.hairpin": "off"},
        )
    ).metadata
    assert kept.labels == {"service.kubernetes.io/service-proxy-name": "x"}
    assert kept.annotations == {"service.hairpin": "off"}
    plain = interned(service(labels={"app": "web"})).metadata
    assert (plain.labels, plain.annotations) == (None, None)


def test_services_share_equal_parts() -> None:
    one, other = interned(service("a", "10.96.0.1")), interned(service("b", "10.96.0.2"))
    assert one.spec.ports is other.spec.ports
    assert one.status is other.status


def test_nothing_holds_a_large_value_once_its_service_is_gone() -> None:
    item = service(ports=[port(number, name=f"port-{number}") for number in range(1, 500)])
    ports = item.spec.ports
    catalog = listed()
    before = sys.getrefcount(ports)
    changed(catalog, item)
    assert sys.getrefcount(ports) > before
    catalog.take([Deleted(Service, service().key)])
    catalog.plan_marked()
    assert sys.getrefcount(ports) == before


def test_a_value_is_shared_if_it_is_small() -> None:
    few, many = ([port(number) for number in range(1, count)] for count in (4, 90))
    for ports, is_shared in ((few, True), (many, False)):
        one, other = (interned(service(name, ports=ports)) for name in ("a", "b"))
        assert one.spec.ports == other.spec.ports
        assert (one.spec.ports is other.spec.ports) is is_shared


def test_what_cannot_be_written_as_json_is_not_shared() -> None:
    item = service(ports=[port(80, name="\ud800")])
    assert interned(item).spec.ports == item.spec.ports


def test_endpoints_with_many_hints_are_not_remembered() -> None:
    few, many = ([f"zone-{number}" for number in range(count)] for count in (1, 8))
    for zones, is_shared in ((few, True), (many, False)):
        pieces = [read_slice(endpoint_slice(name, endpoint("10.244.1.1", zones=zones))) for name in ("a", "b")]
        one, other = (piece.traits[0] for piece in pieces)
        assert one == other
        assert (one is other) is is_shared


def test_endpoints_that_differ_by_their_address_alone_share_the_rest() -> None:
    endpoints = endpoint("10.244.1.1"), endpoint("10.244.1.2"), endpoint("10.244.1.3", ready=False)
    one, other, third = read_slice(endpoint_slice("web-1", *endpoints)).traits
    assert one is other
    assert third is not one


def test_real_servers_of_plans_are_those_of_the_slices() -> None:
    catalog = listed(service(ports=[port(80), port(81)]), endpoint_slice("web-1", "10.244.1.5"))
    [kept] = catalog.slices.of(service().key)
    [port_of_slice] = kept.ports
    plan = catalog.plans[service().key]
    assert all(server.real_servers[0] is port_of_slice.real_servers[0] for server in plan.virtual_servers)


def test_what_a_new_version_of_a_slice_leaves_as_it_was_stays_the_same_object() -> None:
    catalog = listed(service(), endpoint_slice("web-1", "10.244.1.5", "10.244.1.6"))
    before = catalog.plans[service().key]
    after = changed(catalog, endpoint_slice("web-1", "10.244.1.5", "10.244.1.7"))
    assert after.virtual_servers[0].real_servers[0] is before.virtual_servers[0].real_servers[0]
    assert after.virtual_servers[0].key is before.virtual_servers[0].key
    assert after.set_entries is before.set_entries
    assert after.vips is before.vips


def test_what_a_new_version_of_a_service_leaves_as_it_was_stays_the_same_object() -> None:
    catalog = listed(service(ports=[80]), endpoint_slice("web-1", "10.244.1.5"))
    before = catalog.plans[service().key]
    after = changed(catalog, service(ports=[80, 81]))
    assert after.virtual_servers[0] is before.virtual_servers[0]
    assert {id(entry) for entry in before.set_entries} < {id(entry) for entry in after.set_entries}
    assert after.vips is before.vips
