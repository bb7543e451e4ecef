"""What NetworkPolicies mean: one rule of the API, or one decision where the API is silent, a test."""

from typing import Any

import msgspec
import pytest

from kroute.model.objects import (
    Applied,
    ClusterNetworkPolicy,
    Listed,
    Namespace,
    NetworkPolicy,
    ObjectKey,
    Pod,
)
from kroute.model.plan import Protocol
from kroute.model.policy_plan import NO_GROUPS, Direction, GroupChange, GroupKey, PodGroups, PortElement
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.planning.policies.rules import DEFAULTS, Limits
from tests.unit.planning.policies.cluster import (
    NODE,
    Cluster,
    Object,
    block,
    egress,
    ingress,
    namespace,
    pod,
    pods_with,
    policy,
    port,
)

WEB, API, OLD, FAR, OUTSIDE = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.1.1", "192.0.2.1"
SHOP, BANK = namespace("shop", team="a"), namespace("bank", team="b")
WEB_POD = pod("web", WEB, app="web", ports=[port("http", 80), port("dns", 53, "UDP")])
API_POD = pod("api", API, on="node2", app="api", ports=[port("http", 8080)])
FAR_POD = pod("far", FAR, on="node2", namespace="bank", app="api", ports=[port("http", 9090)])
PODS = (SHOP, BANK, WEB_POD, API_POD, FAR_POD)
PEERS = (API, FAR, OUTSIDE)


def cluster(*items: Object, limits: Limits = DEFAULTS) -> Cluster:
    """A pod `web` of shop on the node, `api` of shop and `far` of bank on another one."""
    return Cluster(*PODS, *items, limits=limits)


def passes(made: Cluster, *packet: Any) -> bool:
    """Whether a packet passes, by the plan and by what the catalog says of the connection."""
    allowed = made.allows(*packet)
    assert made.judged(*packet).is_refused != allowed
    return allowed


def let_in(made: Cluster, number: int = 80, protocol: str = "TCP") -> set[str]:
    """Who may call `web`."""
    return {peer for peer in PEERS if passes(made, peer, WEB, number, protocol)}


def let_out(made: Cluster, number: int = 80, protocol: str = "TCP") -> set[str]:
    """Whom `web` may call."""
    return {peer for peer in PEERS if passes(made, WEB, peer, number, protocol)}


def test_a_pod_that_no_policy_selects_is_not_in_the_plan() -> None:
    made = cluster(ingress(namespace="bank"), ingress(selector={"matchLabels": {"app": "other"}}))
    assert made.catalog.pods == {}
    assert let_in(made) == let_out(made) == set(PEERS)


def test_without_policy_types_a_policy_isolates_for_ingress_and_with_egress_rules_for_egress_too() -> None:
    made = cluster(policy())
    assert (let_in(made), let_out(made)) == (set(), set(PEERS))
    made.after(policy(policyTypes=[]))
    assert (let_in(made), let_out(made)) == (set(), set(PEERS))
    made.after(policy(egress=[]))
    assert (let_in(made), let_out(made)) == (set(), set(PEERS))
    made.after(policy(egress=[{"to": [block("10.0.0.0/8")]}]))
    assert (let_in(made), let_out(made)) == (set(), {API, FAR})


def test_a_judgement_looks_the_names_of_ports_up_where_the_plan_does() -> None:
    named = [{"port": "http"}]
    made = cluster(
        egress(pods_with(app="api"), block("192.0.2.0/24"), ports=named),
        ingress(pods_with(app="api"), ports=named, name="in"),
    )
    packets = [(WEB, API, 8080), (WEB, API, 80), (WEB, OUTSIDE, 80), (API, WEB, 80), (API, WEB, 8080)]
    assert [passes(made, *packet) for packet in packets] == [True, False, False, True, False]


def test_a_judgement_names_each_rule_that_allows_and_none_that_was_left_out() -> None:
    rules = [{"from": [block(f"192.0.2.{number}/32")], "ports": [{"port": 80}]} for number in (2, 1, 1)]
    made = cluster(policy(ingress=rules), limits=Limits(elements=2))
    [ruling] = made.judged(OUTSIDE, WEB).rulings
    assert ruling.allowed_by == ["shop/policy ingress[1]"]
    assert made.judged(OUTSIDE, WEB, 81).is_refused


