"""The firewall backend on nf_tables: nft prints its rules as they are written, and what others change is put right."""

import asyncio
import json
import re
import socket
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from ipaddress import ip_address, ip_network

import pytest

from kroute.firewall.nftables.firewall import NftablesFirewall
from kroute.firewall.nftables.names import TABLES
from kroute.firewall.nftables.rules import family_rules
from kroute.firewall.nftables.statements import in_set
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.expressions import Header, VerdictCode, lookup, payload, register, verdict
from kroute.kernel.nftables.objects import AddRule, NftRule
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, SetEntry, range_lengths
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Exemption, Settings
from tests.kernel import documented_ruleset
from tests.kernel.contracts_firewall import NODE, ONE_OF_EACH, SETTINGS, everything
from tests.kernel.nodes import HANG, run

pytestmark = pytest.mark.nftables

ODD_NETWORKS = Settings(
    "node1",
    masquerade_exemptions=(
        Exemption("192.0.2.0/25", "10.96.0.0/13"),
        Exemption("192.0.2.7/32", "10.0.0.0/8"),
        Exemption("2001:db8::/33", "fc00::/7"),
        Exemption("2001:db8::7/128", "fd00:96::/112"),
    ),
    masquerade_mark=0x1,
)
FOREIGN = """
table inet firewalld {
  set trusted { type ipv4_addr; flags interval; elements = { 192.0.2.0/24 } }
  chain filter_INPUT { type filter hook input priority filter + 10; policy accept; ip saddr @trusted counter accept; }
}
table ip nat { chain POSTROUTING { type nat hook postrouting priority srcnat; policy accept; masquerade; }; }
table ip6 kroute-of-somebody-else { chain x { }; }
"""


@pytest.fixture
async def nftables(namespace: None) -> AsyncIterator[Nftables]:
    async with Nftables() as client:
        yield client


@pytest.fixture
async def firewall(nftables: Nftables) -> NftablesFirewall:
    """A firewall with rules and an element in each set."""
    firewall = NftablesFirewall(Settings("node1"), nftables)
    await firewall.ensure_sets()
    assert await firewall.change_elements(dict.fromkeys(ONE_OF_EACH, True)) == {}
    assert await firewall.ensure_rules(NODE) == []
    return firewall


async def resync(firewall: NftablesFirewall, node: NodeFacts = NODE) -> list[str]:
    """Do what the controller does at a resync; returns the drift."""
    drift = await firewall.ensure_sets()
    found = set(await everything(firewall))
    missing, surplus = set(ONE_OF_EACH) - found, found - set(ONE_OF_EACH)
    assert await firewall.change_elements(dict.fromkeys(missing, True) | dict.fromkeys(surplus, False)) == {}
    drift += [str(it) for it in sorted(missing | surplus)]
    return drift + await firewall.ensure_rules(node)


def listed(family: Family) -> str:
    return run(f"nft list table {TABLES[family]}")


def parts(family: Family) -> list[str]:
    """Return the sets and chains of a table as nft prints them, but in an order of their own: no packet sees theirs."""
    body = listed(family).partition("{")[2].rstrip().removesuffix("}")
    return sorted(part.strip() for part in body.split("\n\n"))


def foreign() -> str:
    """Return everybody else's tables, as nft prints them without counters."""
    tables = [line.removeprefix("table ") for line in run("nft list tables").splitlines()]
    others = [it for it in tables if it not in {str(table) for table in TABLES.values()}]
    return "".join(run(f"nft -s list table {it}") for it in others)


def load(ruleset: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=ruleset, text=True, check=True)


@pytest.mark.parametrize(
    "settings", [*SETTINGS, ODD_NETWORKS], ids=lambda it: f"{it.detect_local_mode}-{it.snat_source}"
)
async def test_nft_prints_every_rule_in_the_words_that_are_shown_to_people(
    nftables: Nftables, settings: Settings
) -> None:
    firewall = NftablesFirewall(settings, nftables)
    await firewall.ensure_sets()
    assert await firewall.ensure_rules(NODE) == []
    for family in Family:
        printed = [line.strip() for line in listed(family).splitlines()]
        for chain in family_rules(settings, family, NODE).chains:
            start = printed.index(f"chain {chain.name} {{") + (2 if chain.hook else 1)
            assert printed[start : start + len(chain.rules)] == [rule.text for rule in chain.rules]


