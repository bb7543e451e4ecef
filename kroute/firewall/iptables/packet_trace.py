"""Traces the first packet of a connection through the rules that kroute writes.

The rules are not restated here: the trace parses the text that is written to the kernel, and looks up either the
desired or the applied sets, whichever the caller passes.
"""

from collections.abc import Callable, Mapping
from ipaddress import ip_address, ip_network

from kroute.firewall.iptables.address_sets import BY_NAME
from kroute.firewall.packet_trace import Ending, Packet, TraceResult, is_in_set, is_interface
from kroute.firewall.sets import SHAPES, ElementPart, End, Sets
from kroute.kernel.iptables.rule import Extension, Parameter, ParsedRule, parse_rule
from kroute.kernel.iptables.xtables import TableRules

ENDS: Mapping[str, Ending] = {
    "ACCEPT": Ending.ACCEPTED,
    "DROP": Ending.DROPPED,
    "REJECT": Ending.REFUSED,
    "MASQUERADE": Ending.TRANSLATED,
    "SNAT": Ending.TRANSLATED,
}
"""Targets that end the packet's way through the table. RETURN ends only a chain; MARK and jumps end neither."""

_PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmpv6": 58}


def trace_packet(rules: TableRules, hook: str, packet: Packet, sets: Sets) -> TraceResult:
    """Send a packet through the rules that a built-in chain (`hook`) jumps to."""
    met: list[str] = []
    for jump in rules.jumps_by_chain().get(hook, ()):
        rule = parse_rule(jump, packet.family.number)
        if not _matches(rule, packet, sets):
            continue
        target, packet = _trace_chain(rules, rule.target.name, packet, sets, met)
        if target.name in ENDS:
            return TraceResult(ENDS[target.name], " ".join(_values(target)), tuple(met), packet.mark)
    return TraceResult(Ending.NONE, "", tuple(met), packet.mark)


_RETURN = Extension("RETURN")


def _trace_chain(rules: TableRules, chain: str, packet: Packet, sets: Sets, met: list[str]) -> tuple[Extension, Packet]:
    for text in rules.chains[chain]:
        rule = parse_rule(text, packet.family.number)
        if not _matches(rule, packet, sets):
            continue
        target = rule.target
        met.append(_comment(rule) or text)
        if target.name == "MARK":
            packet = packet._replace(mark=_marked(packet.mark, target))
        elif target.name in rules.chains:
            target, packet = _trace_chain(rules, target.name, packet, sets, met)
            if target.name in ENDS:
                return target, packet
        else:
            return target, packet
    return _RETURN, packet


def _matches(rule: ParsedRule, packet: Packet, sets: Sets) -> bool:
    return (
        _is(rule.source, lambda text: ip_address(packet.source) in ip_network(text))
        and _is(rule.destination, lambda text: ip_address(packet.destination) in ip_network(text))
        and _is(rule.protocol, lambda text: packet.protocol == _PROTOCOLS[text])
        and _is(rule.in_interface, lambda text: is_interface(packet.in_interface, text))
        and not rule.out_interface  # those of tunnels; packets are traced as if by another
        and all(_match(match, packet, sets) for match in rule.matches)
    )


def _is(text: str, holds: Callable[[str], bool]) -> bool:
    """Whether a part of a rule's header matches. The empty part always does; `!` inverts the rest."""
    if not text:
        return True
    return not holds(text[1:]) if text.startswith("!") else holds(text)


def _match(extension: Extension, packet: Packet, sets: Sets) -> bool:
    return all(
        _MATCHES[extension.name](parameter, packet, sets) != parameter.inverted for parameter in extension.parameters
    )


def _in_set(parameter: Parameter, packet: Packet, sets: Sets) -> bool:
    """Whether the set holds the packet's key: an address, or address, protocol and port, with perhaps a 2nd address."""
    name, directions = parameter.values
    which = BY_NAME[name]
    ends = (End(end) for end in directions.split(","))
    by = tuple(end for end, part in zip(ends, SHAPES[which], strict=True) if part is not ElementPart.PORT)
    return is_in_set(packet, which, sets, by=by)


_MATCHES: Mapping[str, Callable[[Parameter, Packet, Sets], bool]] = {
    "addrtype": lambda _, __, ___: True,
    "comment": lambda _, __, ___: True,
    "conntrack": lambda parameter, _, __: "NEW" in parameter.values[0].split(","),
    "mark": lambda parameter, packet, _: _has_mark(parameter, packet),
    "set": _in_set,
    "tcp": lambda parameter, _, __: _has_flags(*parameter.values),
    "icmp": lambda _, __, ___: False,
    "icmp6": lambda _, __, ___: False,
}
"""The matches that kroute's rules use: whether the first packet of a connection to a port matches a parameter."""


def _has_flags(among: str, wanted: str) -> bool:
    """Whether a packet that has SYN alone has the wanted flags and no others of these."""
    return ("SYN" if "SYN" in among.split(",") else "NONE") == wanted


def _has_mark(parameter: Parameter, packet: Packet) -> bool:
    value, mask = _number_and_mask(parameter.values[0])
    return packet.mark & mask == value


def _marked(mark: int, target: Extension) -> int:
    """The mark after `--set-xmark VALUE/MASK`: the bits of MASK are cleared, then those of VALUE are inverted."""
    value, mask = _number_and_mask(target.parameters[0].values[0])
    return (mark & ~mask) ^ value


def _number_and_mask(text: str) -> tuple[int, int]:
    value, _, mask = text.partition("/")
    return int(value, 0), int(mask, 0) if mask else 0xFFFFFFFF


def _values(extension: Extension) -> list[str]:
    return [value for parameter in extension.parameters for value in parameter.values]


def _comment(rule: ParsedRule) -> str:
    return next((match.parameters[0].values[0] for match in rule.matches if match.name == "comment"), "")
