"""What rules consist of: each statement is one value for the kernel, for people, and for the packet trace.

Most statements match packets. Those at the end do something with packets; the last one of a rule may end their way.
"""

from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import NamedTuple

import msgspec

from kroute.firewall.nftables.names import set_name
from kroute.firewall.packet_trace import Ending, Packet, is_in_set, is_interface
from kroute.firewall.policy import local_pods_interface
from kroute.firewall.sets import LOOKED_UP, SHAPES, ElementPart, End, Sets
from kroute.kernel.netlink.message import pack_address, unpack_address
from kroute.kernel.nftables.expressions import (
    Ct,
    CtState,
    Header,
    Meta,
    Refusal,
    RouteType,
    VerdictCode,
    bitwise,
    compare,
    ct,
    destination_nat,
    fib_type_of_destination,
    immediate,
    lookup,
    masquerade,
    meta,
    number,
    payload,
    register,
    reject,
    set_meta,
    source_nat,
    verdict,
)
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet, Protocol
from kroute.settings import Settings

_ALL_BITS = 0xFFFFFFFF
_PORT_UNREACHABLE = {Family.IPV4: 3, Family.IPV6: 4}
_PROTOCOL_UNREACHABLE = 2
"""Codes of ICMP's and ICMPv6's "destination unreachable"."""

AT = register(0)
"""The register in which single values are compared, and in which keys begin."""
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
"""Bits of the 14th byte of a TCP header."""
INTERFACE_NAME = 16
"""Bytes of an interface's name in a register, padded with zeros (IFNAMSIZ)."""
REPLY = 1
"""IP_CT_DIR_REPLY."""


_AS_IT_IS = ("", b"", b"")


class Action(msgspec.Struct, frozen=True):
    """What ends a packet's way through the hook or, with Ending.NONE, leads it on: to `chain`; if that is "", back.

    `detail` is how a packet is refused, and the source to which it is translated; "" if the kernel chooses the source.
    """

    ending: Ending = Ending.NONE
    detail: str = ""
    chain: str = ""


class Statement(msgspec.Struct, frozen=True):
    """A match or an action in the rules of one family.

    `text` is what nft prints, `expressions` what the kernel has. `meet` takes the first packet of a connection to a
    port, a SYN if it is TCP, and returns it as it is behind the statement; None if it does not match.
    """

    text: str
    expressions: tuple[bytes, ...]
    meet: Callable[[Packet, Sets], Packet | None]
    action: Action | None = None


def matching(text: str, expressions: tuple[bytes, ...], matches: Callable[[Packet, Sets], bool]) -> Statement:
    """A statement that only looks at packets."""
    return Statement(text, expressions, lambda packet, sets: packet if matches(packet, sets) else None)


def always(text: str, *expressions: bytes) -> Statement:
    """A match that every traced packet passes."""
    return matching(text, expressions, lambda _packet, _sets: True)


def never(text: str, *expressions: bytes) -> Statement:
    """A match that no traced packet passes."""
    return matching(text, expressions, lambda _packet, _sets: False)


class Rule(NamedTuple):
    """The statements in the order in which a packet meets them, and why there is such a rule."""

    statements: tuple[Statement, ...]
    comment: str

    @property
    def text(self) -> str:
        """The rule as nft prints it, with its comment."""
        return " ".join(
            [statement.text for statement in self.statements if statement.text] + [f'comment "{self.comment}"']
        )

    @property
    def expressions(self) -> tuple[bytes, ...]:
        return tuple(expression for statement in self.statements for expression in statement.expressions)

    @property
    def action(self) -> Action | None:
        return self.statements[-1].action

    def meet(self, packet: Packet, sets: Sets) -> Packet | None:
        """The packet behind the rule, perhaps with another mark; None if it does not match."""
        for statement in self.statements:
            after = statement.meet(packet, sets)
            if after is None:
                return None
            packet = after
        return packet


def rule(comment: str, *statements: Statement) -> Rule:
    return Rule(statements, comment)


