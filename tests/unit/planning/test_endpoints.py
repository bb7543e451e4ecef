"""Slices are merged, and the endpoints that get traffic are chosen."""

from collections.abc import Iterable, Sequence
from itertools import permutations

import pytest

from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Endpoint, EndpointPort, EndpointSlice
from kroute.model.plan import RealServer
from kroute.planning.backend_slices import NO_BOUND, BackendSlice, PortKey, Traits, read_slice
from kroute.planning.endpoints import Chosen, Endpoints, MergedSlices, choice_steps, in_order, leaving, merging
from tests.builders import NODE, endpoint, endpoint_slice, facts, finish, read

UNNAMED = PortKey("", "TCP")


def merge(slices: Iterable[BackendSlice], family: str) -> MergedSlices:
    return finish(merging(slices, Family(family), NO_BOUND))


def choose(endpoints: Endpoints, node: NodeFacts, *, only_local: bool = False) -> Chosen:
    return finish(in_order(choice_steps(endpoints, node, only_local=only_local).chosen))


def addresses(merged: MergedSlices, port: PortKey = UNNAMED) -> list[str]:
    return [f"{it.address}:{it.port}" for it, _ in choose(merged.backends.get(port, {}), facts())]


def test_the_endpoints_of_all_slices_serve_sorted() -> None:
    slices = [endpoint_slice("web-2", "10.244.1.9"), endpoint_slice("web-1", "10.244.1.7", "10.244.1.5")]
    assert addresses(merge(read(*slices), "IPv4")) == ["10.244.1.5:8080", "10.244.1.7:8080", "10.244.1.9:8080"]


def test_a_slice_port_belongs_to_the_service_port_of_its_name_and_protocol() -> None:
    ports = [EndpointPort("dns", 5353, "UDP"), EndpointPort("dns", 5354, "TCP"), EndpointPort("metrics", 9153)]
    merged = merge(read(endpoint_slice("dns-1", "10.244.1.5", ports=ports)), "IPv4")
    assert addresses(merged, PortKey("dns", "UDP")) == ["10.244.1.5:5353"]
    assert addresses(merged, PortKey("dns", "TCP")) == ["10.244.1.5:5354"]
    assert addresses(merged, PortKey("metrics", "TCP")) == ["10.244.1.5:9153"]
    assert addresses(merged, PortKey("metrics", "UDP")) == []


def test_one_port_name_may_mean_different_numbers_in_different_slices() -> None:
    slices = [endpoint_slice("web-1", "10.244.1.5", ports=[8080]), endpoint_slice("web-2", "10.244.1.6", ports=[9090])]
    assert addresses(merge(read(*slices), "IPv4")) == ["10.244.1.5:8080", "10.244.1.6:9090"]


def test_one_address_may_serve_two_ports_from_two_slices() -> None:
    slices = [
        endpoint_slice("web-1", "10.244.1.5", ports=[EndpointPort("a", 1000)]),
        endpoint_slice("web-2", "10.244.1.5", ports=[EndpointPort("b", 2000)]),
    ]
    merged = merge(read(*slices), "IPv4")
    assert addresses(merged, PortKey("a", "TCP")) == ["10.244.1.5:1000"]
    assert addresses(merged, PortKey("b", "TCP")) == ["10.244.1.5:2000"]


def test_a_slice_port_without_name_has_the_empty_name_as_the_api_server_writes_it() -> None:
    piece = endpoint_slice("web-1", "10.244.1.5", ports=[EndpointPort(None, 80)])
    assert addresses(merge(read(piece), "IPv4"), PortKey("", "TCP")) == ["10.244.1.5:80"]


@pytest.mark.parametrize("port", [EndpointPort("", None), EndpointPort("", 0)])
def test_a_slice_port_without_number_is_skipped(port: EndpointPort) -> None:
    assert merge(read(endpoint_slice("web-1", "10.244.1.5", ports=[port])), "IPv4") == MergedSlices({}, ())


@pytest.mark.parametrize("field", ["ports", "endpoints"])
def test_a_slice_may_be_empty(field: str) -> None:
    whole = endpoint_slice("web-1", "10.244.1.5")
    parts = {"endpoints": whole.endpoints, "ports": whole.ports, field: None}
    assert addresses(merge(read(EndpointSlice(whole.metadata, "IPv4", **parts)), "IPv4")) == []  # type: ignore[arg-type]


def test_only_the_first_address_of_an_endpoint_counts() -> None:
    merged = merge(read(endpoint_slice("web-1", Endpoint(("10.244.1.5", "10.244.1.6")))), "IPv4")
    assert addresses(merged) == ["10.244.1.5:8080"]