def test_policy_types_say_in_which_directions_a_policy_isolates() -> None:
    made = cluster(policy(policyTypes=["Egress"], ingress=[{}]))
    assert (let_in(made), let_out(made)) == (set(PEERS), set())
    made.after(policy(policyTypes=["Ingress"], egress=[{}]))
    assert (let_in(made), let_out(made)) == (set(), set(PEERS))
    made.after(policy(policyTypes=["Ingress", "Egress"]))
    assert (let_in(made), let_out(made)) == (set(), set())


def test_an_empty_or_absent_pod_selector_selects_all_pods_of_the_namespace() -> None:
    specs: list[Object] = [{"podSelector": {}}, {"podSelector": None}, {}]
    for spec in specs:
        written = policy()
        written["spec"] = spec
        assert let_in(cluster(written)) == set()


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "web", "tier": "x"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["api", "web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["api"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["api"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
    ],
)
def test_a_selector_selects_by_all_of_its_conditions(selector: Object, *, is_selected: bool) -> None:
    assert (let_in(cluster(policy(selector=selector))) == set()) == is_selected


def test_absent_or_empty_peers_are_all_peers_and_absent_or_empty_ports_all_ports_of_all_protocols() -> None:
    rules: list[Object] = [{}, {"from": []}, {"from": None, "ports": None}, {"ports": []}]
    for rule in rules:
        made = cluster(policy(ingress=[rule]))
        assert let_in(made) == let_in(made, 0, "ICMP") == set(PEERS)
    assert let_in(cluster(policy(ingress=None))) == set()


def test_a_pod_selector_names_pods_of_the_policys_own_namespace() -> None:
    assert let_in(cluster(ingress(pods_with(app="api")))) == {API}
    assert let_in(cluster(ingress({"podSelector": {}}))) == {API}


def test_a_namespace_selector_names_all_pods_of_those_namespaces() -> None:
    assert let_in(cluster(ingress({"namespaceSelector": {"matchLabels": {"team": "b"}}}))) == {FAR}
    assert let_in(cluster(ingress({"namespaceSelector": {}}))) == {API, FAR}


def test_both_selectors_name_pods_with_these_labels_in_those_namespaces() -> None:
    both = pods_with(app="api") | {"namespaceSelector": {"matchLabels": {"team": "b"}}}
    assert let_in(cluster(ingress(both))) == {FAR}
    assert let_in(cluster(ingress(pods_with(app="web") | {"namespaceSelector": {}}))) == set()


def test_an_ip_block_names_a_network_without_its_exceptions() -> None:
    assert let_in(cluster(ingress(block("192.0.2.0/24")))) == {OUTSIDE}
    made = cluster(ingress(block("0.0.0.0/0", "10.0.0.0/24", "192.0.2.1/32")))
    assert let_in(made) == {FAR}
    assert let_in(cluster(ingress(block("10.0.0.0/8", "10.0.0.0/8")))) == set()


def test_several_policies_and_several_rules_unite() -> None:
    made = cluster(ingress(pods_with(app="api"), ports=[{"port": 80}], name="a"), ingress(block("192.0.2.0/24")))
    made.after(policy("c", ingress=[{"ports": [{"port": 90}]}, {"ports": [{"port": 92}]}]))
    assert let_in(made) == {API, OUTSIDE}
    assert let_in(made, 90) == let_in(made, 92) == set(PEERS)
    assert let_in(made, 91) == {OUTSIDE}


def test_a_packet_needs_the_egress_of_its_source_and_the_ingress_of_its_destination() -> None:
    local = pod("near", "10.0.0.9", app="near")
    made = cluster(local, egress(pods_with(app="web"), name="out", selector={"matchLabels": {"app": "near"}}))
    assert passes(made, "10.0.0.9", WEB)
    made.after(ingress(pods_with(app="api"), name="in", selector={"matchLabels": {"app": "web"}}))
    assert not passes(made, "10.0.0.9", WEB)
    assert passes(made, API, WEB)


