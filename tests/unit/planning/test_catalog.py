"""The catalog: which Services each change plans again, and who gets an address that two Services claim."""

from collections.abc import Callable
from typing import ClassVar

import pytest

from kroute.model.node_facts import NodeInterfaces
from kroute.model.objects import (
    HEADLESS_LABEL,
    SERVICE_PROXY_NAME_LABEL,
    ZONE_LABEL,
    Applied,
    Deleted,
    KubernetesObject,
    ObjectMeta,
    Service,
)
from kroute.model.plan import NodePlan, ServicePlan, Vip
from kroute.model.steps import Steps
from kroute.planning.catalog import Catalog
from kroute.planning.plan_service import planning
from tests.builders import (
    LISTED,
    NODE,
    NODE_IPV4,
    NODE_IPV6,
    endpoint,
    endpoint_slice,
    facts,
    node,
    port,
    service,
    settings,
)


def listed(*items: KubernetesObject, **chosen: object) -> Catalog:
    """Return a catalog that has taken these and planned them."""
    catalog = Catalog(settings(**chosen), facts())
    catalog.take([*map(Applied, items), *LISTED])
    catalog.plan_marked()
    return catalog


def planned(catalog: Catalog) -> list[ServicePlan]:
    """Commit, and return the plans of Services."""
    return [plan for plan in catalog.plan_marked() if isinstance(plan, ServicePlan)]


def apply(catalog: Catalog, *items: KubernetesObject) -> dict[str, ServicePlan]:
    catalog.take(map(Applied, items))
    return {plan.key.name: plan for plan in planned(catalog)}


def delete(catalog: Catalog, item: KubernetesObject) -> dict[str, ServicePlan]:
    catalog.take([Deleted(type(item), item.key)])
    return {plan.key.name: plan for plan in planned(catalog)}


def served(plan: ServicePlan) -> list[str]:
    return [str(server.key) for server in plan.virtual_servers]


def real_servers(plan: ServicePlan) -> list[str]:
    return [f"{it.address}:{it.port}" for server in plan.virtual_servers for it in server.real_servers]


def test_nothing_is_planned_until_services_slices_and_the_node_have_been_listed() -> None:
    catalog = Catalog(settings(), facts())
    catalog.take([Applied(service())])
    for step in LISTED:
        assert (catalog.ready, planned(catalog)) == (False, [])
        catalog.take([step])
    assert catalog.ready
    assert [plan.key.name for plan in planned(catalog)] == ["web"]


def test_planning_without_a_change_returns_nothing() -> None:
    assert planned(listed(service(), endpoint_slice("web-1", "10.244.1.5"))) == []


def test_a_change_that_means_nothing_here_returns_nothing() -> None:
    catalog = listed(service(), endpoint_slice("web-1", "10.244.1.5"))
    assert apply(catalog, service(annotations={"example.org/team": "blue"})) == {}
    assert apply(catalog, endpoint_slice("web-1", "10.244.1.5", endpoint("10.244.1.6", ready=False))) == {}


def test_slices_may_come_before_their_service() -> None:
    catalog = listed(endpoint_slice("web-1", "10.244.1.5"))
    assert real_servers(apply(catalog, service())["web"]) == ["10.244.1.5:8080"]


def test_generations_grow() -> None:
    catalog = listed(service("a", "10.96.0.1"))
    first = apply(catalog, service("b", "10.96.0.2"))["b"].generation
    second = apply(catalog, service("a", "10.96.0.3"))["a"].generation
    assert 0 < first < second


def test_a_service_that_goes_leaves_an_empty_plan_with_a_generation_of_its_own() -> None:
    catalog = listed(service())
    gone = delete(catalog, service())["web"]
    assert gone.is_empty
    assert gone.generation > 0
    assert delete(catalog, service()) == {}


def test_many_changes_of_one_service_between_two_calls_are_one_plan() -> None:
    catalog = listed(service())
    changed = apply(catalog, *(endpoint_slice("web-1", f"10.244.1.{number}") for number in range(1, 9)))
    assert real_servers(changed["web"]) == ["10.244.1.8:8080"]


def test_a_service_that_goes_and_comes_back_between_two_calls_is_no_change() -> None:
    catalog = listed(service())
    catalog.take([Deleted(Service, service().key), Applied(service())])
    assert planned(catalog) == []


