"""No Service gets an address that this node needs, not even as ClusterIP, and a Node's status is trusted in part."""

from typing import Any

import pytest

from kroute.model.node_facts import ApiFacts, NodeInterfaces
from kroute.model.objects import Applied, Deleted, KubernetesObject, Node, ObjectKey
from kroute.model.plan import ServicePlan
from kroute.planning.catalog import Catalog
from tests.builders import LISTED, NODE_IPV4, endpoint_slice, facts, node, service, settings

GATEWAY, BROADCAST, DNS, API = "192.168.123.1", "192.168.123.255", "192.168.123.53", "192.168.123.100"
BEHIND = "203.0.113.6"
INTERFACES = NodeInterfaces(
    frozenset({NODE_IPV4}),
    (NODE_IPV4,),
    gateways=frozenset({GATEWAY, "fd00:123::1"}),
    subnet_edges=frozenset({BROADCAST, "192.168.123.0"}),
    dns_servers=frozenset({DNS}),
)
BARE = NodeInterfaces(frozenset({NODE_IPV4}), (NODE_IPV4,))
API_FACTS = ApiFacts(frozenset({API}), ("10.200.0.0/16",))
KUBERNETES = (
    service("kubernetes", "10.96.0.1"),
    endpoint_slice("kubernetes", BEHIND, of="kubernetes"),
)
NEEDED = {
    "the gateway": GATEWAY,
    "the IPv6 gateway": "fd00:123::1",
    "the broadcast address": BROADCAST,
    "the network address": "192.168.123.0",
    "a DNS server": DNS,
    "the API server": API,
    "the API server behind its ClusterIP": BEHIND,
}


def catalog(*items: KubernetesObject, interfaces: NodeInterfaces = INTERFACES, **chosen: Any) -> Catalog:
    made = Catalog(settings(**chosen), facts())
    made.set_interfaces(interfaces)
    made.set_api(API_FACTS)
    made.take([*map(Applied, [*KUBERNETES, *items]), *LISTED])
    return made


def plan_of(made: Catalog, name: str = "web") -> ServicePlan:
    [plan] = [it for it in made.plan_marked() if it.key == ObjectKey("default", name)]
    assert isinstance(plan, ServicePlan)
    return plan


def bound(plan: ServicePlan) -> list[str]:
    return [vip.address for vip in plan.vips]


def reasons(plan: ServicePlan) -> list[str]:
    return [problem.reason for problem in plan.problems]


@pytest.mark.parametrize("allowed", [(), ("0.0.0.0/0", "::/0")], ids=["no ranges", "everything allowed"])
@pytest.mark.parametrize("address", NEEDED.values(), ids=list(NEEDED))
def test_what_the_node_needs_is_not_served(address: str, allowed: tuple[str, ...]) -> None:
    ranges = {"external_ip_ranges": allowed, "external_ips_on_node_addresses": True}
    plan = plan_of(catalog(service(external_ips=(address, "198.51.100.7")), **ranges))
    assert bound(plan) == ["10.96.0.10", "198.51.100.7"]
    assert reasons(plan) == ["NeededAddress"]


def test_it_is_served_where_a_setting_says_so() -> None:
    plan = plan_of(catalog(service(external_ips=(DNS, GATEWAY)), serve_needed_addresses=(f"{DNS}/32",)))
    assert bound(plan) == ["10.96.0.10", DNS]


def test_an_address_that_becomes_needed_is_given_up_and_served_again_when_it_is_free() -> None:
    made = catalog(service(external_ips=(GATEWAY, API)), interfaces=BARE)
    made.set_api(ApiFacts())
    assert bound(plan_of(made)) == ["10.96.0.10", GATEWAY, API]
    made.set_interfaces(INTERFACES)
    made.set_api(API_FACTS)
    assert bound(plan_of(made)) == ["10.96.0.10"]
    made.set_interfaces(BARE)
    made.set_api(ApiFacts())
    assert bound(plan_of(made)) == ["10.96.0.10", GATEWAY, API]


def test_an_api_server_that_moves_is_followed() -> None:
    made = catalog(service(external_ips=("203.0.113.8",)))
    assert bound(plan_of(made)) == ["10.96.0.10", "203.0.113.8"]
    made.take([Applied(endpoint_slice("kubernetes", "203.0.113.8", of="kubernetes"))])
    assert bound(plan_of(made)) == ["10.96.0.10"]


def test_the_ranges_of_servicecidr_objects_are_no_external_addresses() -> None:
    made = catalog(service(external_ips=("10.200.3.4",)))
    assert reasons(plan_of(made)) == ["InvalidExternalIP"]
    made.set_api(ApiFacts())
    assert bound(plan_of(made)) == ["10.200.3.4", "10.96.0.10"]


def test_no_rule_depends_on_what_the_node_needs() -> None:
    made = catalog(interfaces=BARE)
    made.plan_marked()
    made.set_interfaces(INTERFACES)
    made.set_api(ApiFacts())
    assert made.plan_marked() == []