@pytest.mark.parametrize(
    "settings", [*SETTINGS, ODD_NETWORKS], ids=lambda it: f"{it.detect_local_mode}-{it.snat_source}"
)
async def test_rules_are_read_back_as_they_were_written(nftables: Nftables, settings: Settings) -> None:
    first, second = (NftablesFirewall(settings, nftables) for _ in range(2))
    await first.ensure_sets()
    await first.ensure_rules(NODE)
    generation = run("nft --json list ruleset")
    assert await second.ensure_sets() == []
    assert [await second.rule_differences(family, NODE) for family in Family] == [[], []]
    assert await second.ensure_rules(NODE) == []
    assert json.loads(run("nft --json list ruleset")) == json.loads(generation), "handles stay: nothing is written"


async def test_nft_prints_the_elements_of_every_set(firewall: NftablesFirewall) -> None:
    printed = re.sub(r"\s+", " ", listed(Family.IPV4))
    for text in (
        "elements = { 10.96.0.1 . tcp . 80 }",
        "elements = { 10.96.0.1 . tcp . 80 . 203.0.113.0 . 203.0.113.255 }",
        "elements = { 172.20.1.5 . tcp . 8080 . 172.20.1.5 }",
        "elements = { 172.20.1.0/24 }",
    ):
        assert text in printed
    assert "fd00:96::1 . udp . 53 . 2001:db8:: . 2001:db8:ffff:" in listed(Family.IPV6)


