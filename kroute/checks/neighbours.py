"""Other programs on the node: whether their rules and kroute's get along. docs/neighbours.md says more of each.

**The node's firewall**: do the answers of pods pass it, and which clients does it let in to Services? With the backend
iptables, kroute's rules accept the answers of pods in FORWARD of the legacy tables, and of iptables-nft's where those
exist. A packet passes other chains of nf_tables as well, and no rule in the tables of iptables speaks for it there. In
INPUT kroute accepts health checks only, as kube-proxy does in IPVS mode: there the node's firewall decides who reaches
node ports and VIPs. With the backend nftables kroute accepts nothing, as kube-proxy in that mode: what is accepted in
one table of nf_tables is still dropped by another.

**The packet mark**: does another program use the bits that kroute uses? A rule uses a bit if it tests or changes that
bit among others, or if it compares or sets the whole mark to a value that has the bit. A rule for the whole mark that
leaves the bit 0 is met by packets without the bit only, as ever.

**Calico**: do its policies hold for what IPVS forwards? Felix, Calico's agent, applies its policies to packets of IPVS
only where a link `kube-ipvs0` exists: it looks for that name and for no other (felix/dataplane/driver.go), and starts
again when the link comes or goes (felix/dataplane/linux/int_dataplane.go). It then has the chain `cali-forward-check`.
The addresses of this link alone are not the host's own to it (`InterfaceExclude`), but those of Services.
"""

import socket
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

from kroute.checks.finding import Finding, failed, ok, warning
from kroute.firewall.iptables.address_sets import PREFIX
from kroute.firewall.nftables.names import TABLE
from kroute.kernel.errors import UNINTELLIGIBLE
from kroute.kernel.iptables.tools import VARIANTS, SavedRule, SavedTable, Variant, may_be_in_use, parse_saved, save
from kroute.kernel.net.policy_routing import WHOLE_MARK, PolicyRule
from kroute.kernel.net.steering import TABLE as STEERING
from kroute.kernel.netlink.message import attributes, to_text, to_u32
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.expressions import DATA_VALUE, Meta, parse_expression
from kroute.kernel.nftables.messages import FAMILIES
from kroute.kernel.nftables.objects import NftChain, NftRule, Table
from kroute.kernel.node_kernel import NodeKernel
from kroute.settings import Settings

FIREWALL = "firewall"
REFUSALS = frozenset({"DROP", "REJECT"})
_TABLE = "filter"
_OF_PACKETS = frozenset({"ip", "ip6", "inet"})
"""The families of nf_tables whose chains packets of IP pass."""
_STATE_MATCH = frozenset({"conntrack", "--ctstate", "state", "--state"})


class Gate(NamedTuple):
    """A chain that refuses what no rule accepts. `name` is for people, `how` says by what it refuses."""

    name: str
    how: str

    def __str__(self) -> str:
        return f"{self.name} refuses what no rule accepts ({self.how})"


async def check_host_firewall(
    nft_chains: Sequence[NftChain], *, overrules: bool, reads_legacy: bool = True
) -> list[Finding]:
    """Findings about FORWARD and INPUT, of both variants of iptables and of other programs' nf_tables.

    `overrules`: whether kroute's firewall backend accepts in the tables of iptables what these would drop.
    `reads_legacy`: whether this process may read legacy tables, which takes CAP_NET_RAW.
    """
    hidden: list[Variant] = []
    tables: dict[Variant, SavedTable] = {}
    for variant in VARIANTS:
        if variant.name == "legacy" and not reads_legacy and may_be_in_use(variant, _TABLE):
            hidden.append(variant)
        elif (table := await _filter_table(variant, nft_chains)) is not None:
            tables[variant] = table
    seen = {_nft_family(variant) for variant in tables if variant.name == "nft"}
    unseen = [chain for chain in nft_chains if chain.table != _TABLE or chain.family not in seen]
    forward, incoming = _gates(tables, "FORWARD"), _gates(tables, "INPUT")
    found = [_not_forwarded(gate) for gate in _base_chains(unseen, "forward")]
    if not overrules:
        losing = [variant for variant in forward if not accepts_established(tables[variant], "FORWARD")]
        found += [_not_accepted(forward[variant], variant) for variant in losing]
    found += [_unread(variant) for variant in hidden]
    if not found:
        passing = f", though {_listed(forward.values())}" if forward else ""
        why = "kroute has the answers of pods forwarded" if overrules else "nothing drops the answers of pods"
        found.append(ok(FIREWALL, f"{why}{passing}"))
    if deciding := [*incoming.values(), *_base_chains(unseen, "input")]:
        message = f"{_listed(deciding)}: Services are reached only by those whom it lets in"
        allow = "let in the pods' networks, and clients to node ports and external addresses (docs/troubleshooting.md)"
        found.append(warning(FIREWALL, message, allow))
    return found


