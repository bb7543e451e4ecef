"""The statements that do something with packets. The last one of a rule may end the packet's way."""

from kroute.firewall.nftables.matches import AT, has_protocol
from kroute.firewall.nftables.statements import Action, Statement, Verb
from kroute.firewall.packets import Packet
from kroute.firewall.sets import Sets
from kroute.kernel.netlink.message import pack_address
from kroute.kernel.nftables.expressions import (
    Decision,
    Meta,
    Refusal,
    bitwise,
    immediate,
    masquerade,
    meta,
    number,
    reject,
    set_meta,
    source_nat,
    verdict,
)
from kroute.model.addresses import Family
from kroute.model.plan import Protocol

_ALL_BITS = 0xFFFFFFFF
_PORT_UNREACHABLE = {Family.IPV4: 3, Family.IPV6: 4}
_PROTOCOL_UNREACHABLE = 2
"""Codes of ICMP's and ICMPv6's "destination unreachable"."""


def set_mark(mark: int) -> Statement:
    """Give packets the mark."""
    return _marking(f"| {mark:#010x}", mark, mark)


def clear_mark(mark: int) -> Statement:
    """Take the mark from packets."""
    return _marking(f"& {mark ^ _ALL_BITS:#010x}", mark, 0)


def jump(chain: str) -> Statement:
    return _ending(f"jump {chain}", Action(Verb.JUMP, chain), verdict(Decision.JUMP, chain))


def leave() -> Statement:
    """Go back to the chain from which this one was jumped to."""
    return _ending("return", Action(Verb.RETURN), verdict(Decision.RETURN))


def drop() -> Statement:
    return _ending("drop", Action(Verb.DROP), verdict(Decision.DROP))


def masqueraded() -> Statement:
    """Replace the source by one of this node's addresses, and the port by one at random."""
    return _ending("masquerade fully-random", Action(Verb.TRANSLATE), masquerade(fully_random=True))


def translated(family: Family, address: str) -> Statement:
    """Replace the source by this address, and the port by one at random."""
    return _ending(
        f"snat to {address} fully-random",
        Action(Verb.TRANSLATE, address),
        immediate(AT, pack_address(address)),
        source_nat(family.number, AT, fully_random=True),
    )


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

    return Statement(text, expressions, meet, Action(Verb.REFUSE, detail))


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