DAMAGES = {
    "the whole ruleset is flushed": "nft flush ruleset",
    "a table is deleted": "nft delete table ip kroute",
    "both tables are deleted": "nft 'delete table ip kroute; delete table ip6 kroute'",
    "an element is deleted": "nft delete element ip kroute cluster-ip { 10.96.0.1 . tcp . 80 }",
    "an element is added": "nft add element ip kroute vip { 192.0.2.1 }",
    "a network is deleted": "nft delete element ip kroute pod-network { 172.20.1.0/24 }",
    "a range is added": "nft add element ip kroute source-network"
    " { 10.96.0.1 . tcp . 80 . 198.51.100.0 . 198.51.100.255 }",
    "ends of no network are added": "nft add element ip kroute source-network"
    " { 10.96.0.1 . tcp . 80 . 198.51.100.1 . 198.51.100.6, 10.96.0.1 . tcp . 80 . 198.51.100.6 . 198.51.100.1 }",
    "the set of an earlier version is left": "nft 'add set ip kroute source-range"
    " { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval; }'",
    "a range that is no network is added": "nft add element ip kroute pod-network { 198.51.100.1-198.51.100.6 }",
    "a set is flushed": "nft flush set ip6 kroute external",
    "a rule is added": "nft add rule ip kroute input drop",
    "a rule is put first": "nft insert rule ip kroute new-connections accept",
    "the rules of a chain are flushed": "nft flush chain ip kroute nat-postrouting",
    "all rules are flushed": "nft flush table ip6 kroute",
    "a rule loses its comment": (
        "nft 'flush chain ip kroute input; add rule ip kroute input ct state new jump new-connections'"
    ),
    "a rule with a set of its own is added": "nft add rule ip kroute input tcp dport { 22, 80 } accept",
    "a chain has another policy": "nft chain ip kroute input '{ policy drop; }'",
    "a chain is added": "nft 'add chain ip kroute mine; add rule ip kroute input goto mine'",
    "a base chain is added": "nft 'add chain ip kroute mine { type filter hook forward priority 0; policy drop; }'",
    "a table is made dormant": "nft 'add table ip kroute { flags dormant; }'",
    "a table is made dormant and loses a base chain": "nft 'add table ip6 kroute { flags dormant; };"
    " flush chain ip6 kroute input; delete chain ip6 kroute input'",
    "a set is added": "nft add set ip kroute mine '{ type ipv4_addr; }'",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_a_resync_puts_right_what_somebody_has_changed(firewall: NftablesFirewall, damage: str) -> None:
    before = {family: parts(family) for family in Family}
    run(damage)
    assert not await firewall.is_untouched()
    drift = await resync(firewall)
    assert drift, "it is reported"
    assert {family: parts(family) for family in Family} == before
    assert await resync(firewall) == []
    assert all(firewall.enforces(family) for family in Family)


async def test_a_set_of_another_kind_is_made_anew(firewall: NftablesFirewall) -> None:
    before = parts(Family.IPV4)
    run("nft flush table ip kroute")
    run("nft delete set ip kroute hairpin")
    run("nft add set ip kroute hairpin '{ type ipv4_addr; }'")
    drift = await resync(firewall)
    assert "set ip kroute hairpin was of another kind" in drift
    assert parts(Family.IPV4) == before


async def test_another_chain_priority_is_put_right(firewall: NftablesFirewall) -> None:
    before = parts(Family.IPV4)
    run("nft flush chain ip kroute input")
    run("nft delete chain ip kroute input")
    run("nft add chain ip kroute input '{ type filter hook input priority 300; }'")
    assert await resync(firewall) == [
        "table ip kroute: chain input has another type, hook, priority or policy",
    ]
    assert parts(Family.IPV4) == before


async def test_other_tables_stay_byte_for_byte_as_they_are(nftables: Nftables) -> None:
    load(FOREIGN)
    before = run("nft -s list ruleset")
    firewall = NftablesFirewall(Settings("node1"), nftables)
    for _ in range(2):
        await resync(firewall)
        assert foreign() == before
        run("nft delete table ip kroute")
        await resync(firewall, NodeFacts("node1", "192.168.9.2"))
    assert foreign() == before
    report = CleanupReport()
    await firewall.remove(report)
    assert report.undone == ["delete table ip kroute", "delete table ip6 kroute"]
    assert run("nft -s list ruleset") == before


async def test_it_is_untouched_after_a_resync_until_somebody_else_commits_anything(firewall: NftablesFirewall) -> None:
    assert not await firewall.is_untouched(), "nothing has been read yet"
    await resync(firewall)
    assert await firewall.is_untouched()
    other = SetEntry(AddressSet.VIP, ("10.96.0.9",))
    await firewall.change_elements({other: True})
    await firewall.ensure_rules(NodeFacts("node1", "192.168.9.7"))
    await firewall.change_elements({other: False})
    assert await firewall.is_untouched(), "these were its own changes"
    run("nft add table inet foreign")
    assert not await firewall.is_untouched()
    await resync(firewall)
    assert await firewall.is_untouched()


async def test_while_it_is_followed_only_changes_of_its_own_tables_count(firewall: NftablesFirewall) -> None:
    changed = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        following = group.create_task(firewall.follow(changed.set))
        while not firewall.watch.is_following:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0)
        for damage in (
            "nft delete element ip kroute vip { 10.96.0.1 }",
            "nft flush set ip kroute cluster-ip",
            "nft insert rule ip kroute input accept",
            "nft flush ruleset",
        ):
            await resync(firewall)
            changed.clear()
            for number in range(3):
                run(f"nft 'add table ip foreign; add chain ip foreign c{number}; delete chain ip foreign c{number}'")
                await asyncio.sleep(0)
            assert await firewall.is_untouched()
            assert not changed.is_set()
            run(damage)
            async with asyncio.timeout(HANG):
                await changed.wait()
            assert not await firewall.is_untouched()
        following.cancel()


async def test_while_rules_cannot_be_written_it_is_not_untouched(firewall: NftablesFirewall) -> None:
    await resync(firewall)
    run("nft delete table ip6 kroute")
    await firewall.ensure_rules(NODE)
    assert [firewall.enforces(family) for family in Family] == [True, False]
    assert not await firewall.is_untouched()


def sends(source: str, destination: str, port: int) -> bool:
    """Whether a process of this node may send the first packet of a flow."""
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.bind((source, 0))
        try:
            sender.sendto(b"", (destination, port))
        except PermissionError:
            return False
    return True