@pytest.mark.parametrize(
    ("written", "allowed"),
    [
        ({}, {"TCP 0", "TCP 80", "TCP 81"}),
        ({"protocol": "UDP"}, {"UDP 80"}),
        ({"port": 80}, {"TCP 80"}),
        ({"port": 80, "protocol": "UDP"}, {"UDP 80"}),
        ({"port": 79, "endPort": 80}, {"TCP 80"}),
        ({"port": 80, "endPort": 80}, {"TCP 80"}),
        ({"port": "http"}, {"TCP 80"}),
        ({"port": "dns"}, set()),
        ({"port": "other"}, set()),
    ],
)
def test_a_port_is_of_tcp_unless_it_says_otherwise_and_without_a_number_it_is_all_ports(
    written: Object, allowed: set[str]
) -> None:
    made = cluster(ingress(ports=[written]))
    asked = [("TCP", 0), ("TCP", 80), ("TCP", 81), ("UDP", 80), ("ICMP", 0)]
    assert {f"{protocol} {number}" for protocol, number in asked if let_in(made, number, protocol)} == allowed


def test_a_name_is_for_ingress_a_port_of_the_pod_itself_so_it_may_part_pods_of_one_policy() -> None:
    other = pod("other", OLD, app="web", ports=[port("http", 81)])
    made = cluster(other, ingress(ports=[{"port": "http"}]))
    assert [passes(made, API, address, number) for address in (WEB, OLD) for number in (80, 81)] == [1, 0, 0, 1]
    assert made.catalog.pods[WEB].ingress != made.catalog.pods[OLD].ingress


def test_a_name_is_for_egress_a_port_of_each_peer() -> None:
    by_name = [{"port": "http"}]
    for made in (cluster(egress({"namespaceSelector": {}}, ports=by_name)), cluster(egress(ports=by_name))):
        assert [let_out(made, number) for number in (80, 8080, 9090)] == [set(), {API}, {FAR}]


def test_a_name_allows_nothing_together_with_an_ip_block_for_egress() -> None:
    made = cluster(egress(block("10.0.0.0/8"), ports=[{"port": "http"}]))
    assert let_out(made, 8080) == set()
    assert made.messages() == [
        "egress[0] has an ipBlock and the name of a port, which allow nothing together. Write the port's number."
    ]
    assert let_in(cluster(ingress(block("10.0.0.0/8"), ports=[{"port": "http"}]))) == {API, FAR}


def test_a_port_of_a_sidecar_has_a_name_and_that_of_another_init_container_has_none() -> None:
    sidecar = pod("web", WEB, ports=[port("http", 80)])
    init = [{"restartPolicy": "Always", "ports": [port("side", 81), port("http", 99)]}, {"ports": [port("init", 82)]}]
    sidecar["spec"]["initContainers"] = init
    made = cluster(sidecar, ingress(ports=[{"port": name} for name in ("http", "side", "init")]))
    assert [bool(let_in(made, number)) for number in (80, 81, 82, 99)] == [True, True, False, False]


def test_pods_on_their_nodes_network_are_neither_selected_nor_peers() -> None:
    made = cluster(ingress({"namespaceSelector": {}}), pod("web", WEB, host=True), pod("api", API, on="n2", host=True))
    assert WEB not in made.catalog.pods
    made.after(WEB_POD)
    assert let_in(made) == {FAR}


def test_pods_that_have_completed_are_neither_selected_nor_peers() -> None:
    for phase in ("Succeeded", "Failed"):
        made = cluster(ingress({"podSelector": {}}), pod("api", API, on="node2", phase=phase))
        assert let_in(made) == set()
        made.after(pod("web", WEB, phase=phase))
        assert made.catalog.pods == {}


def test_a_pod_that_terminates_counts_until_it_is_gone() -> None:
    leaving = pod("api", API, on="node2", deleted="2026-01-01T00:00:00Z")
    made = cluster(ingress({"podSelector": {}}), leaving)
    assert let_in(made) == {API}
    made.delete(leaving)
    made.plan()
    assert let_in(made) == set()


def test_a_pod_is_in_the_plan_with_its_first_address() -> None:
    made = cluster(pod("web", app="web"), ingress())
    assert made.catalog.pods == {}
    made.after(pod("web", WEB, app="web", phase="Pending"))
    assert set(made.catalog.pods) == {WEB}


