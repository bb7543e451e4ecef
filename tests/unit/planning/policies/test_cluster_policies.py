"""What ClusterNetworkPolicies mean, alone and around NetworkPolicies: one rule of the API, or one decision where the
API is silent, a test.
"""

from typing import Any

import pytest

from kroute.model.plan import Protocol
from kroute.model.policy_plan import ALLOWED, Action, GroupChange, GroupKey, Part, PortElement, Tier
from tests.unit.planning.policies.cluster import (
    Cluster,
    Object,
    cluster_policy,
    every,
    ingress,
    namespace,
    pod,
    policy,
    port,
)
from tests.unit.planning.policies.test_policies import API, FAR, OUTSIDE, PEERS, WEB, cluster, let_in, let_out, passes

ANYBODY: Object = {"namespaces": {}}
BANKS: Object = {"namespaces": {"matchLabels": {"team": "b"}}}
APIS, WEBS = every(app="api"), every(app="web")
EVERYWHERE: Object = {"networks": ["0.0.0.0/0", "::/0"]}


def tcp(first: int, last: int | None = None) -> Object:
    numbers: Object = {"number": first} if last is None else {"range": {"start": first, "end": last}}
    return {"tcp": {"destinationPort": numbers}}


def rule(action: str, *peers: Object, ports: tuple[Object, ...] = (), **fields: Any) -> Object:
    """A rule for either direction."""
    return {"action": action, "from": list(peers), "to": list(peers), "protocols": list(ports), **fields}


def entering(*rules: Object, **fields: Any) -> Object:
    """A policy about what enters the pods `web`."""
    return cluster_policy(subject=WEBS, ingress=list(rules), **fields)


def leaving(*rules: Object, **fields: Any) -> Object:
    """A policy about what leaves the pods `web`."""
    return cluster_policy(subject=WEBS, egress=list(rules), **fields)


def networks(*texts: str) -> Object:
    return {"networks": list(texts)}


NOBODY, ALL, NONE_OUT = policy(), ingress({"namespaceSelector": {}}), policy("none", policyTypes=["Egress"])
"""NetworkPolicies: one lets nobody in, one lets all pods in, one lets nothing out."""


@pytest.mark.parametrize(
    ("admin", "isolating", "baseline", "is_allowed"),
    [
        ([], [], ["Deny"], False),
        ([], [], ["Accept", "Deny"], True),
        ([], [], ["Pass", "Deny"], True),
        ([], [NOBODY], ["Accept"], False),
        ([], [ALL], ["Deny"], True),
        (["Deny"], [], [], False),
        (["Deny"], [ALL], ["Accept"], False),
        (["Deny", "Accept"], [], [], False),
        (["Accept"], [NOBODY], ["Deny"], True),
        (["Accept", "Deny"], [NOBODY], [], True),
        (["Pass"], [], [], True),
        (["Pass", "Deny"], [], [], True),
        (["Pass"], [], ["Deny"], False),
        (["Pass", "Accept"], [NOBODY], ["Accept"], False),
        (["Pass", "Deny"], [ALL], ["Deny"], True),
    ],
)
def test_tiers_are_asked_in_order_until_one_decides(
    admin: list[str], isolating: list[Object], baseline: list[str], *, is_allowed: bool
) -> None:
    tiers = [("Admin", admin), ("Baseline", baseline)]
    of_cluster = [entering(*[rule(it, ANYBODY) for it in actions], name=tier, tier=tier) for tier, actions in tiers]
    assert passes(cluster(*of_cluster, *isolating), API, WEB) == is_allowed


def test_a_policy_refuses_nothing_that_its_rules_do_not_name() -> None:
    made = cluster(entering(rule("Deny", BANKS)))
    assert (let_in(made), let_out(made)) == ({API, OUTSIDE}, set(PEERS))
    made.after(leaving(rule("Deny", BANKS)))
    assert (let_in(made), let_out(made)) == (set(PEERS), {API, OUTSIDE})
    made.after(cluster_policy(subject=WEBS))
    assert made.catalog.pods == {}


def test_policies_of_a_tier_come_in_the_order_of_priorities_and_then_of_names() -> None:
    accept = entering(rule("Accept", APIS), name="a", priority=2)
    deny = entering(rule("Deny", APIS), name="b", priority=1)
    made = cluster(accept, deny)
    assert let_in(made) == {OUTSIDE}
    made.after({**deny, "spec": {**deny["spec"], "priority": 2}})
    assert let_in(made) == set(PEERS)
    made.after({**accept, "spec": {**accept["spec"], "priority": 1000}})
    assert let_in(made) == {OUTSIDE}


