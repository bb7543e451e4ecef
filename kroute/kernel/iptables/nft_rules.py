"""Reads and deletes the rules that iptables-nft has written, over netlink: this needs no tool, and no module of Python.

iptables-nft keeps `nat`, `filter` … as tables of nf_tables, of the families ip and ip6, and the built-in chains as base
chains of their names. A verdict is nf_tables' own. Other parts of a rule are expressions of nf_tables, or x_tables'
matches and targets in an envelope; each version of the tool chooses for itself. Rules of the built-in chains are told
in the words of iptables-save as far as another proxy's are recognised by these; other matches by their name alone.
"""

import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_network

from kroute.kernel.errors import UNINTELLIGIBLE
from kroute.kernel.iptables.tools import SavedRule, SavedTable
from kroute.kernel.netlink.message import attributes, to_be32
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.expressions import (
    DATA_VALUE,
    DATA_VERDICT,
    VERDICT_CODE,
    Header,
    Meta,
    VerdictCode,
    chain_named_by,
    parse_expression,
)
from kroute.kernel.nftables.objects import (
    FAMILY_NAMES,
    DeleteChain,
    DeleteRule,
    FlushChain,
    NftChange,
    NftRule,
    Table,
)

TABLES = ("raw", "mangle", "nat", "filter")
BUILT_IN = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})


async def read_rules(
    nftables: Nftables, table: Table, is_theirs: Callable[[str], object], whole: Collection[str] = ()
) -> tuple[int, SavedTable] | None:
    """A table with the rules of some chains, and the generation of nf_tables; None if there is no such table.

    These are the built-in chains and those in `whole`. Of other chains only the jumps to a chain for which `is_theirs`
    is true are kept: they may have tens of thousands of rules. Raises KernelError.
    """

    def keep(handle: int, rule: NftRule) -> SavedRule | tuple[str, str] | None:
        if rule.chain in BUILT_IN or rule.chain in whole:
            return SavedRule(" ".join([rule.chain, *_words(table.family, rule)]), handle)
        target = _jump_of(rule)
        return (rule.chain, target) if target and is_theirs(target) else None

    found = await nftables.rules(table, keep)
    if found is None:
        return None
    generation, chains, kept = found
    built_in = {name for name, chain in chains.items() if chain.hook and name in BUILT_IN}
    return generation, SavedTable(
        table.name,
        policies={name: "DROP" if chains[name].drops else "ACCEPT" for name in built_in},
        chains=[name for name in chains if name not in built_in],
        rules=[each for each in kept if isinstance(each, SavedRule)],
        jumps=[each for each in kept if isinstance(each, tuple)],
    )


def deletion_of(rules: Iterable[SavedRule], chains: Sequence[str]) -> list[NftChange]:
    """The changes that delete rules which `read_rules` has read, and chains with their rules, whatever their order.

    The kernel refuses them with EBUSY while another rule jumps to one of the chains.
    """
    return [
        *(DeleteRule(rule.chain, rule.handle) for rule in rules),
        *map(FlushChain, chains),
        *map(DeleteChain, chains),
    ]


def _jump_of(rule: NftRule) -> str:
    """The chain to which a rule leads: a verdict is the last expression."""
    try:
        return chain_named_by(rule.expressions[-1])
    except UNINTELLIGIBLE:
        return ""


_NETWORK_FIELDS: dict[str, dict[int, str]] = {
    "ip": {9: "-p", 12: "-s", 16: "-d"},
    "ip6": {6: "-p", 8: "-s", 24: "-d"},
}
"""Options by the offsets of their fields in the network header."""
_PORTS = {0: "--sport", 2: "--dport"}
_META = {Meta.IIFNAME: "-i", Meta.OIFNAME: "-o", Meta.L4PROTO: "-p"}
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp", 132: "sctp"}
_NOT_EQUAL = 1
"""NFT_CMP_NEQ."""
_XT_PORTS = {"tcp": (0, 4, 11), "udp": (0, 4, 8), "sctp": (4, 0, 288)}
"""Where x_tables' matches have the source ports, the destination ports, and the bits of what is negated."""
_FIRST_AND_LAST = struct.Struct("=HH")
_XT_MARK = struct.Struct("=II")
_XT_IPVS = struct.Struct("=32x2xBB2xBB")
"""struct xt_ipvs_mtinfo: protocol, forwarding method, what is negated, what is asked for."""
_IPVS_DIRECTION, _IPVS_METHOD = 0x10, 0x20
_XT_SET = struct.Struct("=HBB")
"""The beginning of struct xt_set_info: the set's number in the kernel (its name is not there), dimensions, flags."""
_SET_INVERTED, _SET_SOURCE = 1, 2
_IPVS_METHODS = {0: "MASQ", 2: "IPIP", 3: "GATE"}
_PLAIN_WORD = re.compile(r"[\w.,:/@%+=-]+")
_VERDICTS = {VerdictCode.ACCEPT: "ACCEPT", VerdictCode.DROP: "DROP", VerdictCode.RETURN: "RETURN"}