def test_a_dual_stack_pod_is_isolated_and_a_peer_with_both_addresses() -> None:
    dual = pod("web", WEB, "fd00::1"), pod("api", API, "fd00::2", on="node2", app="api")
    made = cluster(*dual, ingress(pods_with(app="api"), ports=[{"port": 80}]))
    assert passes(made, API, WEB)
    assert passes(made, "fd00::2", "fd00::1")
    assert not passes(made, "fd00::2", "fd00::1", 81)
    assert not passes(made, "fd00::3", "fd00::1")
    assert made.catalog.pods[WEB] == made.catalog.pods["fd00::1"]


def test_of_two_pods_with_one_address_the_one_that_runs_has_it() -> None:
    done = pod("done", API, on="node2", phase="Succeeded", app="x")
    made = cluster(done, ingress(pods_with(app="x")))
    assert let_in(made) == set()
    leaving = pod("done", API, on="node2", deleted="2026-01-01T00:00:00Z", app="x")
    made.after(leaving)
    assert let_in(made) == set(), "api runs, and has the address"
    made.delete(API_POD)
    made.plan()
    assert let_in(made) == {API}


def test_of_two_pods_with_one_address_the_newer_one_has_it() -> None:
    old = pod("b", OLD, on="node2", created="2026-01-01T00:00:00Z", app="old")
    new = pod("a", OLD, on="node2", created="2026-01-02T00:00:00Z", app="new")
    for order in ([old, new], [new, old]):
        made = cluster(*order, ingress(pods_with(app="new")))
        assert passes(made, OLD, WEB)
        made.delete(new)
        made.plan()
        assert not passes(made, OLD, WEB)


def test_a_pod_reaches_itself() -> None:
    made = cluster(policy(policyTypes=["Ingress", "Egress"]))
    assert passes(made, WEB, WEB)


def test_no_namespace_selector_selects_a_namespace_that_is_not_known() -> None:
    absent = {"namespaceSelector": {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}}
    peers: list[Object] = [absent, {"namespaceSelector": {}}]
    for peer in peers:
        made = cluster(ingress(peer))
        assert let_in(made) == {API, FAR}
        made.delete(BANK)
        made.plan()
        assert let_in(made) == {API}


def test_peers_follow_the_labels_of_pods_and_namespaces() -> None:
    made = cluster(ingress(pods_with(app="x"), {"namespaceSelector": {"matchLabels": {"team": "x"}}}))
    assert let_in(made) == set()
    made.after(pod("api", API, on="node2", app="x"))
    assert let_in(made) == {API}
    made.after(namespace("bank", team="x"), pod("api", API, on="node2", app="y"))
    assert let_in(made) == {FAR}


WRONG = [
    (
        block("10.0.0.0/33"),
        "ingress[0].from[0].ipBlock.cidr '10.0.0.0/33' is not a network, so this peer allows nothing.",
    ),
    (block("10.0.0.1"), "ingress[0].from[0].ipBlock.cidr '10.0.0.1' is not a network, so this peer allows nothing."),
    (block(""), "ingress[0].from[0].ipBlock.cidr '' is not a network, so this peer allows nothing."),
    (
        block("10.0.0.0/8", "10.0.0.0/24", "172.16.0.0/24"),
        "ingress[0].from[0].ipBlock.except[1] '172.16.0.0/24' is outside of 10.0.0.0/8, so this peer allows nothing.",
    ),
    (
        block("0.0.0.0/0", "fd00::/8"),
        "ingress[0].from[0].ipBlock.except[0] 'fd00::/8' is outside of 0.0.0.0/0, so this peer allows nothing.",
    ),
    ({}, "ingress[0].from[0] names no peer, so this peer allows nothing."),
    (
        block("0.0.0.0/0") | {"podSelector": {}},
        "ingress[0].from[0] has an ipBlock and a selector, so this peer allows nothing.",
    ),
    (
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "", "values": ["x"]}]}},
        "ingress[0].from[0].podSelector.matchExpressions[0] has an unknown operator, '', so this peer allows nothing.",
    ),
    (
        {"namespaceSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn"}]}},
        "ingress[0].from[0].namespaceSelector.matchExpressions[0] has no values, so this peer allows nothing.",
    ),
    (
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["x"]}]}},
        "ingress[0].from[0].podSelector.matchExpressions[0] has values, so this peer allows nothing.",
    ),
    (
        {"podSelector": {"matchLabels": {f"l{number}": "" for number in range(101)}}},
        "ingress[0].from[0].podSelector has too many conditions, so this peer allows nothing.",
    ),
]