@pytest.mark.parametrize(
    ("family", "vip", "client"),
    [(Family.IPV4, "203.0.113.1", "10.99.51.77"), (Family.IPV6, "2001:db8::1", "2001:db8:5::77")],
)
async def test_of_each_length_a_range_lets_its_own_addresses_in_and_no_neighbour(
    nftables: Nftables, family: Family, vip: str, client: str
) -> None:
    firewall = NftablesFirewall(Settings("node1"), nftables)
    await firewall.ensure_sets()
    lengths = range_lengths(family)
    number, bits = ip_address(client), max(lengths)
    neighbours = {it: str(type(number)(int(number) ^ 1 << bits - it)) for it in lengths}
    for address in (vip, client, *neighbours.values()):
        run(f"ip address add {address}/{bits} dev lo {'nodad' if family is Family.IPV6 else ''}")
    wanted = {
        SetEntry(which, (vip, 17, length, *network)): True
        for length in lengths
        for which, network in (
            (AddressSet.RESTRICTED, ()),
            (AddressSet.SOURCE_RANGE, (str(ip_network(f"{client}/{length}", strict=False)),)),
        )
    }
    assert await firewall.change_elements(wanted) == {}
    await firewall.ensure_rules(NODE)
    assert {it: (sends(client, vip, it), sends(neighbours[it], vip, it)) for it in lengths} == dict.fromkeys(
        lengths, (True, False)
    )


async def test_the_set_of_an_earlier_version_keeps_clients_out_until_the_new_rules_do(nftables: Nftables) -> None:
    run(
        "nft 'add table ip kroute; add chain ip kroute output { type filter hook output priority mangle; };"
        " add set ip kroute restricted { type ipv4_addr . inet_proto . inet_service; };"
        " add set ip kroute source-range { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval; };"
        " add element ip kroute restricted { 203.0.113.1 . udp . 53 }'"
    )
    # For this lookup nft 1.0.6 turns the one byte of the protocol, which Linux 7.3 refuses.
    others = payload(register(12), Header.NETWORK, 12, 4), lookup("source-range", register(0), inverted=True)
    expressions = (*in_set(Family.IPV4, AddressSet.RESTRICTED).expressions, *others, verdict(VerdictCode.DROP))
    assert await nftables.transact(TABLES[Family.IPV4], [AddRule(NftRule("output", expressions))]) == []
    for address in ("203.0.113.1", "192.0.2.1"):
        run(f"ip address add {address}/32 dev lo")
    port = ("203.0.113.1", 17, 53)
    firewall = NftablesFirewall(Settings("node1"), nftables)
    steps = [
        firewall.ensure_sets,
        partial(firewall.change_elements, {SetEntry(AddressSet.SOURCE_RANGE, (*port, "198.51.100.0/24")): True}),
        partial(firewall.ensure_rules, NODE),
    ]
    for step in steps:
        await step()
        assert not sends("192.0.2.1", "203.0.113.1", 53)
    assert "source-range " not in listed(Family.IPV4)
    assert await firewall.change_elements({SetEntry(AddressSet.SOURCE_RANGE, (*port, "192.0.2.1/32")): True}) == {}
    assert sends("192.0.2.1", "203.0.113.1", 53)


async def test_a_pod_network_within_another_is_written_when_that_one_goes(firewall: NftablesFirewall) -> None:
    outer, inner = (SetEntry(AddressSet.POD_NETWORK, (it,)) for it in ("172.16.0.0/12", "172.20.1.0/24"))
    assert await firewall.change_elements({inner: True}) == {}
    assert await firewall.change_elements({outer: True}) == {}
    printed = listed(Family.IPV4)
    assert str(outer.element[0]) in printed
    assert str(inner.element[0]) not in printed
    assert {inner, outer} <= set(await everything(firewall))
    assert await firewall.change_elements({outer: False}) == {}
    assert str(inner.element[0]) in listed(Family.IPV4)


async def test_a_foreign_network_that_overlaps_keeps_no_wanted_one_out(firewall: NftablesFirewall) -> None:
    run("nft add element ip kroute pod-network { 198.51.0.0/16 }")
    wanted = SetEntry(AddressSet.POD_NETWORK, ("198.51.100.0/24",))
    assert await firewall.change_elements({wanted: True}) == {}
    found = set(await everything(firewall))
    surplus = found - {*ONE_OF_EACH, wanted}
    assert await firewall.change_elements(dict.fromkeys(surplus, False)) == {}
    assert set(await everything(firewall)) == {*ONE_OF_EACH, wanted}
    assert "198.51.100.0/24" in listed(Family.IPV4)


async def test_the_design_shows_the_rules_of_a_node_with_five_services(namespace: None) -> None:
    """After an intended change `python -m tests.kernel.documented_ruleset` writes them again."""
    assert documented_ruleset.commented(await documented_ruleset.printed()) in documented_ruleset.PAGE.read_text()
