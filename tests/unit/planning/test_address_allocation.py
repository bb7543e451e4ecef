"""Which Service gets which LoadBalancer address, as tables."""

from collections.abc import Collection, Iterable, Mapping

import msgspec
import pytest

from kroute.model.objects import LoadBalancerIngress, LoadBalancerStatus, ObjectMeta, ServicePort, ServiceStatus
from kroute.model.plan import LONGEST_QUOTE
from kroute.planning import address_allocation as module
from kroute.planning.address_allocation import BalancedService, BalancedSpec, allocating
from tests.builders import finish, settings

RANGES = ("192.0.2.8/30", "2001:db8::8/126")
KEY, ASKED = "kroute.io/share-load-balancer-ip", "kroute.io/load-balancer-ips"
REFUSED = "is not served: it is the gateway of a route of this node."
FOUR, BOTH = ("IPv4",), ("IPv4", "IPv6")


def balanced(
    name: str,
    *has: str | LoadBalancerIngress,
    annotations: Mapping[str, str] | None = None,
    ports: Iterable[int] = (80,),
    created: str = "2026-01-01T00:00:00Z",
    deleted: str | None = None,
    families: tuple[str, ...] = FOUR,
    **spec: object,
) -> BalancedService:
    """A Service of type LoadBalancer with these addresses in its status."""
    metadata = ObjectMeta(
        name, "default", f"uid-{name}", "1", created, annotations=dict(annotations or {}), deletion_timestamp=deleted
    )
    fields = {
        "type": "LoadBalancer",
        "cluster_ip": "10.96.0.1",
        "ip_families": families,
        "ports": tuple(map(ServicePort, ports)),
        **spec,
    }
    entries = tuple(LoadBalancerIngress(it) if isinstance(it, str) else it for it in has)
    return BalancedService(metadata, BalancedSpec(**fields), ServiceStatus(LoadBalancerStatus(entries)))  # type: ignore[arg-type]


def allocated(
    *services: BalancedService,
    refused: Collection[str] = (),
    reserved: Mapping[str, tuple[str, ...]] | None = None,
    **more: object,
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The addresses that are to be written, by the Services' names, and the messages of the problems."""
    made = settings(**{"load_balancer_ip_ranges": RANGES, **more})
    steps = allocating(services, reserved or {}, made, lambda address: REFUSED if address in refused else "")
    plan = finish(steps)
    return (
        {it.service.metadata.name: it.addresses for it in plan.assignments},
        [f"{key.name}: {problem.message}" for key, problem in plan.problems],
    )


def written(*services: BalancedService, **more: object) -> dict[str, tuple[str, ...]]:
    """What is to be written, where nothing is a problem."""
    result, problems = allocated(*services, **more)  # type: ignore[arg-type]
    assert problems == []
    return result


def test_each_service_gets_the_first_free_address_the_oldest_first() -> None:
    younger, older = balanced("a", created="2026-01-02T00:00:00Z"), balanced("b")
    assert written(younger, older) == {"b": ("192.0.2.8",), "a": ("192.0.2.9",)}


def test_an_address_that_a_service_has_stays_whatever_else_changes() -> None:
    outside = balanced("a", "203.0.113.5")
    assert written(outside, balanced("b", "192.0.2.8"), balanced("c", created="2025")) == {"c": ("192.0.2.9",)}


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (balanced("a", families=BOTH, ip_family_policy="PreferDualStack"), ("192.0.2.8", "2001:db8::8")),
        (balanced("a", families=("IPv6", "IPv4"), ip_family_policy="RequireDualStack"), ("2001:db8::8", "192.0.2.8")),
        (balanced("a", families=("IPv6",)), ("2001:db8::8",)),
        (balanced("a", "192.0.2.9", families=BOTH), ("192.0.2.9", "2001:db8::8")),
        (balanced("a", "192.0.2.9", "2001:db8::8"), ("192.0.2.9",)),
        (balanced("a", ip_families=None, cluster_ips=("fd00::1", "10.96.0.1")), ("2001:db8::8", "192.0.2.8")),
    ],
    ids=["both", "six first", "six only", "a family is added", "a family is gone", "an API server without ipFamilies"],
)
def test_a_service_gets_an_address_of_each_of_its_families(service: BalancedService, expected: tuple[str, ...]) -> None:
    assert written(service) == {"a": expected}


def test_who_prefers_both_families_gets_the_one_that_there_is_and_who_requires_both_waits() -> None:
    ranges = {"load_balancer_ip_ranges": ("192.0.2.8/32",)}
    required = balanced("a", created="2025", families=BOTH, ip_family_policy="RequireDualStack")
    preferred = balanced("b", families=BOTH, ip_family_policy="PreferDualStack")
    assert written(preferred, **ranges) == {"b": ("192.0.2.8",)}
    result, problems = allocated(required, preferred, **ranges)
    assert result == {"b": ("192.0.2.8",)}, "the older one leaves it to the other"
    [problem] = problems
    assert problem.startswith("a: no IPv6 address is free in --loadbalancer-ip-range (192.0.2.8/32)")