async def _filter_table(variant: Variant, nft_chains: Iterable[NftChain]) -> SavedTable | None:
    """The filter table; None if there is none, or no tool that shows it."""
    wanted = (_nft_family(variant), _TABLE)
    if variant.name == "nft" and not any((chain.family, chain.table) == wanted for chain in nft_chains):
        return None
    return next(iter(parse_saved(await save(variant, _TABLE) or "")), None)


def _nft_family(variant: Variant) -> str:
    return "ip6" if variant.family == socket.AF_INET6 else "ip"


def _gates(tables: Mapping[Variant, SavedTable], chain: str) -> dict[Variant, Gate]:
    refusals = {variant: _refusal(table, chain) for variant, table in tables.items()}
    return {variant: Gate(f"{chain} of {variant}", how) for variant, how in refusals.items() if how}


def _base_chains(chains: Iterable[NftChain], hook: str) -> list[Gate]:
    """Chains that no iptables tool shows. Their rules are not read."""
    return [
        Gate(f"nft chain {chain.family} {chain.table} {chain.name}", "policy drop")
        for chain in chains
        if chain.family in _OF_PACKETS and chain.hook == hook and chain.drops
    ]


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
    message = f"{gate}: the answers of pods are lost there unless it accepts established connections"
    look = f"look at `nft list chain {gate.name.removeprefix('nft chain ')}`"
    return warning(FIREWALL, message, f"{look}; `ct state established,related accept` lets them through")


def _not_accepted(gate: Gate, variant: Variant) -> Finding:
    message = f"{gate}: the answers of pods are lost there, and what kroute accepts in nf_tables does not help"
    rule = "-I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    return warning(FIREWALL, message, f"run `{variant.tool('').rstrip('-')} {rule}` at every boot")


def _unread(variant: Variant) -> Finding:
    message = f"table {_TABLE} of {variant} is in use, and cannot be read without CAP_NET_RAW"
    look = f"run `{variant.tool('save')} -t {_TABLE}` on the node"
    return warning(FIREWALL, message, f"{look}: nothing may drop the answers of pods in FORWARD")


