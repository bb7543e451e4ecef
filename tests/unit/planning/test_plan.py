"""The plan of one Service on one node.

Whole plans are in `golden/`: manifests, and next to each the plans that it makes. After an intended change,
`KROUTE_WRITE_GOLDEN=1 pytest tests/unit/planning/test_plan.py` writes them again, and the diff is for review.
"""

import os
from pathlib import Path

import msgspec
import pytest
import yaml

from kroute.model.objects import Applied, Change, EndpointPort, EndpointSlice, ObjectKey, Service, ServicePort
from kroute.model.plan import AddressSet, Persistence, RealServer, ServicePlan, SetEntry, Vip
from kroute.planning.catalog import Catalog
from kroute.planning.frontends import cluster_ips
from kroute.planning.plan_service import DEFAULT_AFFINITY_TIMEOUT
from tests.builders import (
    LISTED,
    NODE,
    NODE_IPV4,
    NODE_IPV6,
    endpoint,
    endpoint_slice,
    facts,
    plan_service,
    port,
    read,
    service,
    settings,
)
from tests.unit.golden_plans import render

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.yaml"))
KINDS: dict[str, type[Service | EndpointSlice]] = {"Service": Service, "EndpointSlice": EndpointSlice}


def read_manifest(path: Path) -> list[Change]:
    documents = [it for document in yaml.safe_load_all(path.read_text()) for it in document.get("items", [document])]
    return [Applied(msgspec.convert(it, KINDS[it["kind"]])) for it in documents]


@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_manifests_make_the_golden_plans(path: Path) -> None:
    catalog = Catalog(settings(), facts())
    catalog.take([*read_manifest(path), *LISTED])
    plans = render(plan for plan in catalog.plan_marked() if isinstance(plan, ServicePlan))
    golden = path.with_suffix(".plans")
    if "KROUTE_WRITE_GOLDEN" in os.environ:
        golden.write_text(plans)
    assert plans == golden.read_text()


def make(*slices: EndpointSlice, of: Service | None = None, **known: str | None) -> ServicePlan:
    return plan_service(of or service(), read(*slices), facts(**known), settings())  # type: ignore[arg-type]


def addresses(plan: ServicePlan) -> set[str]:
    return {server.key.address for server in plan.virtual_servers}


def entries(plan: ServicePlan, of: AddressSet) -> list[tuple[object, ...]]:
    return [entry.element for entry in plan.set_entries if entry.set is of]


def test_a_service_without_endpoints_is_a_virtual_server_without_real_servers() -> None:
    [server] = make().virtual_servers
    assert str(server.key) == "TCP 10.96.0.10:80"
    assert server.real_servers == ()


@pytest.mark.parametrize(("scheduler", "named"), [("rr", True), ("dh", False), ("sh", False), ("mh", False)])
def test_a_port_of_udp_names_the_endpoints_that_leave_and_still_serve(scheduler: str, *, named: bool) -> None:
    last = endpoint("10.244.1.6", ready=False, serving=True, terminating=True)
    broken = endpoint("10.244.1.7", ready=False, serving=False, terminating=True)
    ports = [EndpointPort("tcp", 8080), EndpointPort("udp", 8080, "UDP")]
    piece = endpoint_slice("web-1", "10.244.1.5", last, broken, ports=ports)
    ports_there, chosen = [port(80, "tcp"), port(80, "udp", "UDP")], {"kroute.io/scheduler": scheduler}
    plan = make(piece, of=service(ports=ports_there, annotations=chosen))
    assert {server.key.protocol.name: server.leaving for server in plan.virtual_servers} == {
        "TCP": (),
        "UDP": (("10.244.1.6", 8080),) if named else (),
    }
    assert all(server.real_servers == (RealServer("10.244.1.5", 8080),) for server in plan.virtual_servers)


def test_each_port_and_address_is_a_virtual_server_in_sorted_order() -> None:
    ports = [port(443, "https"), port(80, "http"), port(80, "udp", "UDP"), port(9999, "sctp", "SCTP")]
    plan = make(of=service("web", "fd00:96::a", "10.96.0.10", ports=ports))
    assert [str(server.key) for server in plan.virtual_servers] == [
        *("TCP 10.96.0.10:80", "TCP 10.96.0.10:443", "TCP [fd00:96::a]:80", "TCP [fd00:96::a]:443"),
        *("UDP 10.96.0.10:80", "UDP [fd00:96::a]:80", "SCTP 10.96.0.10:9999", "SCTP [fd00:96::a]:9999"),
    ]


def test_the_order_in_which_a_service_lists_its_ports_and_addresses_makes_no_difference() -> None:
    ports = [port(443, "https"), port(80, "http")]
    one = make(of=service("web", "10.96.0.10", "fd00:96::a", ports=ports))
    other = make(of=service("web", "fd00:96::a", "10.96.0.10", ports=reversed(ports)))
    assert one == other