def test_a_subject_names_pods_by_the_labels_of_their_namespaces_which_may_change() -> None:
    made = cluster(cluster_policy(subject=BANKS, ingress=[rule("Deny", ANYBODY)]))
    assert made.catalog.pods == {}
    change = made.after(namespace("shop", team="b"))
    assert set(change.pods) == {WEB}
    assert let_in(made) == {OUTSIDE}
    made.after(namespace("shop", team="a"))
    assert made.catalog.pods == {}


def test_pods_on_their_nodes_network_are_neither_subject_nor_peer() -> None:
    made = cluster(pod("agent", "10.0.0.7", host=True, app="web"), cluster_policy(ingress=[rule("Deny", ANYBODY)]))
    assert set(made.catalog.pods) == {WEB}
    assert passes(made, "10.0.0.7", WEB)


def test_some_ports_are_denied_and_all_else_is_accepted_also_what_has_no_ports() -> None:
    made = cluster(leaving(rule("Deny", APIS, ports=(tcp(25),)), rule("Accept", APIS)), NONE_OUT)
    assert [let_out(made, *packet) for packet in ((25, "TCP"), (26, "TCP"), (25, "UDP"), (0, "ICMP"))] == [
        *(set(), {API, FAR}, {API, FAR}, {API, FAR}),
    ]


def test_the_first_rule_counts_for_each_port() -> None:
    made = cluster(
        entering(
            rule("Deny", APIS, ports=(tcp(80, 82),)),
            rule("Accept", APIS, ports=(tcp(70, 90),)),
            rule("Deny", APIS, ports=(tcp(1, 65535),)),
        )
    )
    assert [API in let_in(made, number) for number in (69, 70, 79, 80, 82, 83, 90, 91)] == [0, 1, 1, 0, 0, 1, 1, 0]
    assert let_in(made, 80, "UDP") == set(PEERS)


@pytest.mark.parametrize(("pods", "others"), [("Accept", "Deny"), ("Deny", "Accept")])
def test_a_pod_within_a_network_has_its_own_verdict_and_costs_one_element(pods: str, others: str) -> None:
    made = cluster(leaving(rule(pods, BANKS), rule(others, EVERYWHERE)), NONE_OUT)
    assert (FAR in let_out(made)) == (pods == "Accept")
    assert let_out(made) - {FAR} == ({API, OUTSIDE} if others == "Accept" else set())
    change = made.after(pod("more", "10.0.1.2", on="node2", namespace="bank"))
    part = Part(of_pods=True, action=Action(pods))
    assert {key.parts[key.part]: it for key, it in change.groups.items()} == {
        part: GroupChange(networks_added=("10.0.1.2/32",))
    }


def test_a_rule_about_a_network_that_comes_before_one_about_a_pod_counts_for_the_pod() -> None:
    made = cluster(
        leaving(
            rule("Deny", networks("10.0.0.0/8"), ports=(tcp(80),)),
            rule("Accept", APIS),
            rule("Deny", EVERYWHERE),
        )
    )
    assert let_out(made, 80) == set()
    assert let_out(made, 81) == {API, FAR}


def test_networks_within_each_other_have_their_own_verdicts() -> None:
    made = cluster(
        leaving(
            rule("Accept", networks("10.0.0.0/32")),
            rule("Deny", networks("10.0.0.0/24")),
            rule("Accept", networks("10.0.0.0/8", "10.9.9.0/24")),
            rule("Deny", EVERYWHERE),
        )
    )
    asked = ["10.0.0.0", API, "10.0.0.255", FAR, "10.9.9.9", "10.255.0.0", "11.0.0.0", OUTSIDE]
    assert [passes(made, WEB, address) for address in asked] == [True, False, False, True, True, True, False, False]
    key = made.catalog.pods[WEB].admin_egress
    assert key is not None
    assert key.parts[0] == Part(of_pods=False, action=Action.ACCEPT)
    assert "10.0.0.0/32" in made.node.networks[key]
    assert "10.9.9.0/24" not in made.node.networks[key], "the network around it says the same"


