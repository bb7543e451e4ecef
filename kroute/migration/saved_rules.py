"""Find another proxy's rules in a table of iptables: pure functions."""

from collections.abc import Iterable, Mapping, Set
from ipaddress import ip_network
from typing import NamedTuple

import msgspec

from kroute.checks.known_proxies import OtherProxy
from kroute.kernel.iptables.saved import SavedRule, SavedTable

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193
_MARK_BITS = 0x3FFF
_MARK_ATTEMPTS = 16


class TableLeftovers(msgspec.Struct, frozen=True):
    """The other proxy's chains and rules in one table.

    `rules` are the proxy's rules in chains of others, as `-A` prints them: jumps, and rules in the built-in chains. Of
    nf_tables, matches that do not matter here are without their options.
    `kept` are the proxy's chains that foreign rules jump to, and the chains that those need.
    """

    variant: str
    table: str
    chains: tuple[str, ...]
    rules: tuple[str, ...]
    kept: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()


class ProxyPart(NamedTuple):
    """The same of a table of any variant, with the rules themselves."""

    chains: tuple[str, ...] = ()
    rules: tuple[SavedRule, ...] = ()
    kept: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()


def leftovers_in(proxy: OtherProxy, variant: str, table: SavedTable) -> TableLeftovers | None:
    """The proxy's part of the table, or None."""
    part = part_of(proxy, table)
    if part is None:
        return None
    rules = tuple(rule.text for rule in part.rules)
    return TableLeftovers(variant, table.name, part.chains, rules, part.kept, part.marks)


def part_of(proxy: OtherProxy, table: SavedTable) -> ProxyPart | None:
    """The proxy's part of the table, or None."""
    others = set(table.chains)
    theirs = set(filter(proxy.chains.fullmatch, others))
    others -= theirs
    builtin = [rule for rule in table.rules if rule.chain not in others and rule.chain not in theirs]
    kept = _needed_by(table, table.targets_of(others) & theirs, theirs)
    marking = _marking_rules(builtin) if proxy.has_dsr and table.name == "mangle" else {}
    ours = [rule for rule in builtin if (rule.target in theirs and rule.target not in kept) or rule.text in marking]
    if proxy.has_dsr:
        ours += [rule for rule in builtin if _is_snat_of_ipvs(table.name, rule)]
        ours += _clamping_rules(builtin, {rule.after("-d") for rule in builtin if rule.text in marking})
    if not theirs and not ours:
        return None
    chosen, gone = set(ours), theirs - kept
    return ProxyPart(
        chains=tuple(chain for chain in table.chains if chain in gone),
        rules=tuple(rule for rule in builtin if rule in chosen),
        kept=tuple(sorted(kept)),
        marks=tuple(sorted(set(marking.values()))),
    )


def _needed_by(table: SavedTable, chains: Set[str], theirs: Set[str]) -> set[str]:
    """These chains, and all chains of the proxy that their rules lead to."""
    needed, found = set(chains), set(chains)
    while found:
        found = table.targets_of(found) & theirs - needed
        needed |= found
    return needed


def _is_snat_of_ipvs(table: str, rule: SavedRule) -> bool:
    """Whether this is kube-router's masquerading rule: in POSTROUTING, and recognised by its empty comment."""
    return (
        (table, rule.chain, rule.target) == ("nat", "POSTROUTING", "SNAT")
        and (rule.after("--vdir"), rule.after("--vmethod")) == ("ORIGINAL", "MASQ")
        and "--comment" in rule.words
        and rule.after("--comment") == ""
    )


def _marking_rules(builtin: Iterable[SavedRule]) -> Mapping[str, int]:
    """The rules that mark packets for direct server return, with the marks.

    A mark's hash shows that it is kube-router's.
    """
    found = {}
    for rule in builtin:
        address, protocol, port = rule.after("-d"), rule.after("-p"), rule.after("--dport")
        if rule.target != "MARK" or not (address and protocol and port):
            continue
        mark = int((rule.after("--set-xmark") or "0").partition("/")[0], 0)
        if mark in dsr_marks(str(ip_network(address).network_address), protocol, port):
            found[rule.text] = mark
    return found


def _clamping_rules(builtin: Iterable[SavedRule], addresses: set[str]) -> list[SavedRule]:
    """The rules that limit the MSS of connections to or from these addresses, to leave room for the tunnel's header."""
    clamping = [rule for rule in builtin if rule.target == "TCPMSS"]
    return [rule for rule in clamping if (rule.after("-s") or rule.after("-d")) in addresses]


def dsr_marks(address: str, protocol: str, port: str) -> set[int]:
    """The marks that kube-router may give an external IP's port: FNV-1a of `IP-PROTOCOL-PORT`, or with a counter."""
    names = [f"{address}-{protocol}-{port}"]
    names += [f"{names[0]}-{attempt}" for attempt in range(1, _MARK_ATTEMPTS)]
    return {_fnv1a(name.encode()) & _MARK_BITS for name in names}


def _fnv1a(text: bytes) -> int:
    value = _FNV_OFFSET
    for octet in text:
        value = (value ^ octet) * _FNV_PRIME & 0xFFFFFFFF
    return value