@pytest.mark.parametrize(("peer", "said"), WRONG, ids=[said.split(",")[0] for _, said in WRONG])
def test_a_peer_that_cannot_be_understood_allows_nothing_and_the_others_what_they_say(peer: Object, said: str) -> None:
    made = cluster(ingress(peer))
    assert let_in(made) == set(), "it still isolates"
    [message] = made.messages()
    assert message.startswith(f"{said} Allowed: ")
    made.after(ingress(peer, block("192.0.2.0/24")))
    assert let_in(made) == {OUTSIDE}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"port": 80, "endPort": 79}, "ingress[0].ports[0] 80 to 79 is no port or no range"),
        ({"port": 80, "endPort": 65536}, "ingress[0].ports[0] 80 to 65536 is no port or no range"),
        ({"port": 0}, "ingress[0].ports[0] 0 is no port or no range"),
        ({"port": 65536}, "ingress[0].ports[0] 65536 is no port or no range"),
        ({"port": "http", "endPort": 90}, "ingress[0].ports[0].endPort 90 has no number as port beside it"),
        ({"endPort": 90}, "ingress[0].ports[0].endPort 90 has no number as port beside it"),
        ({"protocol": "ICMP"}, "ingress[0].ports[0].protocol 'ICMP' is not known"),
    ],
)
def test_a_port_that_cannot_be_understood_allows_nothing_and_the_others_what_they_say(
    written: Object, said: str
) -> None:
    made = cluster(ingress(ports=[written]))
    assert let_in(made) == let_in(made, 0, "ICMP") == set(), "the rule is not one for all ports"
    [message] = made.messages()
    assert message.startswith(f"{said}, so this port allows nothing. Allowed: ")
    made.after(ingress(ports=[written, {"port": 443}]))
    assert (let_in(made), let_in(made, 443)) == (set(), set(PEERS))


def test_a_pod_selector_that_cannot_be_understood_selects_no_pod_and_the_policy_says_so() -> None:
    made = cluster(ingress(selector={"matchExpressions": [{"key": "app", "operator": "Near"}]}))
    assert made.catalog.pods == {}
    said = "podSelector.matchExpressions[0] has an unknown operator, 'Near', so the policy selects no pod."
    [problem] = made.problems()["shop/policy"]
    assert problem.subject == "podSelector.matchExpressions[0]"
    assert problem.message == f"{said} Allowed: In, NotIn, Exists and DoesNotExist."


def test_an_unknown_policy_type_is_left_out_and_without_a_known_one_the_default_holds() -> None:
    made = cluster(policy(policyTypes=["Forward"]))
    assert (let_in(made), let_out(made)) == (set(), set(PEERS))
    assert made.messages() == ["policyTypes 'Forward' is not known and left out. Allowed: Ingress and Egress."]
    made.after(policy(policyTypes=["Egress", "Forward"]))
    assert (let_in(made), let_out(made)) == (set(PEERS), set())


def test_only_nodes_with_pods_in_the_namespace_report_a_policy() -> None:
    made = cluster(ingress(block("x"), namespace="bank"))
    assert made.problems() == {}
    made.after(pod("far", FAR, namespace="bank"))
    assert set(made.problems()) == {"bank/policy"}
    made.delete(pod("far", FAR, namespace="bank"))
    made.plan()
    assert made.problems() == {}


def change_of(made: Cluster, *items: Object) -> GroupChange:
    """The change of the one group that has changed."""
    change = made.after(*items)
    assert (change.pods, change.gone) == ({}, ())
    [found] = change.groups.values()
    return found


def test_a_new_pod_is_one_element_and_an_unrelated_one_no_change() -> None:
    made = cluster(ingress(pods_with(app="api"), ports=[{"port": 80}]))
    element = PortElement("10.0.0.7/32", Protocol.TCP, 80, 80)
    assert change_of(made, pod("new", "10.0.0.7", on="node3", app="api")) == GroupChange(ports_added=(element,))
    assert change_of(made, pod("new", "10.0.0.7", on="node3", app="x")) == GroupChange(ports_removed=(element,))
    made.apply(pod("new", "10.0.0.8", on="node3", app="x"))
    assert made.plan() is None
    made.after(ingress({"podSelector": {}}))
    assert change_of(made, pod("new", "10.0.0.9", on="node3")) == GroupChange(
        networks_added=("10.0.0.9/32",), networks_removed=("10.0.0.8/32",)
    )


