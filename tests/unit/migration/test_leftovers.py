"""Another proxy's objects are told from foreign ones by names, sets and addresses alone."""

import re
from collections.abc import Mapping
from socket import AF_INET, AF_INET6
from types import MappingProxyType

import msgspec
import pytest

from kroute.checks.other_proxies import OTHER_PROXIES
from kroute.kernel.ipset import Element
from kroute.kernel.iptables.tools import SavedTable, parse_saved
from kroute.kernel.net.policy_routing import PolicyRule, TableRoute
from kroute.kernel.nftables.objects import Table
from kroute.migration.leftovers import Leftovers, NodeScan, dsr_marks, recognise
from kroute.migration.take_over import NODE_PORT_RANGE
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile.ledger import Exclusion
from kroute.settings import OTHER_VIP_INTERFACES
from tests.lab.kube_proxy_rules import Served, iptables_rules, ipvs_rules
from tests.lab.other_proxy_rules import (
    DSR_ADDRESS,
    DSR_MARK,
    NEIGHBOUR_CHAINS,
    direct_server_return_rules,
    kube_router_rules,
)

NODE, VIP = "192.0.2.1", "10.96.0.10"
EMPTY = NodeScan({}, {}, {}, (), None, frozenset({NODE}), (), (), {}, frozenset(), frozenset())


def as_saved(rules: str) -> str:
    """Return input of iptables-restore as iptables-save prints it: inserted rules come first."""
    return rules.replace("-I ", "-A ").replace("--set-mark ", "--set-xmark ")


def recognised(proxy: str, saved: Mapping[str, str] = MappingProxyType({}), **reading: object) -> Leftovers:
    """`saved` are iptables-save's outputs by variant."""
    tables = {variant: parse_saved(text) for variant, text in saved.items()}
    return recognise(OTHER_PROXIES[proxy], msgspec.structs.replace(EMPTY, tables=tables, **reading), NODE_PORT_RANGE)


def test_an_untouched_node_has_nothing() -> None:
    for proxy in OTHER_PROXIES:
        assert recognised(proxy, saved={"IPv4 legacy": NEIGHBOUR_CHAINS}).are_removed


@pytest.mark.parametrize("variant", ["IPv4 legacy", "IPv6 nft"])
def test_every_chain_of_kube_proxys_is_recognised_in_both_variants(variant: str) -> None:
    rules = as_saved(ipvs_rules("KUBE-", is_ipv6=variant.startswith("IPv6")))
    tables = {it.table: it for it in recognised("kube-proxy", saved={variant: rules}).tables}
    assert {it.variant for it in tables.values()} == {variant}
    assert set(tables["nat"].chains) == {
        "KUBE-SERVICES", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-MARK-MASQ", "KUBE-POSTROUTING",
    }  # fmt: skip
    assert tables["nat"].rules == (
        'PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
        'OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
        'POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
    )
    assert len(tables["filter"].chains) == 6
    assert len(tables["filter"].rules) == 6


def test_the_chains_of_iptables_mode_are_kube_proxys_too() -> None:
    rules = as_saved(iptables_rules([Served("10.96.0.10", 80, [("10.0.0.7", 8080)], 30080)], is_ipv6=False))
    found = {it.table: set(it.chains) for it in recognised("kube-proxy", saved={"IPv4 nft": rules}).tables}
    declared = {
        text.split("\n")[0]: set(re.findall(r"^:(\S+)", text, re.MULTILINE)) for text in rules.split("*") if text
    }
    assert found == {**declared, "filter": declared["filter"] - {"KUBE-FIREWALL"}}
    assert {it[:9] for it in found["nat"]} >= {"KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-"}


def test_a_chain_that_is_only_named_like_a_services_is_not_theirs() -> None:
    saved = "*nat\n:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]\n:KUBE-SVC-short - [0:0]\nCOMMIT\n"
    [table] = recognised("kube-proxy", saved={"IPv4 nft": saved}).tables
    assert table.chains == ("KUBE-SVC-NPX46M4PTMTKRN6Y",)