def accepts_established(table: SavedTable, chain: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a rule accepts every packet of an established connection, in the chain or in one that all packets meet.

    A rule before it that refuses is not looked for: it is meant.
    """
    for rule in table.rules_of(chain):
        conditions = set(_conditions(rule))
        if conditions <= _STATE_MATCH and rule.target == "ACCEPT" and "ESTABLISHED" in rule.text:
            return True
        is_met_by_all = not conditions and rule.target in table.chains and rule.target not in seen
        if is_met_by_all and accepts_established(table, rule.target, seen | {chain}):
            return True
    return False


def _listed(gates: Iterable[Gate]) -> str:
    return ", ".join(map(str, gates))


MARKS = "marks"
SAME_MEANING = ("KUBE-", "FLANNEL-")
"""The chains in which kubelet, kube-proxy and flannel give the bit 0x4000 the meaning that it has for kroute."""
MOST_NAMED = 3
"""Places that a finding names."""
_RESTORE = 2
"""XT_CONNMARK_RESTORE: the connection's mark becomes the packet's."""
_XT_MARK = struct.Struct("=II")
_XT_CONNMARK = struct.Struct("=IIIB")


_SOURCE = 3
"""NFTA_META_SREG: the expression sets, and does not load."""
_Registers = dict[bytes, tuple[int, int] | None]
"""What is in a register that comes from the mark, or from a number: the bits of the mark that are kept, and those that
were added."""


class Use(NamedTuple):
    """A rule tests or changes the bits `mask` of the packet mark; of these it names `value`."""

    place: str
    value: int
    mask: int

    def concerns(self, bit: int) -> bool:
        return bool(self.value & bit or (self.mask != WHOLE_MARK and self.mask & bit))


async def uses_of_marks(
    nftables: Nftables,
    tables: Iterable[tuple[str, str]],
    policy_rules: Iterable[PolicyRule],
    *,
    reads_legacy: bool,
) -> list[Use]:
    """The rules of all other programs about the packet mark. `tables` are those of nf_tables, by family and name.

    `reads_legacy`: as in `check_host_firewall`. Raises KernelError.
    """
    rules = [rule for rule in policy_rules if rule.table != STEERING]
    found = [Use(str(rule), rule.mark, rule.mask) for rule in rules if rule.mark is not None]
    if reads_legacy:
        found += [use async for use in _legacy()]
    numbers = {name: number for number, name in FAMILIES.items() if name in _OF_PACKETS}
    for family, name in tables:
        if family in numbers and name != TABLE:
            read = await nftables.rules(Table(numbers[family], name), lambda _, rule: list(_of_nft(rule)) or None)
            for uses in read[2] if read is not None else ():
                found += [use._replace(place=f"chain {use.place} of nft table {family} {name}") for use in uses]
    return found


def check_marks(settings: Settings, uses: Sequence[Use]) -> list[Finding]:
    """Whether the marks of the settings are kroute's alone."""
    marks = {"--masquerade-mark": settings.masquerade_mark}
    if settings.direct_return:
        marks["--direct-return-mark"] = settings.direct_return_mark
    found = []
    for option, mark in marks.items():
        places = list(dict.fromkeys(use.place for use in uses if use.concerns(mark)))
        if option == "--masquerade-mark":
            places = [place for place in places if not any(f"chain {prefix}" in place for prefix in SAME_MEANING)]
        if places:
            more = f" and {len(places) - MOST_NAMED} more" if len(places) > MOST_NAMED else ""
            message = f"{option} {mark:#x} is also a mark of another program: {', '.join(places[:MOST_NAMED])}{more}"
            next_step = f"choose another bit with {option}; docs/neighbours.md has those that are in use"
            found.append(warning(MARKS, message, next_step))
    return found or [ok(MARKS, f"no other program here uses {' or '.join(f'{mark:#x}' for mark in marks.values())}")]


async def _legacy() -> AsyncIterator[Use]:
    for variant in [variant for variant in VARIANTS if variant.name == "legacy"]:
        for table in parse_saved(await save(variant) or ""):
            for rule in table.rules:
                if "mark" in rule.text and not rule.text.startswith(PREFIX):
                    for value, mask in _of_iptables(rule):
                        yield Use(f"chain {rule.chain} of {table.name} ({variant})", value, mask)


def _of_iptables(rule: SavedRule) -> Iterator[tuple[int, int]]:
    extension = ""
    for option, word in zip(rule.words, rule.words[1:], strict=False):
        if option in {"-m", "-j"}:
            extension = word
        is_packets = extension in {"mark", "MARK"} and option in {"--mark", "--set-xmark", "--set-mark"}
        if is_packets or (extension == "CONNMARK" and option == "--nfmask" and "--restore-mark" in rule.words):
            with suppress(ValueError):
                value, _, mask = word.partition("/")
                number = int(value, 0)
                yield (number, int(mask, 0) if mask else WHOLE_MARK) if is_packets else (0, number)


def _of_nft(rule: NftRule) -> Iterator[Use]:
    """What the rule of another program does with the mark; an expression that cannot be understood is left out."""
    registers: _Registers = {}
    for expression in () if rule.chain.startswith(PREFIX) else rule.expressions:
        with suppress(*UNINTELLIGIBLE):
            name, parts = parse_expression(expression)
            use = _of_xtables(parts) if name in {"match", "target"} else _of_expression(name, parts, registers)
            if use is not None:
                yield Use(rule.chain, *use)


def _of_xtables(parts: Mapping[int, bytes]) -> tuple[int, int] | None:
    """Value and mask of a match or target of x_tables' in the envelope in which iptables-nft writes it."""
    extension = to_text(parts[1])
    if extension in {"mark", "MARK"}:
        value, mask = _XT_MARK.unpack_from(parts[3])
        return value, mask
    if extension == "CONNMARK":
        _value, _of_connection, mask, mode = _XT_CONNMARK.unpack_from(parts[3])
        return (0, mask) if mode == _RESTORE else None
    return None


def _of_expression(name: str, parts: Mapping[int, bytes], registers: _Registers) -> tuple[int, int] | None:
    """Value and mask, if the expression compares or sets the mark."""
    is_mark = name == "meta" and int.from_bytes(parts[2], "big") == Meta.MARK
    if name == "meta" and _SOURCE in parts:
        known = registers.get(parts[_SOURCE]) if is_mark else None
        return (known[1], (WHOLE_MARK & ~known[0]) | known[1]) if known else None
    if name == "cmp":
        known = registers.get(parts[1])
        return (_number(parts[3]), known[0]) if known else None
    if name == "bitwise":
        known = registers.get(parts[1])
        registers[parts[2]] = (known[0] & _number(parts[4]), _number(parts[5])) if known else None
    elif name == "immediate":
        registers[parts[1]] = (0, _number(parts[2]))
    elif 1 in parts:
        registers[parts[1]] = (WHOLE_MARK, 0) if is_mark else None
    return None


def _number(content: bytes) -> int:
    """A mark, in the host's byte order."""
    return to_u32(attributes(content)[DATA_VALUE])


CALICO = "calico"
LINK = "kube-ipvs0"
"""Felix's KubeIPVSInterface."""
CHAIN = "cali-INPUT"
FORWARD_CHECK = "cali-forward-check"
"""Felix has this chain only while it knows the node for one with IPVS."""
BPF_LINK = "bpfin.cali"
WORKLOAD_LINKS = "cali"
"""The prefix of the links to pods (`InterfacePrefix`)."""
NFT_TABLE, NFT_PREFIX = "calico", "filter-"
"""Felix's nf_tables mode has one table, in which the names of chains begin with that of the legacy table."""


class CalicoTraces(NamedTuple):
    """What of Calico's is on the node. `knows_ipvs`: Felix treats it as a node with IPVS."""

    links: Set[str]
    has_chains: bool
    knows_ipvs: bool


async def calico_traces(kernel: NodeKernel, nft_chains: Iterable[NftChain]) -> CalicoTraces:
    """Look for Calico's links and chains, in legacy tables and among those of nf_tables. Reads only."""
    legacy = [client for variant, client in kernel.xtables.items() if variant.name == "legacy"]
    chains = {name for client in legacy for name in await client.chains("filter")}
    for chain in nft_chains:
        chains.add(chain.name.removeprefix(NFT_PREFIX) if chain.table == NFT_TABLE else chain.name)
    links = {name for name in await kernel.links.names() if name.startswith(WORKLOAD_LINKS) or name == BPF_LINK}
    return CalicoTraces(links, CHAIN in chains, FORWARD_CHECK in chains)


def check_calico(traces: CalicoTraces, dummy_interface: str) -> Finding:
    """Whether the dummy interface has the name that Calico needs, and whether Felix has seen it."""
    if not (traces.links or traces.has_chains):
        return ok(CALICO, f"not on this node, so the VIPs may be on any interface ({dummy_interface})")
    if BPF_LINK in traces.links:
        next_step = "set bpfEnabled to false in the FelixConfiguration, or leave Services to Calico and remove kroute"
        return warning(CALICO, "its eBPF mode is at work here, which serves Services itself", next_step)
    if dummy_interface != LINK:
        message = "policies of pods on this node do not hold for calls through Services"
        why = f"Felix looks for {LINK}, and the VIPs are on {dummy_interface}"
        return failed(CALICO, f"{message}: {why}", f"run kroute with `--dummy-interface {LINK}`, its default")
    if traces.has_chains and not traces.knows_ipvs:
        message = f"Felix does not know yet that this node has IPVS: its chain {FORWARD_CHECK} is missing"
        next_step = f"start kroute, and if {LINK} exists already, restart calico-node on this node"
        return warning(CALICO, message, next_step)
    return ok(CALICO, f"its policies hold for calls through Services, by the name {LINK}")