@pytest.mark.parametrize(
    "not_ours",
    [
        service("web", "None"),
        service("web", ""),
        service(kind="ExternalName"),
        service(labels={SERVICE_PROXY_NAME_LABEL: "example.org"}),
    ],
    ids=["headless", "no address", "ExternalName", "another proxy's"],
)
def test_a_service_that_becomes_someone_elses_matter_goes_and_comes_back(not_ours: Service) -> None:
    catalog = listed(service())
    assert apply(catalog, not_ours)["web"].is_empty
    assert served(apply(catalog, service())["web"]) == ["TCP 10.96.0.10:80"]


def test_the_headless_label_of_a_service_with_an_address_says_nothing() -> None:
    catalog = listed(service(labels={HEADLESS_LABEL: ""}), endpoint_slice("web-1", "10.244.1.5"))
    changed = apply(catalog, endpoint_slice("web-1", "10.244.1.6"))
    assert (served(changed["web"]), real_servers(changed["web"])) == (["TCP 10.96.0.10:80"], ["10.244.1.6:8080"])


def test_a_service_labelled_for_kroute_is_served() -> None:
    catalog = listed()
    assert served(apply(catalog, service(labels={SERVICE_PROXY_NAME_LABEL: "kroute.io"}))["web"])


class TestSlices:
    """A slice belongs to the Service that its label names now."""

    def test_a_slice_that_goes_takes_its_endpoints_with_it(self) -> None:
        pieces = endpoint_slice("web-1", "10.244.1.5"), endpoint_slice("web-2", "10.244.1.6")
        catalog = listed(service(), *pieces)
        assert real_servers(delete(catalog, pieces[0])["web"]) == ["10.244.1.6:8080"]
        assert real_servers(delete(catalog, pieces[1])["web"]) == []

    def test_a_slice_that_changes_its_service_moves_its_endpoints(self) -> None:
        catalog = listed(
            service("a", "10.96.0.1"), service("b", "10.96.0.2"), endpoint_slice("s", "10.244.1.5", of="a")
        )
        changed = apply(catalog, endpoint_slice("s", "10.244.1.5", of="b"))
        assert {name: real_servers(plan) for name, plan in changed.items()} == {"a": [], "b": ["10.244.1.5:8080"]}

    def test_a_slice_that_stops_being_a_services_takes_its_endpoints_with_it(self) -> None:
        catalog = listed(service(), endpoint_slice("web-1", "10.244.1.5"))
        orphan = endpoint_slice("web-1", "10.244.1.5", of=None)
        assert real_servers(apply(catalog, orphan)["web"]) == []

    def test_slices_serve_services_of_their_own_namespace_only(self) -> None:
        catalog = listed(service())
        assert apply(catalog, endpoint_slice("web-1", "10.244.1.5", namespace="other")) == {}

    def test_slices_outlive_their_service(self) -> None:
        catalog = listed(service(), endpoint_slice("web-1", "10.244.1.5"))
        delete(catalog, service())
        assert real_servers(apply(catalog, service())["web"]) == ["10.244.1.5:8080"]