def test_a_vip_has_the_nodes_own_address_of_its_family_as_source() -> None:
    plan = make(of=service("web", "10.96.0.10", "fd00:96::a", ports=[80, 443]))
    assert plan.vips == (Vip("10.96.0.10", NODE_IPV4), Vip("fd00:96::a", NODE_IPV6))


def test_a_node_with_one_family_serves_that_family_only() -> None:
    dual = service("web", "10.96.0.10", "fd00:96::a")
    assert addresses(make(of=dual, ipv6=None)) == {"10.96.0.10"}
    assert addresses(make(of=dual, ipv4=None)) == {"fd00:96::a"}


def test_a_node_of_which_nothing_is_known_serves_all_and_lets_the_kernel_choose_the_source() -> None:
    plan = make(of=service("web", "10.96.0.10", "fd00:96::a"), ipv4=None, ipv6=None)
    assert plan.vips == (Vip("10.96.0.10", None), Vip("fd00:96::a", None))


def test_cluster_ips_beat_cluster_ip() -> None:
    spec = service().spec
    assert cluster_ips(Service(service().metadata, msgspec.structs.replace(spec, cluster_ips=("10.96.0.11",)))) == (
        "10.96.0.11",
    )
    assert cluster_ips(Service(service().metadata, msgspec.structs.replace(spec, cluster_ips=None))) == ("10.96.0.10",)


def test_a_vip_is_in_canonical_text_and_there_once() -> None:
    assert addresses(make(of=service("web", "FD00:96:0::A", "fd00:96::a"))) == {"fd00:96::a"}


def test_a_virtual_server_uses_the_settings_scheduler_unless_the_annotation_names_one() -> None:
    def scheduler(annotations: dict[str, str]) -> str:
        plan = plan_service(service(annotations=annotations), [], facts(), settings(scheduler="wlc"))
        return plan.virtual_servers[0].scheduler

    assert scheduler({}) == "wlc"
    assert scheduler({"kroute.io/scheduler": "sh"}) == "sh"


AFFINITY = {
    "none": (service(), None),
    "ClientIP": (service(affinity="ClientIP"), DEFAULT_AFFINITY_TIMEOUT),
    "ClientIP with a timeout": (service(affinity="ClientIP", affinity_timeout=600), 600),
    "a timeout without ClientIP": (service(affinity_timeout=600), None),
    "annotation without ClientIP": (service(annotations={"service.persistence-timeout": "60"}), 60),
    "annotation over ClientIP": (
        service(affinity="ClientIP", annotations={"service.persistence-timeout": "60"}),
        60,
    ),
    "annotation against ClientIP": (
        service(affinity="ClientIP", annotations={"service.persistence-timeout": "0"}),
        None,
    ),
}


@pytest.mark.parametrize(("of", "timeout"), AFFINITY.values(), ids=list(AFFINITY))
def test_session_affinity_is_persistence_of_single_clients(of: Service, timeout: int | None) -> None:
    [server] = make(of=of).virtual_servers
    assert server.persistence == (None if timeout is None else Persistence(timeout, 32))


@pytest.mark.parametrize("timeout", [0, -1, 2**31])
def test_an_impossible_affinity_timeout_is_a_problem_and_the_default_serves(timeout: int) -> None:
    plan = make(of=service(affinity="ClientIP", affinity_timeout=timeout))
    assert plan.virtual_servers[0].persistence == Persistence(DEFAULT_AFFINITY_TIMEOUT, 32)
    assert [it.reason for it in plan.problems] == ["InvalidSessionAffinity"]


def test_persistence_of_ipv6_clients_counts_the_whole_address_too() -> None:
    [server] = make(of=service("web", "fd00:96::a", affinity="ClientIP")).virtual_servers
    assert server.persistence == Persistence(DEFAULT_AFFINITY_TIMEOUT, 128)


def test_real_servers_come_from_the_slices_of_the_vips_family() -> None:
    slices = [
        endpoint_slice("web-4", "10.244.1.5"),
        endpoint_slice("web-6", "fd00:10::5", address_type="IPv6"),
    ]
    four, six = make(*slices, of=service("web", "10.96.0.10", "fd00:96::a")).virtual_servers
    assert four.real_servers == (RealServer("10.244.1.5", 8080),)
    assert six.real_servers == (RealServer("fd00:10::5", 8080),)


def test_a_port_with_endpoints_is_in_the_set_of_its_kind_and_one_without_is_refused() -> None:
    plan = make(endpoint_slice("web-1", "10.244.1.5"), of=service(ports=[port(80), port(53, "dns", "UDP")]))
    assert entries(plan, AddressSet.CLUSTER_IP) == [("10.96.0.10", 6, 80)]
    assert entries(plan, AddressSet.NO_ENDPOINT) == [("10.96.0.10", 17, 53)]


