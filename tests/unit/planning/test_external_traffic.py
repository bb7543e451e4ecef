"""Node ports, external IPs and LoadBalancer addresses: where each is served, by which policy, and in which sets."""

from typing import Any, ClassVar

import pytest

from kroute.model.objects import Endpoint, LoadBalancerIngress, Service
from kroute.model.plan import AddressSet, ServicePlan
from kroute.planning.plan_node import plan_node
from tests.builders import (
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

HERE = endpoint("10.244.1.1", on=NODE)
THERE = endpoint("10.244.1.2", on="node2")
LEAVING_HERE = endpoint("10.244.1.3", on=NODE, ready=False, serving=True, terminating=True)
LEAVING_THERE = endpoint("10.244.1.4", on="node2", ready=False, serving=True, terminating=True)
UNREADY = endpoint("10.244.1.5", on=NODE, ready=False)
EXTERNAL = "198.51.100.7"
NODE_PORT = [port(80, node_port=30080)]


SETTINGS = settings(external_ips_on_node_addresses=True)


def make(of: Service, *endpoints: Endpoint, own: tuple[str, ...] = (NODE_IPV4,), **known: Any) -> ServicePlan:
    return plan_service(of, read(endpoint_slice("web-1", *endpoints)), facts(own=own, **known), SETTINGS)


def served(plan: ServicePlan) -> dict[str, list[str]]:
    """Return the real servers' addresses by virtual server."""
    return {str(it.key): [real.address for real in it.real_servers] for it in plan.virtual_servers}


def sets_of(plan: ServicePlan, address: str) -> set[AddressSet]:
    """Return the sets of ports that contain the address."""
    return {it.set for it in plan.set_entries if it.element[0] == address and it.set is not AddressSet.HAIRPIN}


class TestAddresses:
    """On which addresses a Service is served, and which of them are bound."""

    def test_a_node_port_is_served_on_each_of_the_nodes_addresses_and_nothing_is_bound(self) -> None:
        of = service("web", "10.96.0.10", "fd00:96::a", kind="NodePort", ports=NODE_PORT)
        plan = make(of, THERE, own=(NODE_IPV4, "192.168.123.7", NODE_IPV6))
        assert set(served(plan)) == {
            *("TCP 10.96.0.10:80", "TCP [fd00:96::a]:80"),
            *(f"TCP {NODE_IPV4}:30080", "TCP 192.168.123.7:30080", f"TCP [{NODE_IPV6}]:30080"),
        }
        assert [vip.address for vip in plan.vips] == ["10.96.0.10", "fd00:96::a"]

    def test_a_service_has_node_ports_in_its_own_families_only(self) -> None:
        plan = make(service(kind="NodePort", ports=NODE_PORT), THERE, own=(NODE_IPV4, NODE_IPV6))
        assert set(served(plan)) == {"TCP 10.96.0.10:80", f"TCP {NODE_IPV4}:30080"}

    def test_one_number_may_be_a_node_port_of_two_protocols(self) -> None:
        ports = [port(80, "t", node_port=30080), port(80, "u", "UDP", node_port=30080)]
        assert {f"TCP {NODE_IPV4}:30080", f"UDP {NODE_IPV4}:30080"} <= set(
            served(make(service(kind="NodePort", ports=ports)))
        )

    def test_a_cluster_ip_service_has_no_node_ports_whatever_its_ports_say(self) -> None:
        assert set(served(make(service(ports=NODE_PORT)))) == {"TCP 10.96.0.10:80"}

    def test_an_impossible_node_port_is_a_problem_and_the_rest_is_served(self) -> None:
        plan = make(service(kind="NodePort", ports=[port(80, node_port=70000)]), THERE)
        assert set(served(plan)) == {"TCP 10.96.0.10:80"}
        assert [it.reason for it in plan.problems] == ["InvalidPort"]

    def test_external_ips_and_load_balancer_addresses_are_bound_like_cluster_ips(self) -> None:
        plan = make(service(kind="LoadBalancer", external_ips=(EXTERNAL,), balanced=["203.0.113.9"]), THERE)
        assert [vip.address for vip in plan.vips] == ["10.96.0.10", EXTERNAL, "203.0.113.9"]
        assert served(plan)["TCP 203.0.113.9:80"] == ["10.244.1.2"]

    def test_an_address_that_another_interface_has_is_served_and_not_bound(self) -> None:
        plan = make(service(external_ips=(EXTERNAL,)), THERE, own=(NODE_IPV4, EXTERNAL))
        assert [vip.address for vip in plan.vips] == ["10.96.0.10"]
        assert served(plan)[f"TCP {EXTERNAL}:80"] == ["10.244.1.2"]
        assert sets_of(plan, EXTERNAL) == {AddressSet.EXTERNAL}

    def test_a_node_port_and_a_load_balancer_address_on_one_address_are_both_served(self) -> None:
        of = service(kind="LoadBalancer", ports=NODE_PORT, balanced=[NODE_IPV4])
        assert {f"TCP {NODE_IPV4}:80", f"TCP {NODE_IPV4}:30080"} <= set(served(make(of, THERE)))

    SKIPPED: ClassVar[dict[str, LoadBalancerIngress]] = {
        "ipMode Proxy": LoadBalancerIngress("203.0.113.9", "Proxy"),
        "host name": LoadBalancerIngress(),
    }

    @pytest.mark.parametrize("ingress", SKIPPED.values(), ids=list(SKIPPED))
    def test_what_a_load_balancer_does_not_hand_to_nodes_is_not_served(self, ingress: LoadBalancerIngress) -> None:
        assert set(served(make(service(kind="LoadBalancer", balanced=[ingress]), THERE))) == {"TCP 10.96.0.10:80"}

    def test_addresses_of_a_load_balancer_that_is_none_any_more_are_not_served(self) -> None:
        assert set(served(make(service(balanced=["203.0.113.9"]), THERE))) == {"TCP 10.96.0.10:80"}

    @pytest.mark.parametrize("bad", ["198.51.100", "127.0.0.1", "fe80::1", "0.0.0.0", "224.0.0.1"])
    def test_a_bad_external_ip_is_a_problem_and_the_rest_is_served(self, bad: str) -> None:
        plan = make(service(external_ips=(bad, EXTERNAL)), THERE)
        assert set(served(plan)) == {"TCP 10.96.0.10:80", f"TCP {EXTERNAL}:80"}
        assert [it.reason for it in plan.problems] == ["InvalidExternalIP"]

    @pytest.mark.parametrize(
        ("own", "outside"), [("10.96.0.10", "2001:db8::9"), ("fd00:96::a", "203.0.113.9")], ids=["IPv6", "IPv4"]
    )
    @pytest.mark.parametrize("field", ["external IP", "load balancer"])
    def test_an_address_of_a_family_that_the_service_has_not_is_left_out_and_said(
        self, own: str, outside: str, field: str
    ) -> None:
        fields: dict[str, Any] = {"external_ips": (outside,)}
        if field == "load balancer":
            fields = {"kind": "LoadBalancer", "balanced": [outside]}
        plan = make(service("web", own, **fields), THERE)
        assert [vip.address for vip in plan.vips] == [own]
        [problem] = plan.problems
        assert "ClusterIP. Make it dual-stack" in problem.message
        assert repr(outside) in problem.subject


RANGES: dict[str, tuple[tuple[str, ...], list[str] | None, list[str] | None]] = {
    "none": ((), None, None),
    "of one family: the other is open": (("10.0.0.0/8", "192.0.2.0/24"), ["10.0.0.0/8", "192.0.2.0/24"], None),
    "of IPv6 only": (("fd00::/8",), None, ["fd00::/8"]),
    "of both": (("10.0.0.0/8", "fd00::/8"), ["10.0.0.0/8"], ["fd00::/8"]),
    "with white space": ((" 10.0.0.0/8 ",), ["10.0.0.0/8"], None),
    "with bits right of the prefix": (("10.1.2.3/8",), ["10.0.0.0/8"], None),
    "twice": (("10.0.0.0/8", "10.0.0.0/8"), ["10.0.0.0/8"], None),
    "everybody": (("10.0.0.0/8", " 0.0.0.0/0 "), None, None),
    "everybody of one family": (("0.0.0.0/0", "fd00::/8"), None, ["fd00::/8"]),
    "everybody by two halves": (("0.0.0.0/1", "128.0.0.0/1"), ["0.0.0.0/1", "128.0.0.0/1"], None),
    "nobody, by a slip": (("10.0.0.0/33",), [], []),
    "of one family, and a slip that may be the other's": (("10.0.0.0/8", "fd00:/8"), ["10.0.0.0/8"], []),
    "in a zone": (("fd00::%eth0/8",), [], []),
    "of IPv6, cut at every fourth bit": (
        ("2001:db8::/30", "2001:dba::/31", "fd00::/8", "fd00::1/127"),
        None,
        [*(f"2001:{it:x}::/32" for it in range(0xDB8, 0xDBC)), "fd00::/8", "fd00::/128", "fd00::1/128"],
    ),
    "of IPv4, written as IPv6": (("::ffff:10.0.0.0/104",), [], []),
}
SLIPS = {"10.0.0.0/33", "fd00:/8", "fd00::%eth0/8", "::ffff:10.0.0.0/104"}
ONE_FAMILY = [
    "of one family: the other is open", "of IPv6 only",
    "of IPv6, cut at every fourth bit", "with white space", "with bits right of the prefix", "twice",
    "everybody by two halves",
]  # fmt: skip


@pytest.mark.parametrize(("written", "ipv4", "ipv6"), RANGES.values(), ids=list(RANGES))
def test_source_ranges_restrict_the_load_balancers_addresses(
    written: tuple[str, ...], ipv4: list[str] | None, ipv6: list[str] | None
) -> None:
    of = service(
        *("web", "10.96.0.10", "fd00:96::a"),
        kind="LoadBalancer",
        ports=NODE_PORT,
        external_ips=(EXTERNAL,),
        balanced=["203.0.113.9", "2001:db8::9"],
        load_balancer_source_ranges=written,
    )
    plan = make(of, THERE)
    restricted = {entry.element[0] for entry in plan.set_entries if entry.set is AddressSet.RESTRICTED}
    allowed = [entry.element for entry in plan.set_entries if entry.set is AddressSet.SOURCE_RANGE]
    expected = {"203.0.113.9": ipv4, "2001:db8::9": ipv6}
    assert restricted == {address for address, networks in expected.items() if networks is not None}
    assert sorted(allowed) == sorted((at, 6, 80, it) for at, networks in expected.items() for it in networks or ())
    slips = ["InvalidSourceRange"] * len(SLIPS.intersection(written))
    is_of_one_family = any(written == RANGES[name][0] for name in ONE_FAMILY)
    assert [it.reason for it in plan.problems] == slips + ["SourceRangesOfOneFamily"] * is_of_one_family


def test_the_problem_names_the_family_that_is_not_restricted_and_what_closes_it() -> None:
    fields: dict[str, Any] = {"kind": "LoadBalancer", "load_balancer_source_ranges": ("10.0.0.0/8",)}
    [problem] = make(service("web", "10.96.0.10", "fd00:96::a", balanced=["2001:db8::9"], **fields), THERE).problems
    assert problem.subject == "spec.loadBalancerSourceRanges"
    assert "IPv6 clients are not restricted" in problem.message
    assert "::1/128 for none" in problem.message
    assert not make(service(balanced=["203.0.113.9"], **fields), THERE).problems, "IPv4 only"


BOTH = "203.0.113.9"
IN_BOTH: dict[str, dict[str, Any]] = {
    "both allowed": {},
    "not allowed as an external IP": {"external_ip_ranges": ("198.51.100.0/24",)},
    "not allowed as the load balancer's": {"load_balancer_ip_ranges": ("198.51.100.0/24",)},
    "not the load balancer's to serve": {},
}


@pytest.mark.parametrize("case", IN_BOTH)
def test_source_ranges_restrict_an_external_ip_that_is_the_load_balancers_too(case: str) -> None:
    """kube-proxy drops by the set KUBE-LOAD-BALANCER-FW, whichever field has led to the virtual server."""
    annotations = {"kroute.io/skip-load-balancer-ips": "on"} if case == "not the load balancer's to serve" else {}
    of = service(
        kind="LoadBalancer",
        external_ips=(BOTH,),
        balanced=[BOTH],
        load_balancer_source_ranges=("10.0.0.0/8",),
        annotations=annotations,
    )
    plan = plan_service(of, read(endpoint_slice("web-1", THERE)), facts(), settings(**IN_BOTH[case]))
    assert f"TCP {BOTH}:80" in served(plan)
    assert {AddressSet.EXTERNAL, AddressSet.RESTRICTED} <= sets_of(plan, BOTH)
    assert [vip.address for vip in plan.vips].count(BOTH) == 1


POLICIES: dict[str, tuple[dict[str, Any], list[Endpoint], list[str], list[str], set[AddressSet]]] = {
    "Cluster: all ready ones": ({}, [HERE, THERE], ["1", "2"], ["1", "2"], {AddressSet.EXTERNAL}),
    "Cluster: those that terminate, where none is ready": (
        {},
        [LEAVING_HERE, LEAVING_THERE, UNREADY],
        ["3", "4"],
        ["3", "4"],
        {AddressSet.EXTERNAL},
    ),
    "Cluster: nothing": ({}, [UNREADY], [], [], {AddressSet.NO_ENDPOINT}),
    "external Local: local ones outside, all inside": (
        {"external_traffic_policy": "Local"},
        [HERE, THERE],
        ["1", "2"],
        ["1"],
        {AddressSet.EXTERNAL_LOCAL},
    ),
    "external Local: a local one that terminates": (
        {"external_traffic_policy": "Local"},
        [LEAVING_HERE, THERE],
        ["2"],
        ["3"],
        {AddressSet.EXTERNAL_LOCAL},
    ),
    "external Local, none here: the cluster's, for this node's clients": (
        {"external_traffic_policy": "Local"},
        [THERE, UNREADY],
        ["2"],
        ["2"],
        {AddressSet.EXTERNAL_LOCAL, AddressSet.NO_LOCAL},
    ),
    "external Local, none at all": (
        {"external_traffic_policy": "Local"},
        [UNREADY],
        [],
        [],
        {AddressSet.NO_ENDPOINT},
    ),
    "internal Local: local ones inside, all outside": (
        {"internal_traffic_policy": "Local"},
        [HERE, THERE],
        ["1"],
        ["1", "2"],
        {AddressSet.EXTERNAL},
    ),
    "internal Local, none here: nothing inside": (
        {"internal_traffic_policy": "Local"},
        [THERE],
        [],
        ["2"],
        {AddressSet.EXTERNAL},
    ),
    "internal Local: a local one that terminates": (
        {"internal_traffic_policy": "Local"},
        [LEAVING_HERE, THERE],
        ["3"],
        ["2"],
        {AddressSet.EXTERNAL},
    ),
}


@pytest.mark.parametrize(("policies", "endpoints", "inside", "outside", "sets"), POLICIES.values(), ids=list(POLICIES))
@pytest.mark.parametrize("address", [NODE_IPV4, EXTERNAL, "203.0.113.9"], ids=["node port", "external", "balancer"])
def test_traffic_policy(
    policies: dict[str, Any],
    endpoints: list[Endpoint],
    inside: list[str],
    outside: list[str],
    sets: set[AddressSet],
    address: str,
) -> None:
    of = service(kind="LoadBalancer", ports=NODE_PORT, external_ips=(EXTERNAL,), balanced=["203.0.113.9"], **policies)
    plan = make(of, *endpoints)
    number = 30080 if address == NODE_IPV4 else 80
    assert served(plan)["TCP 10.96.0.10:80"] == [f"10.244.1.{it}" for it in inside]
    assert served(plan)[f"TCP {address}:{number}"] == [f"10.244.1.{it}" for it in outside]
    assert sets_of(plan, address) - {AddressSet.VIP} == sets
    assert sets_of(plan, "10.96.0.10") == {AddressSet.VIP, AddressSet.CLUSTER_IP if inside else AddressSet.NO_ENDPOINT}


def test_hints_count_for_external_traffic_by_policy_cluster() -> None:
    hinted = endpoint("10.244.1.1", zones=["z1"]), endpoint("10.244.1.2", zones=["z2"])
    plan = make(service(kind="NodePort", ports=NODE_PORT), *hinted, zone="z2")
    assert served(plan) == {"TCP 10.96.0.10:80": ["10.244.1.2"], f"TCP {NODE_IPV4}:30080": ["10.244.1.2"]}


class TestHairpin:
    """The setting is the default; a Service's annotation takes precedence over it."""

    SWITCHES: ClassVar[dict[str, tuple[bool, dict[str, str], bool]]] = {
        "on by default": (True, {}, True),
        "off by the setting": (False, {}, False),
        "off by the annotation": (True, {"kroute.io/hairpin": "off"}, False),
        "on by the annotation": (False, {"service.hairpin": "on"}, True),
        "on by the mere presence, as in kube-router": (False, {"kube-router.io/service.hairpin": ""}, True),
        "unmoved by another word": (False, {"service.hairpin": "maybe"}, False),
    }

    @pytest.mark.parametrize(("setting", "annotations", "on"), SWITCHES.values(), ids=list(SWITCHES))
    def test_hairpin_is(self, setting: bool, annotations: dict[str, str], on: bool) -> None:
        slices = [endpoint_slice("web-1", HERE)]
        plan = plan_service(service(annotations=annotations), read(*slices), facts(), settings(hairpin=setting))
        assert (AddressSet.HAIRPIN in {it.set for it in plan.set_entries}) is on
        assert len(plan.problems) == ("maybe" in annotations.values())


POD_NETWORKS: dict[str, tuple[dict[str, Any], tuple[str, ...], list[str]]] = {
    "the cluster's": (
        {"cluster_cidrs": ("172.20.0.0/16", "fd00::/48")},
        ("10.1.0.0/24",),
        ["172.20.0.0/16", "fd00::/48"],
    ),
    "the node's, where nobody names the cluster's": ({}, ("10.1.0.0/24",), ["10.1.0.0/24"]),
    "the node's by NodeCIDR": (
        {"detect_local_mode": "NodeCIDR", "cluster_cidrs": ("172.20.0.0/16",)},
        ("10.1.0.0/24",),
        ["10.1.0.0/24"],
    ),
    "none, where interfaces tell": (
        {"detect_local_mode": "BridgeInterface", "pod_bridge_interface": "cbr0"},
        ("10.1.0.0/24",),
        [],
    ),
    "two halves of everything": ({"cluster_cidrs": ("0.0.0.0/0",)}, (), ["0.0.0.0/1", "128.0.0.0/1"]),
}


@pytest.mark.parametrize(("chosen", "pod_cidrs", "expected"), POD_NETWORKS.values(), ids=list(POD_NETWORKS))
def test_pod_networks_are(chosen: dict[str, Any], pod_cidrs: tuple[str, ...], expected: list[str]) -> None:
    plan = plan_node(settings(**chosen), facts(pod_cidrs=pod_cidrs))
    assert [entry.element[0] for entry in plan.set_entries] == expected
    assert plan.problems == ()


@pytest.mark.parametrize("bad", ["10.1.0.0/33", "fd00:1::%eth0/64"])
def test_a_bad_pod_network_is_a_problem_and_the_rest_counts(bad: str) -> None:
    plan = plan_node(settings(), facts(pod_cidrs=(bad, "10.1.0.0/24")))
    assert [entry.element for entry in plan.set_entries] == [("10.1.0.0/24",)]
    assert [problem.reason for problem in plan.problems] == ["InvalidPodCIDR"]


class TestLocalByAnnotation:
    """`kroute.io/local` makes the policy for clients outside Local, and leaves that for clients inside."""

    @pytest.mark.parametrize(
        ("annotations", "policy", "expected"),
        [
            ({"kube-router.io/service.local": "true"}, "Cluster", "Local"),
            ({"kroute.io/local": "on"}, None, "Local"),
            ({"kube-router.io/service.local": "false"}, "Local", "Local"),
            ({"kube-router.io/service.local": ""}, "Cluster", "Cluster"),
            ({"kube-router.io/service.local": "yes"}, "Cluster", "Cluster"),
        ],
    )
    def test_the_plan_is_that_of_the_policy(
        self, annotations: dict[str, str], policy: str | None, expected: str
    ) -> None:
        def of(annotations: dict[str, str] | None, policy: str | None) -> Service:
            return service(kind="NodePort", ports=NODE_PORT, annotations=annotations, external_traffic_policy=policy)

        plan, plain = make(of(annotations, policy), HERE, THERE), make(of(None, expected), HERE, THERE)
        assert (plan.virtual_servers, plan.set_entries) == (plain.virtual_servers, plain.set_entries)
        assert served(plan)["TCP 10.96.0.10:80"] == ["10.244.1.1", "10.244.1.2"]
        invalid = next(iter(annotations.values())) not in {"true", "false", "on"}
        assert [problem.reason for problem in plan.problems] == (["InvalidAnnotation"] if invalid else [])


@pytest.mark.parametrize(
    ("policy", "endpoints", "families"),
    [
        ("Local", (THERE,), ("IPv4",)),
        ("Local", (HERE, THERE), ()),
        ("Local", (), ()),
        ("Cluster", (THERE,), ()),
    ],
)
def test_a_plan_says_where_internal_policy_local_leaves_no_endpoint(
    policy: str, endpoints: tuple[Endpoint, ...], families: tuple[str, ...]
) -> None:
    of = service("web", "10.96.0.10", "fd00:96::a", internal_traffic_policy=policy)
    assert make(of, *endpoints).no_local_inside == families
