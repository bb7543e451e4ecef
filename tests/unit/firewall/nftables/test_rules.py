"""The rules in the order in which packets meet them: which packets are masqueraded, and which are refused.

All rules of each family are in `golden/`. After an intended change, `KROUTE_WRITE_GOLDEN=1 pytest
tests/unit/firewall/nftables/test_rules.py` writes them again, and the diff is for review. tests/kernel/ holds that nft
prints the rules in these words.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kroute.firewall import reasons
from kroute.firewall.nftables.names import DEFINITIONS, set_name
from kroute.firewall.nftables.rules import ChainRules, NftablesRules, family_rules, trace_packet
from kroute.firewall.packet_trace import Ending, Hook, Packet, TraceResult
from kroute.firewall.sets import SHAPES, Sets
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet
from kroute.settings import Exemption, Settings
from tests.kernel import documented_ruleset

GOLDEN = Path(__file__).parents[2] / "golden"
NODE = NodeFacts("node3", "192.168.123.249", "fd00:123::249", pod_cidrs=("172.20.135.0/24",))
LONGEST_COMMENT = 127
LONGEST_NAME = 31
PORT = "ip daddr . meta l4proto . th dport"
MARKED = "meta mark set meta mark | 0x00004000"
TO_CLUSTER_IP, EXTERNAL = f"{PORT} @cluster-ip {MARKED}", f"{PORT} @external {MARKED}"
NOT_IN_POD_NETWORK = "ip saddr != @pod-network"

BRIDGE = {"detect_local_mode": "BridgeInterface", "pod_bridge_interface": "cbr0"}
PREFIX = {"detect_local_mode": "InterfaceNamePrefix", "pod_interface_name_prefix": "veth"}
NODE_CIDR = {"detect_local_mode": "NodeCIDR"}
CIDR = {"cluster_cidrs": ("172.20.0.0/16",)}
MODES = [CIDR, NODE_CIDR, BRIDGE, PREFIX]


def rules(family: Family = Family.IPV4, node: NodeFacts = NODE, **settings: object) -> NftablesRules:
    return family_rules(Settings("node3", **settings), family, node)


def chain(name: str, found: NftablesRules) -> list[str]:
    """Return a chain's rules without their comments."""
    [one] = [it for it in found.chains if it.name == name]
    return [it.text.removesuffix(f' comment "{it.comment}"') for it in one.rules]


def render(found: NftablesRules) -> str:
    return "".join(line + "\n" for it in found.chains for line in lines(it))


def lines(one: ChainRules) -> Iterator[str]:
    yield f"chain {one.name} {{"
    if one.hook:
        yield f"\ttype {one.chain.type} hook {one.chain.hook} priority {one.chain.priority}; policy accept;"
    yield from (f"\t{rule.text}" for rule in one.rules)
    yield "}"


@pytest.mark.parametrize("family", Family, ids=str)
def test_all_rules_of_a_family(family: Family) -> None:
    found = render(rules(family, cluster_cidrs=("172.20.0.0/16", "fd00:172:20::/48")))
    golden = GOLDEN / f"{family.lower()}.nft"
    if "KROUTE_WRITE_GOLDEN" in os.environ:
        golden.write_text(found)
    assert found == golden.read_text()


@pytest.mark.parametrize("family", Family, ids=str)
def test_every_chain_is_before_those_that_jump_to_it_and_every_rule_says_why_it_is_there(family: Family) -> None:
    seen: set[str] = set()
    for one in rules(family, snat_source="node-ip").chains:
        for rule in one.rules:
            assert 0 < len(rule.comment) <= LONGEST_COMMENT
            if rule.action and rule.action.chain:
                assert rule.action.chain in seen
        seen.add(one.name)


def test_the_design_shows_these_rules() -> None:
    """Which a test in the lab holds against what nft prints: this one is there to be red at once."""
    page = documented_ruleset.PAGE.read_text()
    found = family_rules(documented_ruleset.SETTINGS, Family.IPV4, documented_ruleset.NODE)
    for one in found.chains:
        block = page.partition(f"\tchain {one.name} {{\n")[2].partition("\t}\n")[0]
        shown = [line.strip() for line in block.splitlines() if not line.strip().startswith(("#", "type "))]
        assert shown == [rule.text for rule in one.rules]


def test_every_address_set_has_a_name_that_iptables_nft_would_take_too() -> None:
    assert DEFINITIONS.keys() == set(AddressSet)
    assert len({it.name for it in DEFINITIONS.values()}) == len(AddressSet)
    assert all(len(it.name) <= LONGEST_NAME and it.name == set_name(which) for which, it in DEFINITIONS.items())
    assert {which: it.parts for which, it in DEFINITIONS.items()} == SHAPES