def test_a_name_is_a_port_of_any_protocol_for_ingress_of_the_subject_and_for_egress_of_the_peer() -> None:
    by_name = ({"destinationNamedPort": "http"},)
    made = cluster(entering(rule("Deny", ANYBODY, ports=by_name)))
    assert (let_in(made, 80), let_in(made, 81)) == ({OUTSIDE}, set(PEERS))
    made.after(entering(rule("Deny", ANYBODY, ports=({"destinationNamedPort": "dns"},))))
    assert (let_in(made, 53, "UDP"), let_in(made, 53)) == ({OUTSIDE}, set(PEERS))
    made.after(leaving(rule("Deny", ANYBODY, ports=by_name)))
    assert [let_out(made, number) for number in (80, 8080, 9090)] == [set(PEERS), {FAR, OUTSIDE}, {API, OUTSIDE}]


def test_a_call_that_comes_back_to_the_pod_is_judged_by_policies_of_the_cluster_alone() -> None:
    none = policy(policyTypes=["Ingress", "Egress"])
    assert passes(cluster(none), WEB, WEB)
    assert passes(cluster(none, leaving(rule("Deny", BANKS))), WEB, WEB)
    assert not passes(cluster(none, leaving(rule("Deny", WEBS))), WEB, WEB)
    assert passes(cluster(none, leaving(rule("Pass", WEBS), rule("Deny", WEBS))), WEB, WEB)
    assert not passes(cluster(entering(rule("Deny", WEBS), tier="Baseline")), WEB, WEB)


WRONG = [
    ({"from": [{}], "to": [{}]}, "[0] names nothing that kroute knows, or too much"),
    ({"from": [{"nodes": {}}], "to": [{"nodes": {}}]}, "[0] names nothing that kroute knows, or too much"),
    ({"to": [{"domainNames": ["kroute.io"]}]}, "[0] names nothing that kroute knows, or too much"),
    ({"from": [networks("10.0.0.0/8")]}, "[0] names nothing that kroute knows, or too much"),
    ({"to": [ANYBODY | APIS]}, "[0] names nothing that kroute knows, or too much"),
    ({"from": [], "to": []}, " has no peer"),
    ({"to": [ANYBODY, networks("10.0.0.0/33")]}, "[1].networks[0].cidr '10.0.0.0/33' is not a network"),
    ({"from": [{"pods": {"namespaceSelector": {}}}]}, "[0].pods has no podSelector"),
    (
        {"from": [{"namespaces": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}]},
        "has an unknown operator, 'Near'",
    ),
    ({"protocols": [{}]}, "protocols[0] names no protocol, or several"),
    ({"protocols": [tcp(80) | {"udp": {}}]}, "protocols[0] names no protocol, or several"),
    ({"protocols": [{"tcp": {}}]}, "protocols[0].tcp.destinationPort is no port"),
    ({"protocols": [tcp(80), tcp(90, 80)]}, "protocols[1].tcp.destinationPort 90 to 80 is no port or no range"),
    ({"protocols": [tcp(65536)]}, "protocols[0].tcp.destinationPort 65536 is no port or no range"),
    (
        {"to": [networks("10.0.0.0/8")], "protocols": [{"destinationNamedPort": "http"}]},
        "has networks and the name of a port, which none has",
    ),
]


@pytest.mark.parametrize(("fields", "said"), WRONG)
@pytest.mark.parametrize("action", ["Accept", "Deny", "Pass"])
def test_a_rule_that_cannot_be_understood_accepts_nothing_or_denies_everything(
    action: str, fields: Object, said: str
) -> None:
    wrong, is_accepting = {**rule(action, ANYBODY), **fields}, action == "Accept"
    if "to" in fields or "from" not in fields:
        made, let = cluster(leaving(wrong), *([NONE_OUT] if is_accepting else [])), let_out
    else:
        made, let = cluster(entering(wrong), *([NOBODY] if is_accepting else [])), let_in
    [message] = made.messages()
    assert f"{said}, so the rule {'accepts nothing' if is_accepting else 'denies everything'}. " in message
    assert let(made) == let(made, 0, "ICMP") == set()


def test_an_unknown_action_denies_everything() -> None:
    made = cluster(entering(rule("Log", APIS)))
    assert let_in(made) == let_in(made, 0, "ICMP") == set()
    said = "ingress[0].action 'Log' is not known, so the rule denies everything. Allowed: Accept, Deny and Pass."
    assert made.messages() == [said]