class PacketAddresses(msgspec.Struct, frozen=True):
    """Where a family's packets have their addresses, in bytes, and what nft calls them."""

    word: str
    length: int
    offsets: dict[End, int]

    def load(self, to: int, end: End) -> bytes:
        """The expression that loads an address into a register."""
        return payload(to, Header.NETWORK, self.offsets[end], self.length)

    def ends_of_network(self, length: int | None) -> list[tuple[str, bytes, bytes]]:
        """How an address becomes the first and the last one of its network of this prefix length; None: it stays.

        nft's operator, the bits to keep, and those to set.
        """
        if length is None:
            return [_AS_IT_IS]
        if length == 8 * self.length:
            return [_AS_IT_IS, _AS_IT_IS]
        hosts = (1 << 8 * self.length - length) - 1
        last, none = hosts.to_bytes(self.length, "big"), bytes(self.length)
        kept = bytes(byte ^ 0xFF for byte in last)
        return [(f" & {unpack_address(kept)}", kept, none), (f" | {unpack_address(last)}", kept, last)]

    def name(self, end: End) -> str:
        return f"{self.word} {'saddr' if end is End.SOURCE else 'daddr'}"


ADDRESSES = {
    Family.IPV4: PacketAddresses("ip", 4, {End.SOURCE: 12, End.DESTINATION: 16}),
    Family.IPV6: PacketAddresses("ip6", 16, {End.SOURCE: 8, End.DESTINATION: 24}),
}
_PING = {Family.IPV4: ("icmp", 1, 8), Family.IPV6: ("icmpv6", 58, 128)}
"""nft's word, and the numbers of the protocol and of an echo request."""


def in_set(
    family: Family, which: AddressSet, *, by: tuple[End, ...] = (), inverted: bool = False, length: int | None = None
) -> Statement:
    """Packets whose addresses, protocol and port are in a set. `by` names the addresses; () means `LOOKED_UP`.

    Of a set with networks behind other parts, the networks of this prefix length are looked up.
    """
    addresses = ADDRESSES[family]
    ends = iter(by or LOOKED_UP[which])
    names: list[str] = []
    loads: list[bytes] = []
    offset = 0
    for part in SHAPES[which]:
        if part is ElementPart.PORT:
            names += ["meta l4proto", "th dport"]
            loads += [meta(register(offset), Meta.L4PROTO), payload(register(offset + 4), Header.TRANSPORT, 2, 2)]
            offset += 8
            continue
        end = next(ends)
        for operator, mask, bits in addresses.ends_of_network(length) if part is ElementPart.NETWORK else [_AS_IT_IS]:
            names.append(addresses.name(end) + operator)
            loads.append(addresses.load(register(offset), end))
            if mask:
                loads.append(bitwise(register(offset), mask, bits))
            offset += addresses.length
    text = f"{' . '.join(names)} {'!= ' if inverted else ''}@{set_name(which)}"
    looked_up = lookup(set_name(which), AT, inverted=inverted)
    return matching(
        text,
        (*loads, looked_up),
        lambda packet, sets: is_in_set(packet, which, sets, by=by, length=length) is not inverted,
    )


def not_in_set(family: Family, which: AddressSet) -> Statement:
    return in_set(family, which, inverted=True)


def of_no_connection() -> Statement:
    """The first packet of a connection, and what conntrack calls invalid.

    Invalid are SYN-FIN, SYN-ACK, and packets with a wrong checksum, for example. IPVS makes a connection of every
    packet of UDP and of every segment that has SYN (tcp_conn_schedule), so these are judged like the others.
    """
    return always("ct state invalid,new", *_has_state(CtState.INVALID | CtState.NEW))


def stray_error(family: Family) -> Statement:
    """ICMP messages about a packet of which conntrack knows nothing. IPVS may know its connection."""
    word = "icmp" if family is Family.IPV4 else "ipv6-icmp"
    _, protocol, _ = _PING[family]
    return never(f"ct state invalid meta l4proto {word}", *_has_state(CtState.INVALID), *has_protocol(protocol))


def answer() -> Statement:
    """Packets that go back to where their connection comes from."""
    is_reply = ct(AT, Ct.DIRECTION), compare(AT, bytes([REPLY]))
    return never("ct state established ct direction reply", *_has_state(CtState.ESTABLISHED), *is_reply)


