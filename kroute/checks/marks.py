"""Whether another program uses the bits of the packet mark that kroute uses.

A rule uses a bit if it tests or changes that bit among others, or if it compares or sets the whole mark to a value that
has the bit. A rule for the whole mark that leaves the bit 0 is met by packets without the bit only, as ever.
"""

import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from kroute.checks.finding import Finding, ok, warning
from kroute.checks.host_firewall import Tools
from kroute.firewall.iptables.address_sets import PREFIX
from kroute.firewall.nftables.names import TABLE
from kroute.kernel.errors import UNINTELLIGIBLE
from kroute.kernel.iptables.nft_rules import RuleReader
from kroute.kernel.iptables.saved import SavedRule, parse_saved
from kroute.kernel.iptables.tools import VARIANTS
from kroute.kernel.net.policy_routing import WHOLE_MARK, PolicyRule
from kroute.kernel.net.steering import TABLE as STEERING
from kroute.kernel.netlink.message import attributes, to_text, to_u32
from kroute.kernel.nftables.chains import FAMILIES
from kroute.kernel.nftables.expressions import DATA_VALUE, Meta, parse_expression
from kroute.kernel.nftables.objects import Rule, Table
from kroute.settings import Settings

MARKS = "marks"
SAME_MEANING = ("KUBE-", "FLANNEL-")
"""The chains in which kubelet, kube-proxy and flannel give the bit 0x4000 the meaning that it has for kroute."""
_OF_PACKETS = frozenset({"ip", "ip6", "inet"})
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
    tools: Tools,
    nftables: RuleReader,
    tables: Iterable[tuple[str, str]],
    policy_rules: Iterable[PolicyRule],
    *,
    reads_legacy: bool,
) -> list[Use]:
    """The rules of all other programs about the packet mark. `tables` are those of nf_tables, by family and name.

    `reads_legacy`: as in `check_host_firewall`. Raises KernelError.
    """
    found = [Use(str(it), it.mark, it.mask) for it in policy_rules if it.mark is not None and it.table != STEERING]
    if reads_legacy:
        found += [it async for it in _legacy(tools)]
    numbers = {name: number for number, name in FAMILIES.items() if name in _OF_PACKETS}
    for family, name in tables:
        if family in numbers and name != TABLE:
            read = await nftables.rules(Table(numbers[family], name), lambda _, rule: list(_of_nft(rule)) or None)
            for uses in read[2] if read is not None else ():
                found += [it._replace(place=f"chain {it.place} of nft table {family} {name}") for it in uses]
    return found


def check_marks(settings: Settings, uses: Sequence[Use]) -> list[Finding]:
    """Whether the marks of the settings are kroute's alone."""
    marks = {"--masquerade-mark": settings.masquerade_mark}
    if settings.direct_return:
        marks["--direct-return-mark"] = settings.direct_return_mark
    found = []
    for option, mark in marks.items():
        places = [it.place for it in uses if it.concerns(mark)]
        if option == "--masquerade-mark":
            places = [it for it in places if not any(f"chain {prefix}" in it for prefix in SAME_MEANING)]
        places = list(dict.fromkeys(places))
        if places:
            more = f" and {len(places) - MOST_NAMED} more" if len(places) > MOST_NAMED else ""
            found.append(
                warning(
                    MARKS,
                    f"{option} {mark:#x} is also a mark of another program: {', '.join(places[:MOST_NAMED])}{more}",
                    f"choose another bit with {option}; docs/neighbours.md has those that are in use",
                )
            )
    return found or [ok(MARKS, f"no other program here uses {' or '.join(f'{it:#x}' for it in marks.values())}")]


async def _legacy(tools: Tools) -> AsyncIterator[Use]:
    for variant in VARIANTS:
        if variant.name != "legacy":
            continue
        for table in parse_saved(await tools.save(variant) or ""):
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


def _of_nft(rule: Rule) -> Iterator[Use]:
    """What the rule of another program does with the mark; an expression that cannot be understood is left out."""
    registers: _Registers = {}
    for expression in () if rule.chain.startswith(PREFIX) else rule.expressions:
        with suppress(*UNINTELLIGIBLE):
            name, parts = parse_expression(expression)
            is_of_xtables = name in {"match", "target"}
            use = _of_xtables(parts) if is_of_xtables else _of_expression(name, parts, registers)
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