def test_of_an_unknown_tier_the_rules_that_deny_hold() -> None:
    made = cluster(entering(rule("Accept", APIS), rule("Pass", APIS), rule("Deny", BANKS), tier="Platform"), ALL)
    assert let_in(made) == {API}
    said = "tier 'Platform' is not known, so only its Deny rules hold, in the tier Admin. Allowed: Admin and Baseline."
    assert made.messages() == [said]


@pytest.mark.parametrize("subject", [{"nodes": {}}, networks("10.0.0.0/8"), {"pods": {"namespaceSelector": {}}}])
def test_a_subject_that_cannot_be_understood_selects_no_pod(subject: Object) -> None:
    made = cluster(cluster_policy(subject=subject, ingress=[rule("Deny", ANYBODY)]))
    assert made.catalog.pods == {}
    [message] = made.messages()
    assert message.startswith("subject")
    assert ", so the policy selects no pod. Allowed: " in message


def test_a_node_without_pods_says_nothing_about_policies_of_the_cluster() -> None:
    made = Cluster(cluster_policy(ingress=[rule("Log", ANYBODY)]))
    assert made.problems() == {}
    made.after(pod("web", WEB))
    assert set(made.problems()) == {"cluster"}


def test_a_group_of_networkpolicies_is_as_it_is_without_policies_of_the_cluster() -> None:
    alone, made = cluster(ALL), cluster(ALL, cluster_policy(ingress=[rule("Deny", BANKS)]))
    key = alone.catalog.pods[WEB].ingress
    assert key is not None
    assert (key.tier, key.parts, key.part, key.identity) == (Tier.NETWORK_POLICY, ALLOWED, 0, key[:3])
    assert made.catalog.pods[WEB].ingress == key
    assert made.node.networks[key] == alone.node.networks[key]


def test_pods_with_other_networkpolicies_share_the_group_of_the_cluster() -> None:
    other = pod("near", "10.0.0.9", namespace="bank", ports=[port("http", 80)])
    made = cluster(other, ALL, cluster_policy(ingress=[rule("Deny", BANKS)]))
    assert made.catalog.pods[WEB].admin_ingress == made.catalog.pods["10.0.0.9"].admin_ingress is not None
    assert [(key.tier, addresses) for key, addresses in made.catalog.isolated()] == [
        (Tier.ADMIN, [WEB, "10.0.0.9"]),
        (Tier.NETWORK_POLICY, [WEB]),
    ]


def test_a_group_has_a_part_for_each_action_of_pods_and_for_each_of_networks() -> None:
    made = cluster(leaving(rule("Deny", APIS), rule("Pass", networks("10.0.0.0/8")), rule("Accept", APIS)))
    key = made.catalog.pods[WEB].admin_egress
    assert isinstance(key, GroupKey)
    assert key.parts == (
        Part(True, Action.ACCEPT),
        Part(True, Action.DENY),
        Part(True, Action.PASS),
        Part(False, Action.PASS),
    )
    assert made.change is not None
    assert [part.part for part in made.change.groups] == [0, 1, 2, 3]
    gone = made.after(cluster_policy(subject=WEBS)).gone
    assert set(gone) == set(key.of_parts())


def test_a_change_of_a_rule_that_keeps_the_actions_changes_elements_only() -> None:
    made = cluster(leaving(rule("Deny", APIS, ports=(tcp(80),))))
    change = made.after(leaving(rule("Deny", APIS, ports=(tcp(81),))))
    assert change.pods == {}
    [of_group] = change.groups.values()
    assert set(of_group.ports_added) == {PortElement(f"{it}/32", Protocol.TCP, 81, 81) for it in (API, FAR)}
    assert set(of_group.ports_removed) == {PortElement(f"{it}/32", Protocol.TCP, 80, 80) for it in (API, FAR)}


def test_a_judgement_names_the_rule_that_decides_with_its_own_name() -> None:
    made = cluster(entering(rule("Deny", APIS), rule("Accept", BANKS, name="banks are fine")), ALL)
    [_, ruling] = made.judged(API, WEB).rulings
    assert (ruling.refused_by, ruling.allowed_by, ruling.isolated_by) == (["cluster ingress[0]"], [], [])
    made.after(entering(rule("Accept", BANKS, name="banks are fine")))
    [_, ruling] = made.judged(FAR, WEB).rulings
    assert (ruling.allowed_by, ruling.isolated_by) == (["cluster ingress[0] 'banks are fine'"], [])
    [_, ruling] = made.judged(API, WEB).rulings
    assert (ruling.allowed_by, ruling.isolated_by) == (["shop/policy ingress[0]"], ["shop/policy"])