class TestClusterIPs:
    """A ClusterIP is bound unless the kernel has another use for it."""

    @pytest.mark.parametrize(
        ("address", "reason"),
        [(NODE_IPV4, "NodeAddress"), (GATEWAY, "NeededAddress"), (BROADCAST, "NeededAddress")],
    )
    def test_one_that_the_nodes_kernel_has_is_not_bound(self, address: str, reason: str) -> None:
        plan = plan_of(catalog(service("web", address)))
        assert (bound(plan), plan.virtual_servers, plan.set_entries, reasons(plan)) == ([], (), (), [reason])

    def test_it_is_given_up_and_served_again_as_the_nodes_addresses_change(self) -> None:
        made = catalog(service("web", GATEWAY), interfaces=BARE)
        assert bound(plan_of(made)) == [GATEWAY]
        made.set_interfaces(INTERFACES)
        assert bound(plan_of(made)) == []
        made.set_interfaces(BARE)
        assert bound(plan_of(made)) == [GATEWAY]

    def test_the_api_servers_own_and_that_of_the_clusters_dns_are_served(self) -> None:
        """In a pod the API server has a ClusterIP, and so has the DNS server with `ClusterFirstWithHostNet`."""
        interfaces = INTERFACES._replace(dns_servers=frozenset({"10.96.0.53"}))
        made = catalog(service("dns", "10.96.0.53"), interfaces=interfaces)
        made.set_api(ApiFacts(frozenset({"10.96.0.1"})))
        plans = {plan.key.name: plan for plan in made.plan_marked() if isinstance(plan, ServicePlan)}
        assert {name: bound(plan) for name, plan in plans.items()} == {
            "kubernetes": ["10.96.0.1"],
            "dns": ["10.96.0.53"],
        }

    def test_no_node_object_ends_one(self) -> None:
        made = catalog(service(), node(("InternalIP", "10.96.0.10"), name="liar", pod_cidrs=("10.96.0.0/16",)))
        assert bound(plan_of(made)) == ["10.96.0.10"]


class TestPods:
    """The pods' networks are those of all Nodes."""

    def test_an_address_of_another_nodes_pods_is_refused_and_served_when_the_node_goes(self) -> None:
        other = node(name="node2", pod_cidrs=("10.244.7.0/24", "fd00:244:7::/64"))
        outside = ("10.244.7.9", "fd00:244:7::9", "10.244.8.9")
        made = catalog(service("web", "10.96.0.10", "fd00:96::a", external_ips=outside), other)
        plan = plan_of(made)
        assert bound(plan) == ["10.244.8.9", "10.96.0.10", "fd00:96::a"]
        assert ["Node node2" in problem.message for problem in plan.problems] == [True, True]
        made.take([Deleted(Node, other.key)])
        assert bound(plan_of(made)) == ["10.244.7.9", "10.244.8.9", "10.96.0.10", "fd00:244:7::9", "fd00:96::a"]

    def test_only_services_with_such_an_address_are_planned_again(self) -> None:
        made = catalog(
            service(external_ips=("198.51.100.7",)), service("other", "10.96.0.11", external_ips=("10.244.7.9",))
        )
        made.plan_marked()
        made.take([Applied(node(name="node2", pod_cidrs=("10.244.7.0/24",)))])
        assert [plan.key.name for plan in made.plan_marked() if isinstance(plan, ServicePlan)] == ["other"]

    @pytest.mark.parametrize("written", ["0.0.0.0/0", "::/0", "198.0.0.0/8", "nonsense"])
    def test_a_network_that_is_too_large_for_a_node_is_not_believed(self, written: str) -> None:
        liar = node(name="liar", pod_cidrs=(written,))
        assert bound(plan_of(catalog(service(external_ips=("198.51.100.7",)), liar))) == ["10.96.0.10", "198.51.100.7"]

    def test_where_the_cluster_networks_are_given_no_node_adds_to_them(self) -> None:
        liar = node(name="liar", pod_cidrs=("198.51.100.0/24",))
        made = catalog(service(external_ips=("198.51.100.7",)), liar, cluster_cidrs=("10.244.0.0/16",))
        assert bound(plan_of(made)) == ["10.96.0.10", "198.51.100.7"]


class TestNodesThatLie:
    """A kubelet can write anything into its Node's status."""

    LIAR = node(("InternalIP", "192.168.123.9"), ("ExternalIP", "198.51.100.7"), name="liar")

    def test_an_address_that_a_node_claims_is_given_up_and_the_service_is_told_by_whom(self) -> None:
        made = catalog(service(external_ips=("198.51.100.7",)))
        assert bound(plan_of(made)) == ["10.96.0.10", "198.51.100.7"]
        made.take([Applied(self.LIAR)])
        plan = plan_of(made)
        assert (bound(plan), reasons(plan)) == (["10.96.0.10"], ["NodeAddress"])
        assert "Node liar" in plan.problems[0].message

    def test_a_claim_outside_the_nodes_ranges_is_told_and_changes_nothing(self) -> None:
        made = catalog(
            service(external_ips=("198.51.100.7", "192.168.123.9")),
            self.LIAR,
            node_address_ranges=("192.168.123.0/24",),
        )
        plan = plan_of(made)
        assert bound(plan) == ["10.96.0.10", "198.51.100.7"]
        assert reasons(plan) == ["ClaimedByNode", "NodeAddress"]
        assert "Node liar" in plan.problems[0].message