def test_the_kubelets_chains_and_those_of_network_policies_are_not_theirs() -> None:
    saved = {"IPv4 legacy": NEIGHBOUR_CHAINS + as_saved(ipvs_rules("KUBE-", is_ipv6=False))}
    named = {chain for table in recognised("kube-proxy", saved=saved).tables for chain in table.chains}
    assert not named & {"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-ROUTER-INPUT"}


def test_a_chain_that_somebody_else_jumps_to_stays_with_what_it_needs() -> None:
    saved = (
        "*nat\n:CNI-HOSTPORT - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-LOAD-BALANCER - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n"
        "-A PREROUTING -j KUBE-SERVICES\n-A CNI-HOSTPORT -j KUBE-LOAD-BALANCER\n-A KUBE-SERVICES -j KUBE-MARK-MASQ\n"
        "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n"
    )
    [table] = recognised("kube-proxy", saved={"IPv4 legacy": saved}).tables
    assert table.kept == ("KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ")
    assert table.chains == ("KUBE-SERVICES",)
    assert table.rules == ("PREROUTING -j KUBE-SERVICES",)


def test_kube_routers_rules_in_built_in_chains_are_told_from_others() -> None:
    rules = kube_router_rules("", NODE, "10.244.1.0/24", [("10.244.1.2", VIP, 80)], is_ipv6=False)
    ipvs = "-A POSTROUTING -m ipvs --vdir ORIGINAL --vmethod MASQ"
    others = f'{ipvs} -m comment --comment "mine" -j SNAT --to-source 192.0.2.9\n'
    saved = as_saved(rules).replace("*nat\n:", f"*nat\n{others}:")
    tables = {it.table: it for it in recognised("kube-router", saved={"IPv4 legacy": saved}).tables}
    assert tables["filter"].chains == ("KUBE-ROUTER-SERVICES",)
    assert tables["nat"].chains == ("KUBE-ROUTER-HAIRPIN",)
    assert [rule.rpartition("-j ")[2] for rule in tables["nat"].rules] == [
        "KUBE-ROUTER-HAIRPIN",
        f"SNAT --to-source {NODE} --random-fully",
    ]


def test_a_mark_is_kube_routers_by_its_hash() -> None:
    assert DSR_MARK in dsr_marks(DSR_ADDRESS, "tcp", "80")
    saved = as_saved(direct_server_return_rules()).replace(f"-d {DSR_ADDRESS}", f"-d {DSR_ADDRESS}/32")
    saved = saved.replace(f"-s {DSR_ADDRESS}", f"-s {DSR_ADDRESS}/32")
    foreign = "-A PREROUTING -d 203.0.113.10/32 -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x7/0xffffffff\n"
    found = recognised(
        "kube-router",
        saved={"IPv4 legacy": saved.replace("*mangle\n", f"*mangle\n{foreign}")},
        marks=((AF_INET, 7), (AF_INET, DSR_MARK)),
    )
    assert found.marks == ((AF_INET, DSR_MARK),)
    [table] = found.tables
    assert [rule.split()[0] for rule in table.rules] == ["PREROUTING", "OUTPUT", "PREROUTING"]
    assert "TCPMSS" in table.rules[2]


def test_policy_routing_is_kube_routers_by_priority_and_table() -> None:
    rules = (
        PolicyRule(AF_INET, 32764, DSR_MARK, 78),
        PolicyRule(AF_INET6, 32765, None, 79),
        PolicyRule(AF_INET, 32765, None, 77),
    )
    routes = (
        TableRoute(AF_INET, 78, "default", "lo", is_local=True),
        TableRoute(AF_INET, 78, "10.0.0.0/8", "eth0", is_local=False),
        TableRoute(AF_INET, 79, "203.0.113.9/32", "kube-bridge", is_local=False),
    )
    found = recognised("kube-router", policy_rules=rules, table_routes=routes)
    assert found.policy_rules == rules[:2]
    assert found.routes == (routes[0], routes[2])
    assert recognised("kube-proxy", policy_rules=rules, table_routes=routes).are_removed