def test_a_full_range_is_a_problem_of_those_that_get_none() -> None:
    ranges = {"load_balancer_ip_ranges": ("192.0.2.8/31",)}
    result, problems = allocated(*(balanced(name) for name in "abcd"), **ranges)
    assert result == {"a": ("192.0.2.8",), "b": ("192.0.2.9",)}
    assert [it[: len("c: no IPv4 address is free")] for it in problems] == [
        f"{it}: no IPv4 address is free" for it in "cd"
    ]


@pytest.mark.parametrize(
    "service",
    [
        balanced("a", type="ClusterIP"),
        balanced("a", load_balancer_class="example.com/other"),
        balanced("a", deleted="2026-01-03T00:00:00Z"),
        balanced("a", LoadBalancerIngress("")),
        balanced("a", LoadBalancerIngress("198.51.100.1", "Proxy")),
        balanced("a", "198.51.100.1", "198.51.100.2"),
        balanced("a", "198.51.100.1", "2001:db8::1", "198.51.100.2"),
    ],
    ids=["another type", "another class", "deleted", "a host name", "mode Proxy", "two of a family", "three"],
)
def test_what_is_not_ours_is_not_touched(service: BalancedService) -> None:
    assert written(service) == {}


@pytest.mark.parametrize("name", [None, "default", "kroute.io", "kube-router"])
def test_these_classes_are_ours_by_default(name: str | None) -> None:
    assert written(balanced("a", load_balancer_class=name)) == {"a": ("192.0.2.8",)}
    assert written(balanced("a", load_balancer_class=name), load_balancer_classes=("own",)) == {}


def test_what_any_service_has_is_given_to_no_other() -> None:
    others = balanced("a", "192.0.2.8", type="ClusterIP"), balanced("b", type="ClusterIP", external_ips=("192.0.2.9",))
    assert written(*others, balanced("c")) == {"c": ("192.0.2.10",)}


def test_a_service_that_waits_for_its_end_keeps_its_address() -> None:
    ending = balanced("a", "192.0.2.8", deleted="2026-01-03T00:00:00Z")
    assert written(ending, balanced("b")) == {"b": ("192.0.2.9",)}


def test_external_ips_that_nodes_do_not_serve_take_nothing_from_the_range() -> None:
    squatter = balanced("a", type="ClusterIP", external_ips=("192.0.2.8",))
    assert written(squatter, balanced("b"), strict_external_ips=True) == {"b": ("192.0.2.8",)}
    assert written(squatter, balanced("b"), external_ip_ranges=("203.0.113.0/24",)) == {"b": ("192.0.2.8",)}


def test_an_address_that_nodes_do_not_serve_is_left_out() -> None:
    assert written(balanced("a"), refused=("192.0.2.8",)) == {"a": ("192.0.2.9",)}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"load_balancer_ip": "192.0.2.10"}, ("192.0.2.10",)),
        ({"annotations": {ASKED: "192.0.2.11"}, "load_balancer_ip": "192.0.2.10"}, ("192.0.2.11",)),
        ({"annotations": {ASKED: "2001:db8::A, 192.0.2.11"}, "families": BOTH}, ("192.0.2.11", "2001:db8::a")),
        ({"annotations": {ASKED: "2001:db8::a"}, "families": BOTH}, ("192.0.2.8", "2001:db8::a")),
        ({"annotations": {ASKED: "somewhere"}}, ("192.0.2.9",)),
    ],
    ids=[
        "the field",
        "the annotation first",
        "both families",
        "one of both",
        "an invalid annotation, which nodes report",
    ],
)
def test_a_service_gets_what_it_asks_for(more: dict[str, object], expected: tuple[str, ...]) -> None:
    older = balanced("b", created="2025")
    assert written(older, balanced("a", **more))["a"] == expected  # type: ignore[arg-type]


def test_who_asks_for_an_address_gets_it_before_an_older_one_that_does_not() -> None:
    asking = balanced("a", load_balancer_ip="192.0.2.8")
    assert written(balanced("b", created="2025"), asking) == {"a": ("192.0.2.8",), "b": ("192.0.2.9",)}