def test_only_slices_of_the_family_are_merged() -> None:
    slices = [
        endpoint_slice("web-4", "10.244.1.5"),
        endpoint_slice("web-6", "fd00:10::5", address_type="IPv6"),
        endpoint_slice("web-f", "example.org", address_type="FQDN"),
    ]
    assert addresses(merge(read(*slices), "IPv4")) == ["10.244.1.5:8080"]
    assert addresses(merge(read(*slices), "IPv6")) == ["fd00:10::5:8080"]
    assert merge(read(*slices), "IPv4").refused == ()


def test_one_address_written_in_two_ways_is_one_endpoint() -> None:
    slices = [endpoint_slice("web-1", "fd00:10::5", "FD00:10:0::5", address_type="IPv6")]
    assert addresses(merge(read(*slices), "IPv6")) == ["fd00:10::5:8080"]


@pytest.mark.parametrize(
    "bad", [Endpoint(("10.244.1",)), Endpoint(("fd00::1",)), Endpoint(("127.0.0.1",)), Endpoint(())]
)
def test_a_bad_address_is_refused_and_the_rest_serves(bad: Endpoint) -> None:
    merged = merge(read(endpoint_slice("web-1", bad, "10.244.1.5")), "IPv4")
    assert addresses(merged) == ["10.244.1.5:8080"]
    assert len(merged.refused) == 1


@pytest.mark.parametrize("number", [65536, -1])
def test_a_bad_port_is_refused_and_the_rest_serves(number: int) -> None:
    merged = merge(read(endpoint_slice("web-1", "10.244.1.5", ports=[number, 8080])), "IPv4")
    assert addresses(merged) == ["10.244.1.5:8080"]
    assert merged.refused == (f"endpoint port {number}",)


CONDITIONS = {
    "all absent": (endpoint(), True),
    "ready": (endpoint(ready=True, serving=True, terminating=False), True),
    "ready while terminating (publishNotReadyAddresses)": (endpoint(ready=True, terminating=True), True),
    "not ready, not terminating": (endpoint(ready=False, serving=True, terminating=False), False),
    "not ready, terminating absent": (endpoint(ready=False), False),
    "terminating and serving": (endpoint(ready=False, serving=True, terminating=True), True),
    "terminating, serving absent": (endpoint(ready=False, terminating=True), True),
    "terminating, not serving": (endpoint(ready=False, serving=False, terminating=True), False),
}


@pytest.mark.parametrize(("alone", "serves"), CONDITIONS.values(), ids=list(CONDITIONS))
def test_conditions_decide_whether_an_only_endpoint_serves(alone: Endpoint, serves: bool) -> None:
    assert bool(addresses(merge(read(endpoint_slice("web-1", alone)), "IPv4"))) is serves


def traits_of(one: Endpoint) -> Traits:
    [traits] = read_slice(endpoint_slice("web-1", one)).traits
    return traits


def test_terminating_endpoints_serve_only_when_none_is_ready() -> None:
    ready = endpoint("10.244.1.5")
    last = endpoint("10.244.1.6", ready=False, serving=True, terminating=True)
    broken = endpoint("10.244.1.7", ready=False, serving=False, terminating=True)
    backends: Endpoints = {RealServer(it.addresses[0], 80): traits_of(it) for it in (ready, last, broken)}
    assert choose(backends, facts()) == [(RealServer("10.244.1.5", 80), traits_of(ready))]
    assert leaving(backends) == (("10.244.1.6", 80),)
    del backends[RealServer("10.244.1.5", 80)]
    assert choose(backends, facts()) == [(RealServer("10.244.1.6", 80), traits_of(last))]


COPIES: dict[str, Sequence[Endpoint]] = {
    "not terminating beats terminating": [
        endpoint(ready=True, terminating=False, on="right"),
        endpoint(ready=True, terminating=True, on="wrong"),
    ],
    "not terminating beats terminating even when it is not ready": [
        endpoint(ready=False, on="right"),
        endpoint(ready=False, serving=True, terminating=True, on="wrong"),
    ],
    "ready beats not ready": [endpoint(ready=True, on="right"), endpoint(ready=False, on="wrong")],
    "serving beats not serving": [
        endpoint(ready=False, serving=True, terminating=True, on="right"),
        endpoint(ready=False, serving=False, terminating=True, on="wrong"),
    ],
}


@pytest.mark.parametrize("copies", COPIES.values(), ids=list(COPIES))
def test_of_two_copies_of_an_endpoint_the_better_one_is_believed_in_any_order(copies: Sequence[Endpoint]) -> None:
    for order in permutations(copies):
        for names in permutations(("web-1", "web-2")):
            slices = [endpoint_slice(name, it) for name, it in zip(names, order, strict=True)]
            [kept] = merge(read(*slices), "IPv4").backends[UNNAMED].values()
            assert kept.node_name == "right"