EGRESS = "-m set --match-set {0} src -m set ! --match-set {0} dst -m set ! --match-set {1} dst -j MASQUERADE"
ROUTING = """\
*nat
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING {egress} --random-fully
-A POSTROUTING {others}
-A POSTROUTING -j MASQUERADE
COMMIT
*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -o eth0 -m comment --comment "allow outbound node port traffic on node interface with which node ip is \
associated" -j ACCEPT
-A FORWARD -o kube-bridge -m comment --comment "allow inbound traffic to pods" -j ACCEPT
-A FORWARD -i kube-bridge -m comment --comment "allow outbound traffic from pods" -j ACCEPT
-A FORWARD -i kube-bridge -m comment --comment "mine" -j ACCEPT
COMMIT
"""
"""What kube-router's router has in iptables, beside rules of others."""


@pytest.mark.parametrize(("pods", "nodes"), [("kube-router-pod-subnets", "kube-router-node-ips"), ("#3", "#4")])
def test_rules_of_kube_routers_routing_are_its_own_if_kroute_connects_pods(pods: str, nodes: str) -> None:
    egress, others = EGRESS.format(pods, nodes), EGRESS.format("#7", "#8").replace("dst -m set ! --match-set #8 ", "")
    tables = {"IPv4 nft": parse_saved(ROUTING.format(egress=egress, others=others))}
    node = msgspec.structs.replace(EMPTY, tables=tables)
    proxy = OTHER_PROXIES["kube-router"]
    assert recognise(proxy, node, NODE_PORT_RANGE).are_removed
    found = {it.table: it.rules for it in recognise(proxy.with_routing(), node, NODE_PORT_RANGE).tables}
    assert found["nat"] == (f"POSTROUTING {egress} --random-fully",)
    assert len(found["filter"]) == 3
    assert not [rule for rule in found["filter"] if "mine" in rule]


def test_routes_tunnels_sets_and_files_of_kube_routers_routing_are_its_own_if_kroute_connects_pods() -> None:
    rules = PolicyRule(AF_INET, 32765, None, 77), PolicyRule(AF_INET, 32766, None, 254)
    routes = (
        TableRoute(AF_INET, 254, "10.244.1.0/24", "tun-2b2488a2f2a", is_local=False, protocol=17),
        TableRoute(AF_INET, 77, "192.0.2.7/32", "tun-2b2488a2f2a", is_local=False, protocol=3),
        TableRoute(AF_INET, 254, "10.244.2.0/24", "eth0", is_local=False, protocol=108),
    )
    more = {"tunnels": ("tun-2b2488a2f2a",), "cni_files": ("/etc/cni/net.d/10-kuberouter.conflist",)}
    names = {"kube-router-pod-subnets", "inet6:kube-router-node-ips"}
    sets = {name: frozenset[Element]() for name in (*names, "kube-router-another")}
    node = msgspec.structs.replace(EMPTY, policy_rules=rules, table_routes=routes, sets=sets, **more)
    proxy = OTHER_PROXIES["kube-router"]
    assert recognise(proxy, node, NODE_PORT_RANGE).are_removed
    found = recognise(proxy.with_firewall().with_routing(), node, NODE_PORT_RANGE)
    assert (found.policy_rules, found.routes, set(found.sets)) == (rules[:1], routes[:2], names)
    assert {name: getattr(found, name) for name in more} == more
    assert recognise(OTHER_PROXIES["kube-proxy"].with_routing(), node, NODE_PORT_RANGE).are_removed


def server(address: str, port: int, protocol: Protocol = Protocol.TCP) -> VirtualServerKey:
    return VirtualServerKey(protocol, address, port)