def without_syn() -> Statement:
    """TCP packets that open no connection.

    After conntrack was loaded or flushed, such a packet of an established connection is NEW or INVALID
    (`nf_conntrack_tcp_loose`). Conntrack begins with the first rule that needs it: on a node that another proxy left
    without one, kroute's own.
    """
    return never("tcp flags ! syn", *_tcp_flags(SYN, 0, equal=True))


def more_than_syn() -> Statement:
    """TCP packets that may have SYN, and have a flag that no client's first packet has."""
    return never("tcp flags fin,rst,ack", *_tcp_flags(FIN | RST | ACK, 0, equal=False))


def syn_ack() -> Statement:
    """The first answer of a TCP connection."""
    return never("tcp flags syn,ack / syn,ack", *_tcp_flags(SYN | ACK, SYN | ACK, equal=True))


def of_protocol(protocol: Protocol) -> Statement:
    text = f"meta l4proto {protocol.name.lower()}"
    return matching(text, has_protocol(protocol), lambda packet, _: packet.protocol == protocol)


def ping(family: Family) -> Statement:
    """Echo requests."""
    word, protocol, kind = _PING[family]
    is_request = payload(AT, Header.TRANSPORT, 0, 1), compare(AT, bytes([kind]))
    return never(f"{word} type echo-request", *has_protocol(protocol), *is_request)


def not_from_interface(pattern: str) -> Statement:
    """Packets that did not come in by an interface, or by one whose name begins with a prefix that ends in `+`.

    Those of this node's own processes match, because they have no input interface.
    """
    name = pattern.removesuffix("+")
    is_prefix = pattern.endswith("+")
    value = name.encode() if is_prefix else name.encode().ljust(INTERFACE_NAME, b"\0")
    return matching(
        f'iifname != "{name}{"*" if is_prefix else ""}"',
        (meta(AT, Meta.IIFNAME), compare(AT, value, equal=False)),
        lambda packet, _: not is_interface(packet.in_interface, pattern),
    )


def by_interface(prefix: str) -> Statement:
    """Packets that leave by an interface whose name begins like this. Packets are traced as if by another."""
    return never(f'oifname "{prefix}*"', meta(AT, Meta.OIFNAME), compare(AT, prefix.encode()))


def not_from_local_pods(settings: Settings, family: Family) -> Statement:
    """Packets that do not come from a local pod.

    If local pods are recognised by interface, packets of this node's own processes match. If by networks, those match
    unless their source is in one; with an empty set every packet matches.
    """
    interface = local_pods_interface(settings)
    return not_from_interface(interface) if interface is not None else not_in_set(family, AddressSet.POD_NETWORK)


def with_address(family: Family, end: End, text: str) -> Statement:
    """Packets with an address in a network, which is the text of one."""
    network, addresses = ip_network(text), ADDRESSES[family]
    is_one = network.prefixlen == network.max_prefixlen
    mask = () if is_one else (masked(network.netmask.packed),)
    return matching(
        f"{addresses.name(end)} {network.network_address if is_one else network}",
        (addresses.load(AT, end), *mask, compare(AT, network.network_address.packed)),
        lambda packet, _: ip_address(packet.source if end is End.SOURCE else packet.destination) in network,
    )


def has_mark(mark: int) -> Statement:
    return matching(
        f"meta mark & {mark:#010x} == {mark:#010x}",
        (meta(AT, Meta.MARK), masked(number(mark)), compare(AT, number(mark))),
        lambda packet, _: packet.mark & mark == mark,
    )


def on_no_link() -> Statement:
    """Packets to an address that is on no link of the node, before and after the kernel has routed them."""
    is_other = fib_type_of_destination(AT), compare(AT, number(RouteType.LOCAL), equal=False)
    return always("fib daddr type != local", *is_other)


def on_link() -> Statement:
    """Packets to an address that is on a link of the node."""
    return always("fib daddr type local", fib_type_of_destination(AT), compare(AT, number(RouteType.LOCAL)))


def has_protocol(protocol: int) -> tuple[bytes, ...]:
    return meta(AT, Meta.L4PROTO), compare(AT, bytes([protocol]))


def masked(mask: bytes) -> bytes:
    """The expression that keeps only these bits of what was loaded."""
    return bitwise(AT, mask, bytes(len(mask)))