def test_a_policy_that_changes_changes_its_group_in_place() -> None:
    made = cluster(ingress(block("192.0.2.0/24")))
    assert change_of(made, ingress(block("192.0.2.0/24"), block("198.51.100.0/24"))) == GroupChange(
        networks_added=("198.51.100.0/24",)
    )
    made.apply(ingress(block("192.0.2.0/24"), block("198.51.100.0/24")))
    assert made.plan() is None, "nothing else than before"


def test_the_state_of_a_pod_that_no_policy_reads_is_no_change() -> None:
    made = cluster(ingress({"podSelector": {}}))
    made.apply(pod("api", API, on="node2", app="api", ports=[port("http", 8080)], phase="Pending"), SHOP)
    assert not made.catalog.has_marked


def test_pods_that_the_same_policies_isolate_share_a_group() -> None:
    made = cluster(ingress(pods_with(app="api")))
    before = dict(made.catalog.groups())
    change = made.after(pod("more", OLD, app="web"))
    assert change.groups == {}
    assert change.pods == {OLD: made.catalog.pods[WEB]}
    assert set(before) == {GroupKey(Direction.INGRESS, (ObjectKey("shop", "policy"),))}


def test_a_pod_moves_to_a_new_group_with_a_new_policy_and_the_old_group_goes() -> None:
    made = cluster(ingress(pods_with(app="api"), name="a"))
    change = made.after(policy("b"))
    [(key, new)] = change.groups.items()
    assert (new.is_new, new.networks_added) == (True, ("10.0.0.2/32",))
    assert change.pods[WEB] == PodGroups(key, None)
    assert [gone.policies for gone in change.gone] == [(ObjectKey("shop", "a"),)]


def test_networks_that_others_cover_are_no_elements() -> None:
    made = cluster(ingress(block("10.0.0.0/8"), {"podSelector": {}}, block("10.1.0.0/16")))
    [(_, elements)] = made.catalog.groups()
    assert [network for network, _ in elements] == ["10.0.0.0/8"]
    made.after(ingress(block("10.0.0.2/31"), {"podSelector": {}}))
    [(_, elements)] = made.catalog.groups()
    assert {network for network, _ in elements} == {f"{WEB}/32", "10.0.0.2/31"}
    rules = [{"from": [block("10.0.0.0/8")], "ports": [{"port": 80, "endPort": 90}]}]
    made.after(policy(ingress=[*rules, {"from": [pods_with(app="api")], "ports": [{"port": 85, "endPort": 95}]}]))
    [(_, elements)] = made.catalog.groups()
    assert {(network, one.first, one.last) for network, one in elements} == {
        ("10.0.0.0/8", 80, 90),
        (f"{API}/32", 91, 95),
    }


def test_ranges_of_ports_that_overlap_or_touch_are_one_element() -> None:
    ports = [{"port": 80}, {"port": 80, "endPort": 90}, {"port": 91}, {"port": 85, "endPort": 88}, {"port": 93}]
    made = cluster(ingress(block("192.0.2.0/24"), ports=[*ports, {"port": 92, "protocol": "UDP"}]))
    [(_, elements)] = made.catalog.groups()
    assert [(one.protocol, one.first, one.last) for _, one in elements] == [
        *((Protocol.TCP, 80, 91), (Protocol.TCP, 93, 93), (Protocol.UDP, 92, 92)),
    ]


def test_an_address_and_a_block_of_it_are_one_element_however_they_are_written() -> None:
    for address, cidr in (
        ("::ffff:10.0.0.9", "::ffff:a00:9/128"),
        ("fd00::9", "FD00:0:0::9/128"),
        ("::1:9", "0::1:9/128"),
    ):
        made = cluster(pod("odd", address, on="node2"), ingress({"podSelector": {}}, block(cidr)))
        [(_, elements)] = made.catalog.groups()
        assert len([network for network, _ in elements if ":" in network]) == 1