def test_equal_copies_are_merged_the_same_way_in_any_order() -> None:
    slices = [endpoint_slice("web-1", endpoint(on="node1")), endpoint_slice("web-2", endpoint(on="node2"))]
    kept = [merge(read(*order), "IPv4").backends[UNNAMED] for order in permutations(slices)]
    assert kept[0] == kept[1]


NEAR = endpoint("10.244.1.1", on=NODE)
FAR = endpoint("10.244.1.2")
BUSY = endpoint("10.244.1.3", on=NODE, ready=False)
LEAVING = endpoint("10.244.1.4", on=NODE, ready=False, serving=True, terminating=True)
FAR_LEAVING = endpoint("10.244.1.5", ready=False, serving=True, terminating=True)
LOCAL = {
    "local ones only": ([NEAR, FAR], ["10.244.1.1"]),
    "none, where all are elsewhere": ([FAR, FAR_LEAVING], []),
    "none, where the local one is not ready": ([BUSY, FAR], []),
    "a local one that terminates, rather than a ready one elsewhere": ([LEAVING, FAR], ["10.244.1.4"]),
    "the ready local one, rather than one that terminates": ([LEAVING, NEAR], ["10.244.1.1"]),
    "none of those that name no node": ([endpoint("10.244.1.6", on=None)], []),
}


def chosen(endpoints: Sequence[Endpoint], *, zone: str | None = None, only_local: bool = False) -> list[str]:
    backends = {RealServer(it.addresses[0], 80): traits_of(it) for it in endpoints}
    return [server.address for server, _ in choose(backends, facts(zone=zone), only_local=only_local)]


@pytest.mark.parametrize(("endpoints", "expected"), LOCAL.values(), ids=list(LOCAL))
def test_policy_local_chooses(endpoints: Sequence[Endpoint], expected: list[str]) -> None:
    assert chosen(endpoints, only_local=True) == expected


def hinted(address: str, *zones: str, nodes: Sequence[str] = (), ready: bool = True) -> Endpoint:
    return endpoint(address, zones=zones, nodes=nodes, ready=ready)


A, B, C = "10.244.1.1", "10.244.1.2", "10.244.1.3"
HINTS: dict[str, tuple[Sequence[Endpoint], str | None, list[str]]] = {
    "those of the zone": ([hinted(A, "z1"), hinted(B, "z2"), hinted(C, "z1", "z2")], "z1", [A, C]),
    "all, where one has no hint": ([hinted(A, "z1"), hinted(B, "z2"), endpoint(C)], "z1", [A, B, C]),
    "all, where one has no hint for zones": ([hinted(A, "z1"), hinted(B, nodes=["node9"])], "z1", [A, B]),
    "all, where the node's zone is not known": ([hinted(A, "z1"), hinted(B, "z2")], None, [A, B]),
    "all, where none is for the zone": ([hinted(A, "z1"), hinted(B, "z2")], "z3", [A, B]),
    "by ready ones only": ([hinted(A, "z1"), hinted(B, "z2"), endpoint(C, ready=False)], "z1", [A]),
    "all, where the zone's only one is not ready": ([hinted(A, "z1", ready=False), hinted(B, "z2")], "z1", [B]),
    "those of the node": ([hinted(A, "z1", nodes=[NODE]), hinted(B, "z1", nodes=["node2"])], "z1", [A]),
    "those of the zone, where none is for the node": (
        [hinted(A, "z1", nodes=["node2"]), hinted(B, "z1", nodes=["node3"]), hinted(C, "z2", nodes=["node4"])],
        "z1",
        [A, B],
    ),
    "those of the zone, where one has no hint for nodes": (
        [hinted(A, "z1", nodes=[NODE]), hinted(B, "z1"), hinted(C, "z2", nodes=["node4"])],
        "z1",
        [A, B],
    ),
    "those of the node without any zone": ([hinted(A, nodes=[NODE]), hinted(B, nodes=["node2"])], None, [A]),
}


@pytest.mark.parametrize(("endpoints", "zone", "expected"), HINTS.values(), ids=list(HINTS))
def test_hints_choose(endpoints: Sequence[Endpoint], zone: str | None, expected: list[str]) -> None:
    assert chosen(endpoints, zone=zone) == expected


def test_hints_do_not_count_for_policy_local_nor_for_endpoints_that_terminate() -> None:
    here = endpoint(A, on=NODE, zones=["z2"])
    assert chosen([here, hinted(B, "z1")], zone="z1", only_local=True) == [A]
    leaving = [
        endpoint(it, zones=[zone], ready=False, serving=True, terminating=True) for it, zone in ((A, "z1"), (B, "z2"))
    ]
    assert chosen(leaving, zone="z1") == [A, B]