def test_a_service_moves_to_an_address_that_it_asks_for_later() -> None:
    assert written(balanced("a", "192.0.2.8", load_balancer_ip="192.0.2.10")) == {"a": ("192.0.2.10",)}


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("192.0.2.8", "is in use: Service default/other has it. Services share an address if they agree in kroute.io/"),
        ("192.0.2.9", REFUSED),
        ("2001:db8::8", "is not given: ipFamilies of the Service lack IPv6."),
    ],
    ids=["in use", "not served", "another family"],
)
@pytest.mark.parametrize("has", [(), ("192.0.2.11",)], ids=["without", "with another"])
def test_what_cannot_be_given_is_a_problem_and_changes_nothing(address: str, why: str, has: tuple[str, ...]) -> None:
    other, asking = balanced("other", "192.0.2.8"), balanced("a", *has, load_balancer_ip=address)
    result, problems = allocated(other, asking, refused=("192.0.2.9",))
    assert result == ({"a": ("192.0.2.10",)} if ":" in address and not has else {})
    [problem] = problems
    assert problem.startswith(f"a: loadBalancerIP '{address}' {why}")


def test_a_field_that_is_no_address_is_a_problem_and_any_address_serves() -> None:
    result, problems = allocated(balanced("a", load_balancer_ip="x" * 1000))
    assert result == {"a": ("192.0.2.8",)}
    assert problems == [f"a: loadBalancerIP '{'x' * LONGEST_QUOTE}...' is no address. Any free one serves."]


class TestSharing:
    """Services with one key may have one address."""

    @pytest.mark.parametrize(
        ("one", "two"),
        [
            ({"ports": (80,)}, {"ports": (443,)}),
            (
                {"ports": (80,), "external_traffic_policy": "Local", "selector": {"app": "a"}},
                {"ports": (81,), "external_traffic_policy": "Local", "selector": {"app": "a"}},
            ),
        ],
        ids=["other ports", "policy Local with one selector"],
    )
    def test_with_other_ports_they_get_one_address(self, one: dict[str, object], two: dict[str, object]) -> None:
        annotations = {KEY: "web"}
        services = balanced("a", annotations=annotations, **one), balanced("b", annotations=annotations, **two)  # type: ignore[arg-type]
        assert written(*services) == {"a": ("192.0.2.8",), "b": ("192.0.2.8",)}

    @pytest.mark.parametrize(
        ("one", "two"),
        [
            ({}, {"ports": (81, 80)}),
            ({}, {"ports": (81,), "annotations": {KEY: "other"}}),
            ({}, {"ports": (81,), "annotations": {}}),
            ({}, {"ports": (81,), "external_traffic_policy": "Local", "selector": {"app": "a"}}),
            (
                {"external_traffic_policy": "Local", "selector": {"app": "a"}},
                {"ports": (81,), "external_traffic_policy": "Local", "selector": {"app": "b"}},
            ),
            (
                {"external_traffic_policy": "Local"},
                {"ports": (81,), "external_traffic_policy": "Local"},
            ),
        ],
        ids=["a port in common", "another key", "no key", "another policy", "another selector", "no selector"],
    )
    def test_otherwise_they_do_not(self, one: dict[str, object], two: dict[str, object]) -> None:
        first, second = ({"annotations": {KEY: "web"}, **it} for it in (one, two))
        services = balanced("a", **first), balanced("b", **second)  # type: ignore[arg-type]
        assert written(*services) == {"a": ("192.0.2.8",), "b": ("192.0.2.9",)}
        asking = balanced("b", **second, load_balancer_ip="192.0.2.8")  # type: ignore[arg-type]
        assert allocated(balanced("a", "192.0.2.8", **first), asking)[0] == {}  # type: ignore[arg-type]

    def test_only_so_many_share_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MOST_SHARED", 2)
        services = [balanced(f"s{it}", annotations={KEY: "web"}, ports=(it,)) for it in range(1, 6)]
        assert sorted(written(*services).values()) == sorted([(f"192.0.2.{it}",) for it in (8, 8, 9, 9, 10)])


def test_an_address_that_may_be_written_soon_is_reserved_for_its_service() -> None:
    reserved = {"uid-a": ("192.0.2.9",)}
    assert written(balanced("a"), balanced("b", created="2025"), reserved=reserved) == {
        "a": ("192.0.2.9",),
        "b": ("192.0.2.8",),
    }
    assert written(balanced("c", created="2025"), reserved={"uid-gone": ("192.0.2.8",)}) == {"c": ("192.0.2.8",)}


def test_the_plan_of_what_the_plan_wrote_is_empty() -> None:
    services = [
        balanced("a", families=BOTH),
        balanced("b", annotations={KEY: "x"}),
        balanced("c", load_balancer_ip="192.0.2.8"),
    ]
    plan = finish(allocating(services, {}, settings(load_balancer_ip_ranges=RANGES), lambda _: ""))
    after = [
        msgspec.structs.replace(
            it.service, status=ServiceStatus(LoadBalancerStatus(tuple(map(LoadBalancerIngress, it.addresses))))
        )
        for it in plan.assignments
    ]
    assert len(after) == len(services)
    assert written(*after) == {}