class TestNode:
    """Plans follow the facts of the node."""

    def test_the_own_nodes_object_gives_the_source_address(self) -> None:
        catalog = listed(service())
        changed = apply(catalog, node(("InternalIP", "192.168.123.239")))
        assert changed["web"].vips == (Vip("10.96.0.10", "192.168.123.239"),)
        assert catalog.node.ipv4 == "192.168.123.239"

    def test_other_nodes_and_repeated_reports_change_nothing(self) -> None:
        catalog = listed(service(), node(("InternalIP", "192.168.123.239")))
        assert apply(catalog, node(("InternalIP", "10.0.0.1"), name="node2")) == {}
        assert apply(catalog, node(("InternalIP", "192.168.123.239"), labels={"heartbeat": "2"})) == {}

    def test_a_node_object_that_goes_leaves_the_addresses(self) -> None:
        seen = node(("InternalIP", "192.168.123.239"))
        catalog = listed(service(), seen)
        assert delete(catalog, seen) == {}
        assert catalog.node.ipv4 == "192.168.123.239"

    def test_a_node_object_without_addresses_leaves_those_that_were_given_at_the_start(self) -> None:
        catalog = listed(service())
        assert apply(catalog, node(labels={ZONE_LABEL: "z1"})) == {}
        assert catalog.node == facts(zone="z1")

    def test_a_changed_address_concerns_the_vips_of_its_family_only(self) -> None:
        catalog = listed(service("four", "10.96.0.1"), service("six", "fd00:96::1"), service("none", "None"))
        catalog.set_node(facts("192.168.123.239"))
        assert [plan.key.name for plan in planned(catalog)] == ["four"]
        catalog.set_node(facts("192.168.123.239", "fd00:123::239"))
        assert [plan.key.name for plan in planned(catalog)] == ["six"]

    def test_a_changed_address_concerns_external_ips_of_its_family(self) -> None:
        catalog = listed(service("web", "fd00:96::1", "10.96.0.1", external_ips=("198.51.100.7",)))
        catalog.set_node(facts("192.168.123.239"))
        [plan] = planned(catalog)
        assert Vip("198.51.100.7", "192.168.123.239") in plan.vips

    def test_a_family_that_goes_and_comes_takes_its_vips_with_it(self) -> None:
        catalog = listed(service("web", "10.96.0.10", "fd00:96::a"))
        catalog.set_node(facts(ipv6=None))
        assert [it.address for it in planned(catalog)[0].vips] == ["10.96.0.10"]
        catalog.set_node(facts())
        assert [it.address for it in planned(catalog)[0].vips] == ["10.96.0.10", "fd00:96::a"]

    def test_fallback_addresses_count_until_a_node_object_names_one(self) -> None:
        catalog = listed(service())
        catalog.set_interfaces(NodeInterfaces(default=("192.168.123.7",)))
        assert planned(catalog)[0].vips == (Vip("10.96.0.10", "192.168.123.7"),)
        own = frozenset({"192.168.123.8", "192.168.123.239"})
        catalog.set_interfaces(NodeInterfaces(own, ("192.168.123.8",)))
        apply(catalog, node(("InternalIP", "192.168.123.239")))
        assert (planned(catalog), catalog.node.ipv4) == ([], "192.168.123.239")

    def test_the_settings_addresses_win_over_both(self) -> None:
        catalog = Catalog(settings(node_ips=("10.9.9.9",)), facts("10.9.9.9", None))
        catalog.take([Applied(node(("InternalIP", "192.168.123.239")))])
        catalog.set_interfaces(NodeInterfaces(frozenset({"192.168.123.8"}), ("192.168.123.8",)))
        assert catalog.node.ipv4 == "10.9.9.9"

    def test_the_new_address_serves_before_the_node_object_follows(self) -> None:
        catalog = listed(service(), node(("InternalIP", NODE_IPV4)))
        catalog.set_interfaces(NodeInterfaces(frozenset({"192.168.123.239"}), ("192.168.123.239",)))
        assert planned(catalog)[0].vips == (Vip("10.96.0.10", "192.168.123.239"),)
        assert apply(catalog, node(("InternalIP", "192.168.123.239"))) == {}

    def test_a_family_without_any_address_for_a_moment_keeps_its_services(self) -> None:
        catalog = Catalog(settings(), facts())
        catalog.take([Applied(service("web", "10.96.0.10", "fd00:96::a")), *LISTED])
        catalog.plan_marked()
        catalog.set_interfaces(NodeInterfaces(frozenset({NODE_IPV6}), (NODE_IPV6,)))
        assert planned(catalog) == []

    def test_the_first_known_address_ends_the_time_when_every_family_is_served(self) -> None:
        catalog = Catalog(settings(), facts(None, None))
        catalog.take([Applied(service("four", "10.96.0.10")), Applied(service("six", "fd00:96::a")), *LISTED])
        assert [plan.vips[0].source for plan in planned(catalog)] == [None, None]
        catalog.set_node(facts(NODE_IPV4, None))
        assert [plan.vips for plan in planned(catalog)] == [(Vip("10.96.0.10", NODE_IPV4),), ()]

    def test_the_zone_concerns_services_with_hints_and_the_pod_networks_none(self) -> None:
        hinted = endpoint("10.244.1.5", zones=("z2",)), endpoint("10.244.1.6", zones=("z1",))
        catalog = listed(service(), endpoint_slice("web-1", *hinted), service("plain", "10.96.0.11"))
        catalog.set_node(facts(zone="z2", pod_cidrs=("10.244.1.0/24",)))
        [plan] = planned(catalog)
        assert real_servers(plan) == ["10.244.1.5:8080"]

    def test_an_address_that_comes_or_goes_concerns_services_with_node_ports(self) -> None:
        catalog = listed(
            service("web", kind="NodePort", ports=[port(80, node_port=30080)]),
            service("internal", "10.96.0.11"),
            service("bare", "10.96.0.12", kind="NodePort"),
        )
        catalog.set_interfaces(NodeInterfaces(frozenset({NODE_IPV4}), (NODE_IPV4,)))
        [plan] = planned(catalog)
        assert served(plan) == ["TCP 10.96.0.10:80", f"TCP {NODE_IPV4}:30080"]
        catalog.set_interfaces(NodeInterfaces(frozenset({NODE_IPV4, "192.168.123.7"}), (NODE_IPV4,)))
        assert served(planned(catalog)[0])[1:] == [f"TCP {NODE_IPV4}:30080", "TCP 192.168.123.7:30080"]
        catalog.set_interfaces(NodeInterfaces(frozenset(), ()))
        assert served(planned(catalog)[0]) == ["TCP 10.96.0.10:80"]

    def test_an_external_ip_that_moves_onto_an_interface_of_the_node_is_served_there_and_not_bound(self) -> None:
        both = service(external_ips=("198.51.100.7",)), service("other", "10.96.0.11")
        catalog = listed(*both, external_ips_on_node_addresses=True)
        catalog.set_interfaces(NodeInterfaces(frozenset({"198.51.100.7", NODE_IPV4}), (NODE_IPV4,)))
        [plan] = planned(catalog)
        assert served(plan) == ["TCP 10.96.0.10:80", "TCP 198.51.100.7:80"]
        assert [vip.address for vip in plan.vips] == ["10.96.0.10"]

    def test_the_nodes_own_plan_says_what_is_known_of_it(self) -> None:
        catalog = Catalog(settings(), facts())
        catalog.take(LISTED)
        [plan] = catalog.plan_marked()
        assert isinstance(plan, NodePlan)
        assert plan.node == facts().without_needs
        assert [problem.reason for problem in plan.problems] == ["NodeNotFound"]
        catalog.take([Applied(node(("InternalIP", NODE_IPV4), ("InternalIP", NODE_IPV6)))])
        [plan] = catalog.plan_marked()
        assert plan == NodePlan(facts().without_needs, plan.generation)
        assert catalog.plan_marked() == []


