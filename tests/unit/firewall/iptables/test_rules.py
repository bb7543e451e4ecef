"""The rules in the order in which packets meet them: which packets are masqueraded, and which are refused.

All rules of each family are in `golden/`. After an intended change, `KROUTE_WRITE_GOLDEN=1 pytest
tests/unit/firewall/iptables/test_rules.py` writes them again, and the diff is for review.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import pytest

from kroute.firewall import reasons
from kroute.firewall.iptables.address_sets import LARGER, set_definitions
from kroute.firewall.iptables.rules import family_rules, filter_rules, mangle_rules, masquerade_rules, output_rules
from kroute.firewall.packet_trace import Hook, Packet
from kroute.kernel.iptables.rule import parse_rule
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet
from kroute.settings import Exemption, Settings

GOLDEN = Path(__file__).parents[2] / "golden"
NODE = NodeFacts("node3", "192.168.123.249", "fd00:123::249", pod_cidrs=("172.20.135.0/24",))
TO_CLUSTER_IP = "-m set --match-set KROUTE-CLUSTER-IP dst,dst -j KROUTE-MARK-MASQ"
EXTERNAL = "-m set --match-set KROUTE-EXTERNAL dst,dst -j KROUTE-MARK-MASQ"
NOT_IN_POD_NETWORK = "-m set ! --match-set KROUTE-POD-NETWORK src"

BRIDGE = {"detect_local_mode": "BridgeInterface", "pod_bridge_interface": "cbr0"}
PREFIX = {"detect_local_mode": "InterfaceNamePrefix", "pod_interface_name_prefix": "veth"}
NODE_CIDR = {"detect_local_mode": "NodeCIDR"}
CIDR = {"cluster_cidrs": ("172.20.0.0/16",)}


def bare(rules: Iterable[str]) -> list[str]:
    """Return the rules without their comments; each rule must have one."""
    cut = []
    for rule in rules:
        before, _, after = rule.partition('-m comment --comment "')
        text, _, rest = after.partition('" ')
        assert text, rule
        cut.append(before + rest)
    return cut


ESTABLISHED = "-p tcp -m tcp --tcp-flags SYN NONE -j RETURN"
"""A TCP packet that opens no connection."""


def nat(family: Family = Family.IPV4, node: NodeFacts = NODE, **settings: object) -> TableRules:
    return masquerade_rules(Settings("node3", **settings), family, node)


def services(family: Family = Family.IPV4, **settings: object) -> list[str]:
    """Return the rules that mark, behind the one that lets established connections pass."""
    first, *rest = bare(nat(family, **settings).chains["KROUTE-SERVICES"])
    assert first == ESTABLISHED
    return rest


def inputs(family: Family = Family.IPV4, **settings: object) -> list[str]:
    return bare(filter_rules(Settings("node3", **settings), family).chains["KROUTE-INPUT"])


def render(tables: Sequence[TableRules]) -> str:
    """Return kroute's rules as iptables-save prints them."""
    lines = []
    for table in tables:
        lines.append(f"*{table.table}")
        lines += [f"-A {chain} {rule}" for chain, rule in table.jumps]
        lines += [f"-A {chain} {rule}" for chain, rules in table.chains.items() for rule in rules]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("family", Family, ids=str)
def test_all_rules_of_a_family(family: Family) -> None:
    settings = Settings("node3", cluster_cidrs=("172.20.0.0/16", "fd00:172:20::/48"))
    rules = [
        masquerade_rules(settings, family, NODE),
        output_rules(family),
        filter_rules(settings, family),
    ]
    golden = GOLDEN / f"{family.lower()}.rules"
    if "KROUTE_WRITE_GOLDEN" in os.environ:
        golden.write_text(render(rules))
    assert render(rules) == golden.read_text()