@pytest.mark.parametrize(
    ("key", "is_theirs"),
    [
        (server(VIP, 9999), True),  # its address is on kube-ipvs0
        (server("203.0.113.5", 80), True),  # in KUBE-EXTERNAL-IP, on a real interface
        (server("203.0.113.5", 81), False),
        (server(NODE, 30080), True),  # in KUBE-NODE-PORT-TCP
        (server(NODE, 30080, Protocol.UDP), False),
        (server(NODE, 30081), False),
        (server("198.51.100.1", 30080), False),  # not an address of the node
        (server("fd00::1", 30080), False),  # the IPv6 node ports are in another set
    ],
    ids=str,
)
def test_a_virtual_server_is_kube_proxys_by_its_link_and_sets(key: VirtualServerKey, is_theirs: bool) -> None:
    found = recognised(
        "kube-proxy",
        virtual_servers={key: set()},
        link_addresses={VIP},
        elsewhere={NODE, "203.0.113.5", "fd00::1"},
        sets={"KUBE-EXTERNAL-IP": {("203.0.113.5", 6, 80)}, "KUBE-NODE-PORT-TCP": {(30080,)}},
    )
    assert (found.to_adopt, found.others) == (((key,), ()) if is_theirs else ((), (key,)))


@pytest.mark.parametrize(
    ("key", "is_theirs"),
    [
        (server(VIP, 80), True),
        (server(NODE, 30080), True),
        (server(NODE, 80), False),  # kube-router lists every virtual server
        (server("198.51.100.1", 30080), False),
        (server(NODE, 30081), False),
    ],
    ids=str,
)
def test_a_virtual_server_is_kube_routers_by_its_link_or_as_a_node_port(key: VirtualServerKey, is_theirs: bool) -> None:
    listed = {(NODE, 6, 30080), (NODE, 6, 80), ("198.51.100.1", 6, 30080), (VIP, 6, 80)}
    found = recognised(
        "kube-router", virtual_servers={key: set()}, link_addresses={VIP}, sets={"kube-router-svip-prt": listed}
    )
    assert (found.to_adopt, found.others) == (((key,), ()) if is_theirs else ((), (key,)))


@pytest.mark.parametrize(
    ("proxy", "key", "is_theirs"),
    [
        ("kube-proxy", server(VIP, 9999), False),  # anybody's may be on the link there
        ("kube-proxy", server(NODE, 30080), True),  # in KUBE-NODE-PORT-TCP
        ("kube-router", server(VIP, 80), False),
        ("kube-router", server(NODE, 30080), False),  # its set names foreign virtual servers too
        ("kube-router", server(NODE, 30081), True),  # a Service's node port
    ],
    ids=str,
)
def test_in_excluded_networks_only_what_a_service_has_is_theirs(
    proxy: str, key: VirtualServerKey, is_theirs: bool
) -> None:
    node = msgspec.structs.replace(
        EMPTY,
        virtual_servers={key: {"10.0.0.5"}},
        link_addresses={VIP},
        sets={"KUBE-NODE-PORT-TCP": {(30080,)}, "kube-router-svip-prt": {(NODE, 6, 30080), (VIP, 6, 80)}},
    )
    allocated = {(Protocol.TCP, 30081): {"10.0.0.5"}}
    excluded = Exclusion(["192.0.2.0/24", "10.96.0.0/12"])
    found = recognise(OTHER_PROXIES[proxy], node, NODE_PORT_RANGE, allocated, excluded)
    assert (found.to_adopt, found.others) == (((key,), ()) if is_theirs else ((), (key,)))


def test_what_the_ledger_names_is_adopted_and_the_link_no_proof_any_more() -> None:
    ours, new = server(VIP, 80), server(VIP, 81)
    reading = {"virtual_servers": {ours: set(), new: set()}, "link_addresses": {VIP}, "our_virtual_servers": {ours}}
    before = recognised("kube-router", **reading)
    assert (before.adopted, before.to_adopt, before.link) == ((ours,), (new,), "kube-dummy-if")
    after = recognised("kube-router", **reading, our_links={"kube-dummy-if"})
    assert (after.to_adopt, after.others, after.link) == ((), (new,), None)