class TestConflicts:
    """When several Services claim an address and port, the oldest gets it."""

    OLD = service("old", created="2026-01-01T00:00:00Z")
    YOUNG = service("a-young", created="2026-01-02T00:00:00Z")
    UNDATED = service("a-undated", created=None)

    @pytest.mark.parametrize("at_once", [True, False])
    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_the_older_one_wins_in_any_order(self, order: tuple[int, int], at_once: bool) -> None:
        catalog = listed()
        items = [(self.OLD, self.YOUNG)[index] for index in order]
        plans = apply(catalog, *items) if at_once else {**apply(catalog, items[0]), **apply(catalog, items[1])}
        assert (served(plans["old"]), plans["old"].problems) == (["TCP 10.96.0.10:80"], ())
        assert (served(plans["a-young"]), plans["a-young"].vips) == ([], ())
        assert [problem.reason for problem in plans["a-young"].problems] == ["AddressConflict"]

    def test_of_several_of_one_age_the_first_by_namespace_and_name_wins(self) -> None:
        catalog = listed()
        catalog.take(map(Applied, [service("b"), service("a"), service("a", namespace="another")]))
        assert [str(plan.key) for plan in planned(catalog) if plan.virtual_servers] == ["another/a"]

    def test_a_service_without_a_creation_time_is_the_youngest(self) -> None:
        plans = apply(listed(), self.UNDATED, self.YOUNG)
        assert (served(plans["a-undated"]), served(plans["a-young"])) == ([], ["TCP 10.96.0.10:80"])

    def test_only_the_contested_port_is_lost_and_the_vip_is_shared(self) -> None:
        younger = service("young", created="2026-01-02T00:00:00Z", ports=[port(80), port(81)])
        plans = apply(listed(), self.OLD, younger)
        assert served(plans["young"]) == ["TCP 10.96.0.10:81"]
        assert plans["young"].vips == plans["old"].vips

    def test_different_protocols_do_not_conflict(self) -> None:
        plans = apply(listed(), self.OLD, service("udp", ports=[port(80, "", "UDP")]))
        assert served(plans["udp"]) == ["UDP 10.96.0.10:80"]
        assert plans["udp"].problems == ()

    RELEASES: ClassVar[dict[str, Callable[[Catalog], dict[str, ServicePlan]]]] = {
        "winner deleted": lambda catalog: delete(catalog, TestConflicts.OLD),
        "winner moves its address": lambda catalog: apply(catalog, service("old", "10.96.0.11")),
        "winner moves its port": lambda catalog: apply(catalog, service("old", ports=[81])),
        "winner becomes headless": lambda catalog: apply(catalog, service("old", "None")),
        "winner is recreated": lambda catalog: apply(catalog, service("old", created="2026-01-03T00:00:00Z")),
    }

    @pytest.mark.parametrize("release", RELEASES.values(), ids=list(RELEASES))
    def test_the_loser_gets_the_address_when_the_winner_lets_it_go(
        self, release: Callable[[Catalog], dict[str, ServicePlan]]
    ) -> None:
        catalog = listed(self.OLD, self.YOUNG)
        changed = release(catalog)
        assert set(changed) == {"old", "a-young"}
        assert (served(changed["a-young"]), changed["a-young"].problems) == (["TCP 10.96.0.10:80"], ())

    def test_an_older_service_that_comes_takes_the_address_and_everyone_is_told_who_has_it(self) -> None:
        catalog = listed(self.YOUNG, self.UNDATED)
        changed = apply(catalog, self.OLD)
        assert served(changed["old"]) == ["TCP 10.96.0.10:80"]
        assert {
            name: "default/old has it" in plan.problems[0].message for name, plan in changed.items() if name != "old"
        } == {
            "a-young": True,
            "a-undated": True,
        }

    def test_a_loser_that_goes_does_not_concern_the_winner(self) -> None:
        catalog = listed(self.OLD, self.YOUNG)
        assert set(delete(catalog, self.YOUNG)) == {"a-young"}

    def test_an_address_of_a_family_that_the_node_lacks_is_not_contested(self) -> None:
        catalog = listed(service("old", "fd00:96::1"), service("young", "fd00:96::1", created=None))
        catalog.set_node(facts(ipv6=None))
        assert {plan.key.name: plan.is_empty for plan in planned(catalog)} == {"old": True, "young": True}