def test_a_rule_with_too_many_elements_allows_nothing_and_costs_no_other_rule_or_namespace() -> None:
    many = [pod(f"p{number}", f"10.9.0.{number}", on="node2", app="many") for number in range(5)]
    rules = [{"from": [pods_with(app="many")]}, {"from": [pods_with(app="api")]}]
    near = pod("near", "10.0.0.9", namespace="bank")
    everywhere = ingress({"namespaceSelector": {}}, namespace="bank")
    made = cluster(policy(ingress=rules), near, everywhere, *many, limits=Limits(elements=10))
    assert passes(made, "10.9.0.1", WEB)
    assert passes(made, "10.9.0.1", "10.0.0.9")
    assert made.messages() == []
    more = [pod(f"q{number}", f"10.9.1.{number}", on="node2", app="many") for number in range(6)]
    made.after(*more)
    assert not passes(made, "10.9.0.1", WEB)
    assert passes(made, API, WEB)
    assert made.problems()["shop/policy"][0].message == (
        "ingress[0] allows nothing: it exceeds what a node plans. Allowed: 10 pods and networks times ports for a pod, "
        "262144 for all pods of the namespace, and 2000 different selectors."
    )
    made.delete(*more)
    made.plan()
    assert passes(made, "10.9.0.1", WEB)
    assert made.messages() == []


def test_each_port_of_a_peer_counts() -> None:
    ports: list[Object] = [{"port": 80}, {"port": "http"}, {"port": 90}]
    for limit, allowed in ((3, {API}), (2, set())):
        made = cluster(ingress(pods_with(app="api"), ports=ports), limits=Limits(elements=limit))
        assert let_in(made) == allowed


def test_a_namespace_with_too_many_selectors_costs_no_other_namespace() -> None:
    rules = [{"from": [pods_with(app="api", tier=tier)]} for tier in ("x", "y")] + [{"from": [pods_with(app="api")]}]
    near, bank = pod("near", "10.0.0.9", namespace="bank"), ingress(pods_with(app="api"), namespace="bank")
    made = cluster(policy(ingress=rules), near, bank, limits=Limits(selectors=2))
    assert not passes(made, API, WEB)
    assert passes(made, FAR, "10.0.0.9")
    assert [problem.subject for problem in made.problems()["shop/policy"]] == ["ingress[2]"]
    made.after(policy(ingress=rules[1:]))
    assert passes(made, API, WEB)
    assert made.messages() == []


def test_nothing_is_left_of_a_cluster_that_is_gone() -> None:
    made = cluster(ingress({"podSelector": {}}), egress({"namespaceSelector": {}}, namespace="bank"))
    items = list(made.objects.values())
    for item in items:
        made.delete(item)
        made.plan()
    known = vars(made.catalog._peers) | vars(made.catalog)
    kept = (
        "at",
        "local",
        "_touched",
        "_namespaces",
        "_pods",
        "_pods_at",
        "_identities",
        "_selections",
        "_policies",
        "_groups",
        "pods",
    )
    assert {name: known[name] for name in kept if known[name]} == {}


def test_a_group_forgets_a_kind_of_pods_that_is_gone() -> None:
    made = cluster(ingress(pods_with(app="client")))
    for version in ("1", "2", "1"):
        made.after(pod("new", "10.0.0.7", on="node3", app="client", version=version))
    [group] = made.catalog._groups.values()
    [identity] = group._elements
    assert identity is made.catalog._peers.at["10.0.0.7/32"]


def test_a_selector_that_no_policy_has_any_more_is_forgotten() -> None:
    made = cluster(ingress(pods_with(app="api")))
    made.after(ingress(pods_with(app="other")))
    [(selector, selection)] = made.catalog._peers._selections["shop"].items()
    assert selection.selector is selector
    assert all(identity.selections <= {selection} for identity in made.catalog._peers.at.values())
    made.after(ingress(block("10.0.0.0/8")))
    assert made.catalog._peers._selections == {}


def test_a_namespace_with_too_many_elements_costs_no_other_namespace() -> None:
    mine = [pod(f"p{number}", f"10.9.0.{number}", app=f"a{number}") for number in range(5)]
    rules = [
        ingress(block("10.0.0.0/8"), block("192.0.2.0/24"), name=f"n{it}", selector={"matchLabels": {"app": f"a{it}"}})
        for it in range(5)
    ]
    near, bank = pod("near", "10.0.0.9", namespace="bank"), ingress(block("10.0.0.0/8"), namespace="bank")
    made = cluster(*mine, *rules, near, bank, limits=Limits(of_namespace=9))
    assert [passes(made, OUTSIDE, f"10.9.0.{number}") for number in range(5)] == [True, True, True, False, False]
    assert passes(made, API, "10.0.0.9")
    assert set(made.problems()) == {"shop/n3", "shop/n4"}


