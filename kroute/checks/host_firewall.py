"""Look at the node's own firewall: whether the answers of pods pass it, and whom it lets in to Services.

With the backend iptables, kroute's rules accept the answers of pods in FORWARD of the legacy tables, and of
iptables-nft's where those exist. A packet passes other chains of nf_tables besides, and no rule in the tables of
iptables speaks for it there. In INPUT kroute accepts health checks only, as kube-proxy does in IPVS mode: there the
node's firewall decides who reaches node ports and VIPs. With the backend nftables kroute accepts nothing, as kube-proxy
in that mode: what is accepted in one table of nf_tables is still dropped by another.
"""

import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from kroute.checks.finding import Finding, ok, warning
from kroute.kernel.iptables.saved import SavedRule, SavedTable, parse_saved
from kroute.kernel.iptables.tools import VARIANTS, Variant
from kroute.kernel.nftables.chains import NftChain

FIREWALL = "firewall"
REFUSALS = frozenset({"DROP", "REJECT"})
_TABLE = "filter"
_STATE_MATCH = frozenset({"conntrack", "--ctstate", "state", "--state"})


class Tools(Protocol):
    """What this check needs of `XtablesTools`."""

    async def save(self, variant: Variant, table: str = "") -> str | None: ...

    def may_be_in_use(self, variant: Variant, table: str) -> bool: ...


class Gate(NamedTuple):
    """A chain that refuses what no rule accepts. `name` is for people, `how` says by what it refuses."""

    name: str
    how: str


async def check_host_firewall(
    tools: Tools, nft_chains: Sequence[NftChain], *, overrules: bool, reads_legacy: bool = True
) -> list[Finding]:
    """Findings about FORWARD and INPUT, of both variants of iptables and of other programs' nf_tables.

    `overrules`: whether kroute's firewall backend accepts in the tables of iptables what these would drop.
    `reads_legacy`: whether this process may read legacy tables, which takes CAP_NET_RAW.
    """
    hidden = [it for it in VARIANTS if it.name == "legacy" and not reads_legacy and tools.may_be_in_use(it, _TABLE)]
    read = [it for it in VARIANTS if it not in hidden]
    tables = [(variant, await _filter_table(tools, variant, nft_chains)) for variant in read]
    seen = {_nft_family(variant) for variant, table in tables if variant.name == "nft" and table is not None}
    unseen = [it for it in nft_chains if it.table != _TABLE or it.family not in seen]
    forward, others = list(_gates(tables, "FORWARD")), list(_base_chains(unseen, "forward"))
    incoming = [*_gates(tables, "INPUT"), *_base_chains(unseen, "input")]
    found = [_not_forwarded(gate) for gate in others]
    if not overrules:
        found += [
            _not_accepted(gate, variant)
            for variant, table in tables
            for gate in _gates([(variant, table)], "FORWARD")
            if table is not None and not accepts_established(table, "FORWARD")
        ]
    found += [_unread(it) for it in hidden]
    if not found:
        passing = f", though {_listed(forward)}" if forward else ""
        who = "kroute has the answers of pods forwarded" if overrules else "nothing drops the answers of pods"
        found.append(ok(FIREWALL, f"{who}{passing}"))
    return [*found, _decides(incoming)] if incoming else found


async def _filter_table(tools: Tools, variant: Variant, nft_chains: Iterable[NftChain]) -> SavedTable | None:
    """The filter table; None if there is none, or no tool that shows it."""
    wanted = (_nft_family(variant), _TABLE)
    if variant.name == "nft" and not any((it.family, it.table) == wanted for it in nft_chains):
        return None
    return next(iter(parse_saved(await tools.save(variant, _TABLE) or "")), None)


def _nft_family(variant: Variant) -> str:
    return "ip6" if variant.family == socket.AF_INET6 else "ip"


def _gates(tables: Iterable[tuple[Variant, SavedTable | None]], chain: str) -> Iterator[Gate]:
    for variant, table in tables:
        if table is not None and (how := _refusal(table, chain)):
            yield Gate(f"{chain} of {variant}", how)


def _base_chains(chains: Iterable[NftChain], hook: str) -> Iterator[Gate]:
    """Chains that no iptables tool shows. Their rules are not read."""
    for it in chains:
        if it.family in {"ip", "ip6", "inet"} and it.hook == hook and it.drops:
            yield Gate(f"nft chain {it.family} {it.table} {it.name}", "policy drop")


def _refusal(table: SavedTable, chain: str) -> str:
    """How the chain refuses what no rule accepts; "" if it accepts that."""
    if table.policies.get(chain) == "DROP":
        return "policy DROP"
    refusing = [rule for rule in table.rules_of(chain) if rule.target in REFUSALS and not _conditions(rule)]
    return f"rule -j {refusing[0].target}" if refusing else ""


def _conditions(rule: SavedRule) -> list[str]:
    """The matches of a rule and their options, without their values. Comments, and how to refuse, are none."""
    words, found = rule.words[1:], []
    while words:
        option, *words = words
        if option in {"-j", "-g"}:
            break
        if (option == "-m" and words[:1] == ["comment"]) or option == "--comment":
            words = words[1:]
        elif option == "-m":
            found.append(words[0])
            words = words[1:]
        elif option.startswith("-") or option == "!":
            found.append(option)
    return found


def _not_forwarded(gate: Gate) -> Finding:
    return warning(
        FIREWALL,
        f"{_listed([gate])}: the answers of pods are lost there unless it accepts established connections",
        f"look at `nft list chain {gate.name.removeprefix('nft chain ')}`; `ct state established,related accept`"
        " lets them through",
    )


def _not_accepted(gate: Gate, variant: Variant) -> Finding:
    tool = variant.tool("").rstrip("-")
    return warning(
        FIREWALL,
        f"{_listed([gate])}: the answers of pods are lost there, and what kroute accepts in nf_tables does not help",
        f"run `{tool} -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT` at every boot",
    )


def _unread(variant: Variant) -> Finding:
    return warning(
        FIREWALL,
        f"table {_TABLE} of {variant} is in use, and cannot be read without CAP_NET_RAW",
        f"run `{variant.tool('save')} -t {_TABLE}` on the node: nothing may drop the answers of pods in FORWARD",
    )


def accepts_established(table: SavedTable, chain: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a rule accepts every packet of an established connection, in the chain or in one that all packets meet.

    A rule before it that refuses is not looked for: it is meant.
    """
    for rule in table.rules_of(chain):
        conditions = [it for it in _conditions(rule) if it not in _STATE_MATCH]
        if not conditions and rule.target == "ACCEPT" and "ESTABLISHED" in " ".join(rule.words):
            return True
        is_met_by_all = not _conditions(rule) and rule.target in table.chains and rule.target not in seen
        if is_met_by_all and accepts_established(table, rule.target, seen | {chain}):
            return True
    return False


def _decides(gates: Sequence[Gate]) -> Finding:
    return warning(
        FIREWALL,
        f"{_listed(gates)}: Services are reached only by those whom it lets in",
        "let in the pods' networks, and clients to node ports and external addresses (docs/troubleshooting.md)",
    )


def _listed(gates: Iterable[Gate]) -> str:
    return ", ".join(f"{gate.name} refuses what no rule accepts ({gate.how})" for gate in gates)