@pytest.mark.parametrize(
    ("settings", "marked"),
    [
        ({}, []),
        (CIDR, [f"{NOT_IN_POD_NETWORK} {TO_CLUSTER_IP}"]),
        (NODE_CIDR, [f"{NOT_IN_POD_NETWORK} {TO_CLUSTER_IP}"]),
        (BRIDGE, [f"! -i cbr0 {TO_CLUSTER_IP}"]),
        (PREFIX, [f"! -i veth+ {TO_CLUSTER_IP}"]),
        ({"masquerade_all": True, **BRIDGE}, [TO_CLUSTER_IP]),
    ],
    ids=["networks unknown", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", "masquerade-all"],
)
def test_what_is_not_from_local_pods_is_masqueraded_on_a_cluster_ip(
    settings: dict[str, object], marked: list[str]
) -> None:
    assert services(**settings) == [*marked, EXTERNAL]


@pytest.mark.parametrize("settings", [CIDR, NODE_CIDR], ids=["ClusterCIDR", "NodeCIDR"])
def test_a_family_without_pod_networks_is_not_masqueraded_on_a_cluster_ip(settings: dict[str, object]) -> None:
    assert services(Family.IPV6, **settings) == [EXTERNAL.replace("KROUTE-EXTERNAL", "KROUTE-6-EXTERNAL")]


@pytest.mark.parametrize(
    ("settings", "others"),
    [
        ({}, NOT_IN_POD_NETWORK),
        (CIDR, NOT_IN_POD_NETWORK),
        (NODE_CIDR, NOT_IN_POD_NETWORK),
        (BRIDGE, "! -i cbr0"),
        (PREFIX, "! -i veth+"),
    ],
    ids=["networks unknown", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"],
)
def test_without_local_endpoints_all_but_local_pods_are_refused(settings: dict[str, object], others: str) -> None:
    [rule] = [it for it in inputs(**settings) if "KROUTE-NO-LOCAL" in it]
    assert rule == f"{others} -m set --match-set KROUTE-NO-LOCAL dst,dst -j KROUTE-REJECT"


def test_no_rule_sees_a_tcp_packet_that_begins_no_connection() -> None:
    assert inputs()[0] == ESTABLISHED
    assert bare(nat().chains["KROUTE-SERVICES"])[0] == ESTABLISHED


def test_exemptions_come_first_each_in_its_family() -> None:
    exemptions = (Exemption("192.168.130.0/24", "192.168.0.0/16"), Exemption("fd00:130::/64", "fd00::/16"))
    settings = {"masquerade_all": True, "masquerade_exemptions": exemptions}
    assert services(**settings) == ["-s 192.168.130.0/24 -d 192.168.0.0/16 -j RETURN", TO_CLUSTER_IP, EXTERNAL]
    assert services(Family.IPV6, **settings)[0] == "-s fd00:130::/64 -d fd00::/16 -j RETURN"


def test_the_mark_is_the_one_of_the_settings() -> None:
    rules = nat(masquerade_mark=0x10).chains
    assert bare(rules["KROUTE-MARK-MASQ"]) == ["-j MARK --set-xmark 0x10/0x10"]
    assert bare(rules["KROUTE-POSTROUTING"])[1:3] == [
        "-m mark ! --mark 0x10/0x10 -j RETURN",
        "-j MARK --set-xmark 0x10/0x0",
    ]


PODS = {"pod_network": True, "cluster_cidrs": ("10.244.0.0/16", "fd00:244::/48", "10.9.0.0/16")}


def test_with_a_pod_network_what_pods_send_outside_is_masqueraded_and_nothing_else() -> None:
    exempt = (Exemption("10.244.0.0/16", "192.168.0.0/16"),)
    found = nat(**PODS, masquerade_exemptions=exempt)
    assert bare(jump for _, jump in found.jumps[-2:]) == [
        "-s 10.244.0.0/16 -j KROUTE-EGRESS",
        "-s 10.9.0.0/16 -j KROUTE-EGRESS",
    ]
    assert bare(found.chains["KROUTE-EGRESS"]) == [
        "-d 10.244.0.0/16 -j RETURN",
        "-d 10.9.0.0/16 -j RETURN",
        "-o kroute-+ -j RETURN",
        "-s 10.244.0.0/16 -d 192.168.0.0/16 -j RETURN",
        "-j MASQUERADE --random-fully",
    ]
    assert nat(**{**PODS, "pod_network": False}) == nat(cluster_cidrs=PODS["cluster_cidrs"])
    assert nat(**{**PODS, "pod_egress": "keep"}).jumps == found.jumps[:-2]
    assert "KROUTE-EGRESS" not in nat(**{**PODS, "pod_egress": "keep"}).chains
    assert bare(found.chains["KROUTE-POSTROUTING"])[1:3] == [
        "-s 10.244.0.0/16 -o kroute-+ -j KROUTE-TO-NODES",
        "-s 10.9.0.0/16 -o kroute-+ -j KROUTE-TO-NODES",
    ]
    assert bare(found.chains["KROUTE-POSTROUTING"])[-2:] == [
        "-o kroute-+ -j SNAT --to-source 192.168.123.249 --random-fully",
        "-j MASQUERADE --random-fully",
    ]
    assert bare(found.chains["KROUTE-TO-NODES"]) == [
        "-d 10.244.0.0/16 -j RETURN",
        "-d 10.9.0.0/16 -j RETURN",
        "-j MARK --set-xmark 0x0/0x4000",
    ]
    rules = family_rules(Settings("node3", **PODS, masquerade_exemptions=exempt), Family.IPV4, NODE)
    for destination, masquerade in (("10.9.1.7", False), ("192.168.5.5", False), ("1.1.1.1", True)):
        result = rules.trace(Hook.NAT_POSTROUTING, Packet(6, "10.244.1.7", destination, 80, "eth0"), {})
        assert (result.why == reasons.POD_EGRESS) is masquerade


@pytest.mark.parametrize(
    ("family", "node", "target"),
    [
        (Family.IPV4, NODE, "SNAT --to-source 192.168.123.249"),
        (Family.IPV6, NODE, "SNAT --to-source fd00:123::249"),
        (Family.IPV4, NodeFacts("node3"), "MASQUERADE"),
        (Family.IPV6, NodeFacts("node3", "192.168.123.249"), "MASQUERADE"),
    ],
    ids=["IPv4", "IPv6", "nothing known", "other family known"],
)
def test_with_snat_source_node_ip_marked_packets_leave_with_the_nodes_address_once_it_is_known(
    family: Family, node: NodeFacts, target: str
) -> None:
    rules = bare(nat(family, node, snat_source="node-ip").chains["KROUTE-POSTROUTING"])
    assert rules[-1] == f"-j {target} --random-fully"
    assert rules[0].endswith(" -j MASQUERADE --random-fully")


@pytest.mark.parametrize("mode", [CIDR, NODE_CIDR, BRIDGE, PREFIX], ids=lambda mode: mode.get("detect_local_mode", ""))
@pytest.mark.parametrize("family", Family, ids=str)
def test_every_rule_can_be_parsed_and_looks_only_into_sets_of_its_family(
    family: Family, mode: dict[str, object]
) -> None:
    known = {each.name for each in set_definitions() if each.family == family.number}
    for table in (nat(family, snat_source="node-ip", **mode), filter_rules(Settings("node3", **mode), family)):
        texts = [*chain.from_iterable(table.chains.values()), *(text for _, text in table.jumps)]
        parsed = [parse_rule(text, family.number) for text in texts]
        looked_up = {
            parameter.values[0]
            for rule in parsed
            for match in rule.matches
            for parameter in match.parameters
            if parameter.name == "match-set"
        }
        assert looked_up <= known


def test_every_address_set_is_there_for_both_families_with_room_and_a_name_that_the_kernel_takes() -> None:
    definitions = set_definitions()
    assert {each.name for each in definitions} == {f"KROUTE-{six}{which}" for six in ("", "6-") for which in AddressSet}
    assert all(each.maxelem >= 250_000 and len(each.name + LARGER) <= 31 for each in definitions)


def test_only_addresses_on_no_link_get_the_mark_of_direct_return_and_lose_it_before_ipvs() -> None:
    found = mangle_rules(Settings("node3", direct_return=True, direct_return_mark=0x10), Family.IPV6)
    to = "-m set --match-set KROUTE-6-VIP dst -m addrtype ! --dst-type LOCAL"
    assert bare(found.chains["KROUTE-DIRECT"]) == [f"{to} -j MARK --set-xmark 0x10/0x10"]
    assert bare(found.chains["KROUTE-DELIVERED"]) == [f"-m mark --mark 0x10/0x10 {to} -j MARK --set-xmark 0x0/0x10"]
    jumps = [(hook, text.rpartition(" ")[2]) for hook, text in found.jumps]
    assert jumps[-2:] == [("PREROUTING", "KROUTE-DIRECT"), ("INPUT", "KROUTE-DELIVERED")]
    assert mangle_rules(Settings("node3"), Family.IPV6) == output_rules(Family.IPV6)