def test_every_vip_is_in_the_vip_set() -> None:
    plan = make(of=service("web", "10.96.0.10", "fd00:96::a"))
    assert entries(plan, AddressSet.VIP) == [("10.96.0.10",), ("fd00:96::a",)]


def test_real_servers_that_may_be_on_this_node_are_in_the_hairpin_set() -> None:
    pods = [endpoint("10.244.1.1", on=NODE), endpoint("10.244.1.2", on="node2"), endpoint("10.244.1.3", on=None)]
    plan = make(endpoint_slice("web-1", *pods))
    assert entries(plan, AddressSet.HAIRPIN) == [
        ("10.244.1.1", 6, 8080, "10.244.1.1"),
        ("10.244.1.3", 6, 8080, "10.244.1.3"),
    ]


def test_an_endpoint_that_takes_no_traffic_is_not_in_the_hairpin_set() -> None:
    plan = make(endpoint_slice("web-1", endpoint(on=NODE, ready=False)))
    assert entries(plan, AddressSet.HAIRPIN) == []


def test_one_endpoint_behind_two_ports_is_in_the_hairpin_set_once() -> None:
    slices = endpoint_slice("web-1", endpoint(on=NODE))
    plan = make(slices, of=service(ports=[port(80), port(8000)]))
    assert entries(plan, AddressSet.HAIRPIN) == [("10.244.1.5", 6, 8080, "10.244.1.5")]


BAD_PARTS = {
    "address": (service("web", "10.96.0.256", "10.96.0.10"), "InvalidClusterIP"),
    "loopback address": (service("web", "127.0.0.1", "10.96.0.10"), "InvalidClusterIP"),
    "port": (service(ports=[0, 80]), "InvalidPort"),
    "high port": (service(ports=[65536, 80]), "InvalidPort"),
    "protocol": (service(ports=[ServicePort(443, protocol="QUIC"), port(80)]), "InvalidPort"),
    "port twice": (service(ports=[port(80), port(80, "again")]), "DuplicatePort"),
}


@pytest.mark.parametrize(("of", "reason"), BAD_PARTS.values(), ids=list(BAD_PARTS))
def test_a_bad_part_is_one_problem_and_the_rest_is_served(of: Service, reason: str) -> None:
    plan = make(endpoint_slice("web-1", "10.244.1.5"), of=of)
    assert [problem.reason for problem in plan.problems] == [reason]
    assert [(str(it.key), len(it.real_servers)) for it in plan.virtual_servers] == [("TCP 10.96.0.10:80", 1)]


def test_a_thousand_bad_endpoints_are_one_problem() -> None:
    bad = [endpoint(f"10.244.1.{number}") for number in range(256, 1256)]
    [problem] = make(endpoint_slice("web-1", *bad, "10.244.1.5")).problems
    assert problem.subject == "endpoint address '10.244.1.256'"
    assert "and 999 more" in problem.message


def test_an_address_that_an_older_service_has_is_a_problem_and_the_rest_is_served() -> None:
    held = {make().virtual_servers[0].key: ObjectKey("default", "older")}
    slices = [endpoint_slice("web-1", "10.244.1.5")]
    plan = plan_service(service(ports=[port(80), port(81, "")]), read(*slices), facts(), settings(), held)
    assert [str(server.key) for server in plan.virtual_servers] == ["TCP 10.96.0.10:81"]
    assert entries(plan, AddressSet.CLUSTER_IP) == [("10.96.0.10", 6, 81)]
    assert [(it.reason, it.subject) for it in plan.problems] == [("AddressConflict", "address TCP 10.96.0.10:80")]
    assert "default/older" in plan.problems[0].message


def test_a_service_that_loses_everything_brings_nothing_to_the_node() -> None:
    held = {make().virtual_servers[0].key: ObjectKey("default", "older")}
    slices = [endpoint_slice("web-1", endpoint(on=NODE))]
    plan = plan_service(service(), read(*slices), facts(), settings(), held)
    assert (plan.virtual_servers, plan.vips, plan.set_entries) == ((), (), ())
    assert not plan.is_empty


def test_plans_that_say_the_same_are_the_same_whenever_they_were_made() -> None:
    plan = make()
    assert msgspec.structs.replace(plan, generation=7).same_as(plan)
    assert not make(of=service(ports=[81])).same_as(plan)


def test_a_set_entry_holds_plain_protocol_numbers() -> None:
    [entry] = [it for it in make().set_entries if it.set is AddressSet.NO_ENDPOINT]
    assert entry == SetEntry(AddressSet.NO_ENDPOINT, ("10.96.0.10", 6, 80))
    assert type(entry.element[1]) is int