@pytest.mark.parametrize(
    ("settings", "marked"),
    [
        ({}, []),
        (CIDR, [f"{NOT_IN_POD_NETWORK} {TO_CLUSTER_IP}"]),
        (NODE_CIDR, [f"{NOT_IN_POD_NETWORK} {TO_CLUSTER_IP}"]),
        (BRIDGE, [f'iifname != "cbr0" {TO_CLUSTER_IP}']),
        (PREFIX, [f'iifname != "veth*" {TO_CLUSTER_IP}']),
        ({"masquerade_all": True, **BRIDGE}, [TO_CLUSTER_IP]),
    ],
    ids=["networks unknown", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", "masquerade-all"],
)
def test_what_is_not_from_local_pods_is_masqueraded_on_a_cluster_ip(
    settings: dict[str, object], marked: list[str]
) -> None:
    assert chain("mark-masquerade", rules(**settings))[1:] == [*marked, EXTERNAL]


@pytest.mark.parametrize("settings", [CIDR, NODE_CIDR], ids=["ClusterCIDR", "NodeCIDR"])
def test_a_family_without_pod_networks_is_not_masqueraded_on_a_cluster_ip(settings: dict[str, object]) -> None:
    assert chain("mark-masquerade", rules(Family.IPV6, **settings))[1:] == [EXTERNAL.replace("ip daddr", "ip6 daddr")]


def test_exemptions_come_first_each_in_its_family() -> None:
    exemptions = (Exemption("192.168.130.0/24", "192.168.0.7/32"), Exemption("fd00:130::/64", "fd00::/16"))
    settings = {"masquerade_all": True, "masquerade_exemptions": exemptions}
    first = "ip saddr 192.168.130.0/24 ip daddr 192.168.0.7 return"
    assert chain("mark-masquerade", rules(**settings))[1:] == [first, TO_CLUSTER_IP, EXTERNAL]
    [six, *_] = chain("mark-masquerade", rules(Family.IPV6, **settings))[1:]
    assert six == "ip6 saddr fd00:130::/64 ip6 daddr fd00::/16 return"


def test_the_mark_is_the_one_of_the_settings() -> None:
    found = rules(masquerade_mark=0x10)
    assert chain("mark-masquerade", found)[-1].endswith("meta mark set meta mark | 0x00000010")
    assert chain("nat-postrouting", found)[-1] == (
        "meta mark & 0x00000010 == 0x00000010 meta mark set meta mark & 0xffffffef masquerade fully-random"
    )


PODS = {"pod_network": True, "cluster_cidrs": ("10.244.0.0/16", "fd00:244::/48", "10.9.0.0/16")}


def test_with_a_pod_network_what_pods_send_outside_is_masqueraded_and_nothing_else() -> None:
    exempt = (Exemption("10.244.0.0/16", "192.168.0.0/16"),)
    found = rules(**PODS, masquerade_exemptions=exempt)
    from_pods = ["ip saddr 10.244.0.0/16 jump pod-egress", "ip saddr 10.9.0.0/16 jump pod-egress"]
    assert chain("nat-postrouting", found)[-2:] == from_pods
    assert chain("pod-egress", found) == [
        "ip daddr 10.244.0.0/16 return",
        "ip daddr 10.9.0.0/16 return",
        'oifname "kroute-*" return',
        "ip saddr 10.244.0.0/16 ip daddr 192.168.0.0/16 return",
        "masquerade fully-random",
    ]
    marked = "meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff"
    assert chain("nat-postrouting", found)[-4:-2] == [
        f'oifname "kroute-*" {marked} snat to 192.168.123.249 fully-random',
        f"{marked} masquerade fully-random",
    ]
    assert chain("nat-postrouting", rules(Family.IPV6, **PODS))[-1] == "ip6 saddr fd00:244::/48 jump pod-egress"
    unchanged = rules(**{**PODS, "pod_network": False})
    assert render(unchanged) == render(rules(cluster_cidrs=PODS["cluster_cidrs"]))
    assert chain("nat-postrouting", rules(**{**PODS, "pod_egress": "keep"})) == chain("nat-postrouting", found)[:-2]
    for destination, masquerade in (("10.9.1.7", False), ("192.168.5.5", False), ("1.1.1.1", True)):
        result = found.trace(Hook.NAT_POSTROUTING, Packet(6, "10.244.1.7", destination, 80, "eth0"), {})
        assert (result.why == reasons.POD_EGRESS) is masquerade


def test_what_pods_send_to_nodes_through_tunnels_loses_the_mark() -> None:
    found = rules(**PODS, masquerade_mark=0x10)
    assert chain("nat-postrouting", found)[1:3] == [
        'ip saddr 10.244.0.0/16 oifname "kroute-*" jump to-nodes',
        'ip saddr 10.9.0.0/16 oifname "kroute-*" jump to-nodes',
    ]
    assert chain("to-nodes", found) == [
        "ip daddr 10.244.0.0/16 return",
        "ip daddr 10.9.0.0/16 return",
        "meta mark set meta mark & 0xffffffef",
    ]


def test_only_addresses_on_no_link_get_the_mark_of_direct_return_and_lose_it_before_ipvs() -> None:
    found = rules(direct_return=True, direct_return_mark=0x10)
    to = "ip daddr @vip fib daddr type != local"
    assert chain("prerouting", found) == [f"{to} meta mark set meta mark | 0x00000010"]
    assert chain("input", found)[0] == f"meta mark & 0x00000010 == 0x00000010 {to} meta mark set meta mark & 0xffffffef"
    assert not any("fib daddr type !=" in text for one in rules().chains for text in chain(one.name, rules()))


@pytest.mark.parametrize(
    ("family", "node", "action"),
    [
        (Family.IPV4, NODE, "snat to 192.168.123.249 fully-random"),
        (Family.IPV6, NODE, "snat to fd00:123::249 fully-random"),
        (Family.IPV4, NodeFacts("node3"), "masquerade fully-random"),
        (Family.IPV6, NodeFacts("node3", "192.168.123.249"), "masquerade fully-random"),
    ],
    ids=["IPv4", "IPv6", "nothing known", "other family known"],
)
def test_with_snat_source_node_ip_marked_packets_leave_with_the_nodes_address_once_it_is_known(
    family: Family, node: NodeFacts, action: str
) -> None:
    hairpin, marked = chain("nat-postrouting", rules(family, node, snat_source="node-ip"))
    assert marked.endswith(action)
    assert hairpin.endswith("@hairpin masquerade fully-random")


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.get("detect_local_mode", ""))
def test_no_rule_sees_a_tcp_packet_that_begins_no_connection(mode: dict[str, object]) -> None:
    for name in ("new-connections", "own-new-connections", "mark-masquerade"):
        assert chain(name, rules(**mode))[0] == "tcp flags ! syn return"