def test_a_block_with_more_pieces_than_a_group_may_have_allows_nothing() -> None:
    holes = [f"10.{number}.0.1/32" for number in range(10)]
    made = cluster(ingress(block("10.0.0.0/8", *holes), block("192.0.2.0/24")), limits=Limits(elements=50))
    assert let_in(made) == {OUTSIDE}
    [message] = made.messages()
    assert message == (
        "ingress[0].from[0].ipBlock without its exceptions is more than 50 networks, so this peer allows nothing. "
        "Allowed: fewer exceptions."
    )


def test_nothing_is_planned_before_all_four_kinds_are_listed() -> None:
    catalog = PolicyCatalog(NODE)
    for kind in (Pod, Namespace, NetworkPolicy, ClusterNetworkPolicy):
        assert catalog.plan_marked() is None
        catalog.take([Applied(msgspec.convert(WEB_POD, Pod)), Applied(msgspec.convert(ingress(), NetworkPolicy))])
        catalog.take([Listed(kind)])
    change = catalog.plan_marked()
    assert change is not None
    assert set(change.pods) == {WEB}


def test_where_all_pods_are_planned_an_address_is_known_until_its_pod_has_ended() -> None:
    api, deny = pod("api", API, app="api"), policy("deny", selector={"matchLabels": {"app": "api"}})
    made = Cluster(SHOP, BANK, pod("web", WEB, app="web"), api, FAR_POD, all_pods=True)
    assert made.catalog.pods == {WEB: NO_GROUPS, API: NO_GROUPS}
    change = made.after(pod("web", WEB, "fd00::1", app="web"), deny)
    assert change.pods == {"fd00::1": NO_GROUPS, API: made.catalog.pods[API]}
    assert made.catalog.pods[API].ingress is not None
    made.delete(deny)
    assert made.plan() is not None
    assert made.after(pod("web", WEB, "fd00::1", phase="Succeeded")).pods == {WEB: None, "fd00::1": None}
    assert made.catalog.pods == {API: NO_GROUPS}


def ready(item: Object, at: str | None = "2026-11-28T10:00:00Z", status: str = "True") -> Object:
    """The pod with the condition that its network is ready since this time, and with another one."""
    condition = {"type": "PodReadyToStartContainers", "status": status, "lastTransitionTime": at, "lastProbeTime": None}
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-28T09:00:00Z"}, condition]
    return {**item, "status": {**item["status"], "conditions": conditions}}


def test_a_change_says_since_when_the_network_of_new_isolated_pods_is_ready() -> None:
    key, began = ObjectKey("shop", "web"), 1795860000.0
    made = Cluster(SHOP, policy(selector={"matchLabels": {"app": "web"}}))
    assert made.after(ready(pod("web", app="web"))).ready == {}
    free, far = pod("free", "10.0.0.8", app="free"), pod("far", FAR, app="web", on="node2")
    assert made.after(ready(pod("web", WEB, app="web")), ready(free), ready(far)).ready == {key: began}
    assert made.after(ready(pod("web", WEB, "fd00::1", app="web"), at="2026-11-28T11:00:00Z")).ready == {}


@pytest.mark.parametrize(
    "item",
    [
        pod("web", WEB),
        ready(pod("web", WEB), status="False"),
        ready(pod("web", WEB), at=None),
        ready(pod("web", WEB), at="yesterday"),
        ready(pod("web", WEB), at="0001-01-01T00:00:00"),
        {**pod("web", WEB), "status": {"podIP": WEB, "conditions": None}},
        {**pod("web", WEB), "status": {"podIP": WEB, "conditions": [7]}},
        {**pod("web", WEB), "status": {"podIP": WEB, "conditions": "none"}},
    ],
)
def test_a_pod_whose_condition_says_nothing_is_planned_like_others(item: Object) -> None:
    change = Cluster(SHOP, policy()).after(item)
    assert (set(change.pods), change.ready) == ({WEB}, {})