def test_addresses_that_only_the_other_link_has_are_reported() -> None:
    key = server(VIP, 80)
    reading = {"virtual_servers": {key: set()}, "link_addresses": {VIP}, "our_virtual_servers": {key}}
    assert recognised("kube-proxy", **reading).only_there == (VIP,)
    assert recognised("kube-proxy", **reading, elsewhere={NODE, VIP}).only_there == ()


def test_ipv6_sets_have_the_names_that_kube_proxy_cuts() -> None:
    assert {"KUBE-6-CLUSTER-IP", "KUBE-6-LOAD-BALANCER-SOURCE-CID"} < OTHER_PROXIES["kube-proxy"].sets
    assert len(OTHER_PROXIES["kube-proxy"].sets) == 2 * 17


def test_addresses_on_either_proxys_link_are_never_the_nodes_own() -> None:
    assert {proxy.link for proxy in OTHER_PROXIES.values()} == set(OTHER_VIP_INTERFACES)


def test_the_tables_of_nftables_mode_are_left_until_they_are_removed() -> None:
    tables = (Table(AF_INET, "kube-proxy"), Table(AF_INET6, "kube-proxy"))
    found = recognised("kube-proxy", nft_tables=tables)
    assert not found.are_removed
    assert found.as_document().nft_tables == ["ip kube-proxy", "ip6 kube-proxy"]


SEP, SVC = "KUBE-SEP-ABCDEFGHIJKLMNOP", "KUBE-SVC-NPX46M4PTMTKRN6Y"


@pytest.mark.parametrize(
    ("reading", "may_translate"),
    [
        ({}, False),
        ({"unread": ("IPv4 legacy nat",)}, True),
        ({"unread": ("IPv6 legacy",)}, True),  # not even its tables are known
        ({"unread": ("IPv4 legacy filter",)}, False),
        ({"tables": {"IPv6 legacy": [SavedTable("nat", chains=[SVC, SEP])]}, "fixed": {"IPv6 legacy"}}, True),
        ({"tables": {"IPv6 legacy": [SavedTable("nat", chains=["KUBE-SERVICES"])]}, "fixed": {"IPv6 legacy"}}, False),
        ({"tables": {"IPv4 legacy": [SavedTable("nat", chains=["DOCKER"])]}, "fixed": {"IPv4 legacy"}}, False),
        ({"tables": {"IPv4 legacy": [SavedTable("nat", chains=[SVC, SEP])]}}, False),  # the tools delete it
        ({"tables": {"IPv4 nft": [SavedTable("nat", chains=[SVC, SEP])]}, "fixed": {"IPv4 legacy"}}, False),
    ],
    ids=["nothing", "unread nat", "unread", "unread filter", "DNAT", "IPVS mode", "docker", "with the tools", "nft"],
)
def test_what_translates_first_and_stays_is_only_in_legacy_nat_tables(
    reading: dict[str, object], may_translate: bool
) -> None:
    node = msgspec.structs.replace(EMPTY, **reading)
    assert recognise(OTHER_PROXIES["kube-proxy"], node, NODE_PORT_RANGE).may_translate_first == may_translate
    assert not recognise(OTHER_PROXIES["kube-router"], node, NODE_PORT_RANGE).may_translate_first


def test_legacy_tables_are_named_exactly_if_they_cannot_be_read_or_changed() -> None:
    tables = {"IPv4 legacy": [SavedTable("nat", chains=["KUBE-SERVICES"]), SavedTable("filter", chains=["DOCKER"])]}
    node = msgspec.structs.replace(EMPTY, tables=tables, fixed={"IPv4 legacy"}, unread=("IPv6 legacy nat",))
    found = recognise(OTHER_PROXIES["kube-proxy"], node, NODE_PORT_RANGE)
    assert not found.are_removed
    unread, fixed = found.warnings
    assert unread.startswith("legacy iptables tables exist on this node and cannot be read: IPv6 legacy nat; it takes")
    assert fixed.startswith("this process cannot remove kube-proxy's chains from IPv4 legacy nat: it takes")
    assert recognised("kube-proxy", {"IPv4 legacy": NEIGHBOUR_CHAINS}).warnings == []