SERVED: Sets = {AddressSet.VIP: {("10.96.0.1",)}, AddressSet.CLUSTER_IP: {("10.96.0.1", 6, 80)}}


def after(hook: Hook, packet: Packet, sets: Sets, family: Family = Family.IPV4) -> TraceResult:
    return trace_packet(rules(family, **CIDR).chains, hook, packet, sets)


@pytest.mark.parametrize(
    ("family", "protocol", "how"),
    [
        (Family.IPV4, 6, "tcp reset"),
        (Family.IPV4, 132, "icmp protocol unreachable"),
        (Family.IPV4, 17, "icmp port unreachable"),
        (Family.IPV6, 6, "tcp reset"),
        (Family.IPV6, 132, "icmpv6 port unreachable"),
        (Family.IPV6, 17, "icmpv6 port unreachable"),
    ],
)
def test_each_protocol_is_refused_so_that_its_client_gives_up(family: Family, protocol: int, how: str) -> None:
    address, client = ("10.96.0.1", "192.0.2.1") if family is Family.IPV4 else ("fd00:96::1", "2001:db8::1")
    sets = {AddressSet.VIP: {(address,)}}
    found = after(Hook.INPUT, Packet(protocol, client, address, 22, "eth0"), sets, family)
    assert (found.ending, found.detail) == (Ending.REFUSED, how)
    assert found.met == (reasons.VIP, reasons.HOST_PORT, reasons.REFUSED)


def test_a_trace_names_the_rules_that_decide_and_none_that_only_leads_to_them() -> None:
    packet = Packet(6, "192.0.2.1", "10.96.0.1", 80, "eth0")
    assert after(Hook.INPUT, packet, SERVED).met == (reasons.SERVED,)
    local = {AddressSet.VIP: {("10.96.0.1",)}, AddressSet.EXTERNAL_LOCAL: {("10.96.0.1", 6, 80)}}
    assert after(Hook.INPUT, packet, local).met == (reasons.VIP, reasons.SERVED)
    marked = after(Hook.NAT_PREROUTING, packet, SERVED)
    assert (marked.met, marked.mark) == ((reasons.OTHERS_TO_CLUSTER_IP, reasons.KEPT), 0x4000)
    left = after(Hook.NAT_POSTROUTING, packet._replace(mark=0x4001), SERVED)
    assert (left.ending, left.met, left.mark) == (Ending.TRANSLATED, (reasons.MARKED,), 1)