_Loaded = dict[bytes, tuple[str, bytes]]
"""What a register was loaded with: the option of iptables that asks for it, and a mask."""


def _words(family: int, rule: NftRule) -> Iterator[str]:
    """The rule in the words of iptables-save. An expression that cannot be understood is left out."""
    loaded: _Loaded = {}
    options = _NETWORK_FIELDS[FAMILY_NAMES[family]]
    verdict: list[str] = []
    for expression in rule.expressions:
        with suppress(*UNINTELLIGIBLE):
            name, parts = parse_expression(expression)
            if name in {"payload", "meta"}:
                loaded[parts[1]] = (_option(name, parts, options), b"")
            elif name == "bitwise":
                loaded[parts[2]] = (loaded[parts[1]][0], attributes(parts[4])[DATA_VALUE])
            elif name == "cmp":
                yield from _comparison(family, *loaded[parts[1]], parts)
            elif name == "match":
                yield from _match(_name(parts[1]), parts[3])
            elif name == "masq":
                verdict = ["-j", "MASQUERADE"]
            elif name == "target":
                verdict = _target(_name(parts[1]), parts[3])
            elif name == "immediate":
                loaded[parts[1]] = ("", b"")
                verdict = _verdict(expression, parts) or verdict
    if rule.comment:
        yield from ("-m", "comment", "--comment", _quoted(rule.comment))
    yield from verdict


def _option(name: str, parts: dict[int, bytes], options: dict[int, str]) -> str:
    """The option that asks for what a `payload` or `meta` expression loads; "" if there is none."""
    if name == "meta":
        return _META.get(Meta(to_be32(parts[2])), "")
    known = {Header.NETWORK: options, Header.TRANSPORT: _PORTS}
    return known.get(Header(to_be32(parts[2])), {}).get(to_be32(parts[3]), "")


def _comparison(family: int, option: str, mask: bytes, parts: dict[int, bytes]) -> Iterator[str]:
    value = attributes(parts[3])[DATA_VALUE]
    if not option:
        return
    if option in {"-s", "-d"}:
        said = _network(family, value, mask)
    elif option == "-p":
        said = _PROTOCOLS.get(value[0], str(value[0]))
    elif option in {"-i", "-o"}:
        said = _quoted(_name(value))
    else:
        said = str(int.from_bytes(value[:2], "big"))
    if to_be32(parts[2]) == _NOT_EQUAL:
        yield "!"
    yield from (option, said)


def _network(family: int, value: bytes, mask: bytes) -> str:
    """A network. Where its prefix ends with a byte, only the bytes of the prefix are compared."""
    size = 4 if FAMILY_NAMES[family] == "ip" else 16
    ones = int.from_bytes(mask, "big").bit_count() if mask else 8 * len(value)
    return str(ip_network((value.ljust(size, b"\0")[:size], ones)))


def _match(name: str, said: bytes) -> Iterator[str]:
    yield from ("-m", name)
    if name == "comment":
        yield from ("--comment", _quoted(_name(said)))
    elif name in _XT_PORTS:
        source, destination, negated = _XT_PORTS[name]
        for option, at in (("--sport", source), ("--dport", destination)):
            first, last = _FIRST_AND_LAST.unpack_from(said, at)
            if first == last > 0 and not said[negated]:  # sctp has 0 where no port is asked for
                yield from (option, str(first))
    elif name == "ipvs":
        _protocol, method, negated, asked = _XT_IPVS.unpack_from(said)
        if asked & _IPVS_DIRECTION:
            yield from ("--vdir", "REPLY" if negated & _IPVS_DIRECTION else "ORIGINAL")
        if asked & _IPVS_METHOD and not negated & _IPVS_METHOD:
            yield from ("--vmethod", _IPVS_METHODS.get(method, str(method)))
    elif name == "set":
        number, _dimensions, flags = _XT_SET.unpack_from(said)
        yield from ("!", "--match-set") if flags & _SET_INVERTED else ("--match-set",)
        yield from (f"#{number}", "src" if flags & _SET_SOURCE else "dst")


def _target(name: str, said: bytes) -> list[str]:
    if name != "MARK":
        return ["-j", name]
    value, mask = _XT_MARK.unpack_from(said)
    return ["-j", name, "--set-xmark", f"{value:#x}/{mask:#x}"]


def _verdict(expression: bytes, parts: dict[int, bytes]) -> list[str]:
    found = attributes(attributes(parts[2]).get(DATA_VERDICT, b""))
    if not found:
        return []
    code = int.from_bytes(found[VERDICT_CODE], "big", signed=True)
    if code in {VerdictCode.JUMP, VerdictCode.GOTO}:
        return ["-j" if code == VerdictCode.JUMP else "-g", chain_named_by(expression)]
    return ["-j", _VERDICTS[VerdictCode(code)]]


def _name(content: bytes) -> str:
    """A text that ends with NUL, and need not be UTF-8."""
    return content.partition(b"\0")[0].decode(errors="replace")


def _quoted(word: str) -> str:
    """A word as iptables-save prints it."""
    if _PLAIN_WORD.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