def test_work_is_proportional_to_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [service(f"s{number}", f"10.96.1.{number}") for number in range(100)]
    catalog = listed(*items, *(endpoint_slice(f"e{number}", "10.244.1.5", of=f"s{number}") for number in range(100)))
    seen: list[str] = []

    def spy(of: Service, *rest: object) -> Steps[ServicePlan]:
        seen.append(of.key.name)
        return planning(of, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("kroute.planning.catalog.planning", spy)
    apply(catalog, endpoint_slice("e7", "10.244.1.6", of="s7"))
    apply(catalog, service("s8", "10.96.1.8", ports=[81]))
    apply(catalog, endpoint_slice("lonely", "10.244.1.6", of="unknown"))
    delete(catalog, items[9])
    catalog.set_node(facts(ipv6="fd00:123::9"))
    assert planned(catalog) == []
    assert seen == ["s7", "s8"]


def test_the_uid_of_a_service_is_known_while_it_exists() -> None:
    item = Service(ObjectMeta("web", "default", uid="68830302-0407-4198-a71c-909c040858ae"), service().spec)
    catalog = listed(item)
    assert catalog.uid_of(item.key) == "68830302-0407-4198-a71c-909c040858ae"
    delete(catalog, item)
    assert catalog.uid_of(item.key) == ""


def test_nothing_is_kept_of_objects_that_went() -> None:
    piece = endpoint_slice("web-1", "10.244.1.5")
    catalog = listed(service(), piece, node(("InternalIP", NODE_IPV4), ("InternalIP", NODE_IPV6), name=NODE))
    delete(catalog, piece)
    delete(catalog, service())
    slices = catalog.slices
    kept = (catalog.services, slices.by_service, slices._service_of, catalog.plans, catalog.marked)
    assert [list(it) for it in kept] == [[], [], [], [], []]
    assert (catalog.claims._claimants, catalog.claims._claims) == ({}, {})
    owners = catalog.owners
    assert [(it._values, it._owners) for it in (owners._cluster_ips, owners._external_ips)] == [({}, {})] * 2