def _has_state(state: int) -> tuple[bytes, ...]:
    return ct(AT, Ct.STATE), masked(number(state)), compare(AT, number(0), equal=False)


def _tcp_flags(among: int, flags: int, *, equal: bool) -> tuple[bytes, ...]:
    looked_at = payload(AT, Header.TRANSPORT, 13, 1), masked(bytes([among]))
    return (*has_protocol(Protocol.TCP), *looked_at, compare(AT, bytes([flags]), equal=equal))


def set_mark(mark: int) -> Statement:
    """Give packets the mark."""
    return _marking(f"| {mark:#010x}", mark, mark)


def clear_mark(mark: int) -> Statement:
    """Take the mark from packets."""
    return _marking(f"& {mark ^ _ALL_BITS:#010x}", mark, 0)


def jump(chain: str) -> Statement:
    return _ending(f"jump {chain}", Action(chain=chain), verdict(VerdictCode.JUMP, chain))


def leave() -> Statement:
    """Go back to the chain from which this one was jumped to."""
    return _ending("return", Action(), verdict(VerdictCode.RETURN))


def drop() -> Statement:
    return _ending("drop", Action(Ending.DROPPED), verdict(VerdictCode.DROP))


def masqueraded() -> Statement:
    """Replace the source by one of this node's addresses, and the port by one at random."""
    return _ending("masquerade fully-random", Action(Ending.TRANSLATED), masquerade(fully_random=True))


def translated(family: Family, address: str) -> Statement:
    """Replace the source by this address, and the port by one at random."""
    return _ending(
        f"snat to {address} fully-random",
        Action(Ending.TRANSLATED, address),
        immediate(AT, pack_address(address)),
        source_nat(family.number, AT, fully_random=True),
    )


def keep_destination(family: Family) -> Statement:
    """Replace the destination by itself, so that no other chain replaces it."""
    addresses = ADDRESSES[family]
    kept = addresses.load(AT, End.DESTINATION), destination_nat(family.number, AT)
    return _ending(f"dnat to {addresses.name(End.DESTINATION)}", Action(Ending.ACCEPTED), *kept)


def refusals(family: Family) -> list[Statement]:
    """The answers that make a client give up at once: each is for one protocol, the last one for all others.

    An SCTP client ignores "port unreachable", but gives up at "protocol unreachable" (RFC 4960, appendix C). There is
    no ICMPv6 message for that, so an SCTP client over IPv6 tries until its timeout.
    """
    found = [_refusal("tcp reset", "reject with tcp reset", Protocol.TCP, reject(Refusal.TCP_RESET))]
    if family is Family.IPV4:
        text = "meta l4proto sctp reject with icmp prot-unreachable"
        answer = reject(Refusal.ICMP, _PROTOCOL_UNREACHABLE)
        found.append(_refusal("icmp protocol unreachable", text, Protocol.SCTP, answer))
    word = "icmp" if family is Family.IPV4 else "icmpv6"
    detail = f"{word} port unreachable"
    return [*found, _refusal(detail, "reject", None, reject(Refusal.ICMP, _PORT_UNREACHABLE[family]))]


def _refusal(detail: str, text: str, protocol: Protocol | None, answer: bytes) -> Statement:
    """`text` is nft's: it leaves out what goes without saying, such as the protocol of a TCP reset."""
    expressions = (answer,) if protocol is None else (*has_protocol(protocol), answer)

    def meet(packet: Packet, _: Sets) -> Packet | None:
        return packet if protocol in {None, packet.protocol} else None

    return Statement(text, expressions, meet, Action(Ending.REFUSED, detail))


def _marking(text: str, cleared: int, flipped: int) -> Statement:
    """Clear some bits of the mark, then invert others."""
    expressions = (
        meta(AT, Meta.MARK),
        bitwise(AT, number(cleared ^ _ALL_BITS), number(flipped)),
        set_meta(Meta.MARK, AT),
    )

    def meet(packet: Packet, _: Sets) -> Packet:
        return packet._replace(mark=(packet.mark & ~cleared) ^ flipped)

    return Statement(f"meta mark set meta mark {text}", expressions, meet)


def _ending(text: str, action: Action, *expressions: bytes) -> Statement:
    return Statement(text, expressions, lambda packet, _: packet, action)
