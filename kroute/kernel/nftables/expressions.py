"""The expressions of rules, encoded byte for byte as the kernel gives them back when it has no more to say.

An expression reads registers and writes one, or decides what becomes of the packet. Where one finds that the packet
does not match, the rule ends. Registers have names in bytes: `register(n)` begins n bytes after the first one's start.
A key of several parts begins each part at a multiple of four bytes. Attributes are in the order in which the kernel's
nft_*.c write them (include/uapi/linux/netfilter/nf_tables.h), and without the flag of nested ones, as there.
"""

import struct
import sys
from enum import IntEnum

from kroute.kernel.errors import UNINTELLIGIBLE
from kroute.kernel.netlink.message import attribute, attributes, be16, be32, text, to_text, u8

LIST_ELEMENT = 1
EXPRESSION_NAME, EXPRESSION_DATA = 1, 2
DATA_VALUE, DATA_VERDICT = 1, 2
VERDICT_CODE, VERDICT_CHAIN = 1, 2
FULLY_RANDOM = 0x10
"""NF_NAT_RANGE_PROTO_RANDOM_FULLY."""
NO_REGISTER = 0
"""NFT_REG_VERDICT, where a verdict goes."""

KNOWN_ATTRIBUTES = {
    "payload": 8,
    "meta": 3,
    "ct": 4,
    "bitwise": 7,
    "cmp": 3,
    "lookup": 5,
    "immediate": 2,
    "masq": 3,
    "nat": 7,
    "reject": 2,
    "fib": 3,
    "range": 4,
    "limit": 5,
    "log": 6,
}
"""The highest attribute of each expression that kroute knows the meaning of."""

_BE64 = struct.Struct("!Q")
_COUNTER_BYTES, _COUNTER_PACKETS = 1, 2


class Header(IntEnum):
    """Where the offset of a payload expression begins (enum nft_payload_bases)."""

    NETWORK = 1
    TRANSPORT = 2


class Meta(IntEnum):
    """Keys of the meta expression (enum nft_meta_keys). Names of interfaces have 16 bytes, L4PROTO one, MARK four."""

    MARK = 3
    IIFNAME = 6
    OIFNAME = 7
    L4PROTO = 16


class RouteType(IntEnum):
    """What the routing tables say of an address (enum rt_class_t, linux/rtnetlink.h)."""

    LOCAL = 2


class Ct(IntEnum):
    """Keys of the ct expression (enum nft_ct_keys). STATE, STATUS and MARK have four bytes, DIRECTION one."""

    STATE = 0
    DIRECTION = 1
    STATUS = 2
    MARK = 3


class CtState(IntEnum):
    """Bits of Ct.STATE (NF_CT_STATE_BIT), in the host's byte order; `number` encodes them."""

    INVALID = 0x1
    ESTABLISHED = 0x2
    RELATED = 0x4
    NEW = 0x8


class VerdictCode(IntEnum):
    """What a verdict decides (enum nft_verdicts, linux/netfilter.h)."""

    DROP = 0
    ACCEPT = 1
    JUMP = -3
    GOTO = -4
    RETURN = -5


class Refusal(IntEnum):
    """How a reject expression answers (enum nft_reject_types)."""

    ICMP = 0
    """With an ICMP or ICMPv6 "unreachable" of the given code."""
    TCP_RESET = 1


def register(offset: int) -> int:
    """The register that begins so many bytes after the start of the first; as nft and the kernel number them.

    Every 16 bytes begin a register of 16 bytes (1 to 4), the others of 4 bytes are 9 and above.
    """
    quarter, rest = divmod(offset, 4)
    if rest or not 0 <= quarter < 16:
        raise ValueError(f"no register begins at byte {offset}")
    return 1 + quarter // 4 if quarter % 4 == 0 else 8 + quarter


def number(value: int) -> bytes:
    """Four bytes in the host's byte order, as marks and the bits of ct have."""
    return value.to_bytes(4, sys.byteorder)


def payload(to: int, header: Header, offset: int, length: int) -> bytes:
    """Load bytes of the packet into a register."""
    return _expression("payload", be32(1, to), be32(2, header), be32(3, offset), be32(4, length))


def meta(to: int, key: Meta) -> bytes:
    """Load what the kernel knows of the packet into a register."""
    return _expression("meta", be32(2, key), be32(1, to))


def set_meta(key: Meta, of: int) -> bytes:
    """Set what the kernel knows of the packet to a register's content."""
    return _expression("meta", be32(2, key), be32(3, of))


def ct(to: int, key: Ct) -> bytes:
    """Load what conntrack knows of the packet's connection into a register."""
    return _expression("ct", be32(1, to), be32(2, key))


def fib_type_of_destination(to: int) -> bytes:
    """Load the RouteType of the packet's destination into a register: four bytes, as of a packet without a mark."""
    return _fib_type(to, 2)  # NFTA_FIB_F_DADDR


def fib_type_of_source(to: int) -> bytes:
    """The same of the packet's source."""
    return _fib_type(to, 1)  # NFTA_FIB_F_SADDR


def _fib_type(to: int, address: int) -> bytes:
    # NFTA_FIB_DREG, NFTA_FIB_RESULT: NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_FLAGS
    return _expression("fib", be32(1, to), be32(2, 3), be32(3, address))


def bitwise(at: int, mask: bytes, xor: bytes) -> bytes:
    """Combine a register's content with `mask` by AND, then with `xor` by XOR. Both have the content's length."""
    sizes = be32(1, at), be32(2, at), be32(3, len(mask)), be32(6, 0)
    return _expression("bitwise", *sizes, attribute(4, _value(mask)), attribute(5, _value(xor)))


def compare(at: int, value: bytes, *, equal: bool = True) -> bytes:
    """Match if a register begins with these bytes (`equal`), or if it does not."""
    return _expression("cmp", be32(1, at), be32(2, 0 if equal else 1), attribute(3, _value(value)))


def between(at: int, first: bytes, last: bytes) -> bytes:
    """Match if a register begins with bytes from the first to the last."""
    return _expression("range", be32(1, at), be32(2, 0), attribute(3, _value(first)), attribute(4, _value(last)))


def lookup_verdict(map_name: str, key: int) -> bytes:
    """Do what a verdict map says of the key that begins at a register. Does not match if it says nothing."""
    return _expression("lookup", text(1, map_name), be32(2, key), be32(3, NO_REGISTER), be32(5, 0))


def lookup(set_name: str, key: int, *, inverted: bool = False) -> bytes:
    """Match if the set has the key that begins at a register, or (`inverted`) if it does not have it."""
    return _expression("lookup", text(1, set_name), be32(2, key), be32(5, int(inverted)))


def immediate(to: int, value: bytes) -> bytes:
    """Load bytes into a register."""
    return _expression("immediate", be32(1, to), attribute(2, _value(value)))


def verdict(decision: VerdictCode, chain: str = "") -> bytes:
    """Decide what becomes of the packet; JUMP and GOTO name a chain."""
    return _expression("immediate", be32(1, NO_REGISTER), attribute(2, verdict_data(decision, chain)))


def verdict_data(decision: VerdictCode, chain: str = "") -> bytes:
    """A verdict as the data of an expression, or of an element of a verdict map."""
    parts = be32(VERDICT_CODE, decision & 0xFFFFFFFF) + (text(VERDICT_CHAIN, chain) if chain else b"")
    return attribute(DATA_VERDICT, parts)


def masquerade(*, fully_random: bool) -> bytes:
    """Replace the source by an address of the interface on which the packet leaves."""
    return _expression("masq", be32(1, FULLY_RANDOM)) if fully_random else _expression("masq")


def source_nat(family: int, address: int, *, fully_random: bool) -> bytes:
    """Replace the source by the address in a register. `family` is AF_INET or AF_INET6."""
    # 0x1 is NF_NAT_RANGE_MAP_IPS, which the kernel adds where an address is given.
    flags = 0x1 | (FULLY_RANDOM if fully_random else 0)
    return _expression("nat", be32(1, 0), be32(2, family), be32(3, address), be32(4, address), be32(7, flags))


def destination_nat(family: int, address: int) -> bytes:
    """Replace the destination by the address in a register. `family` is AF_INET or AF_INET6."""
    return _expression("nat", be32(1, 1), be32(2, family), be32(3, address), be32(4, address), be32(7, 0x1))


def reject(refusal: Refusal, code: int = 0) -> bytes:
    """Answer that the packet is refused, and drop it. `code` is that of the ICMP message."""
    parts = [be32(1, refusal)]
    if refusal is Refusal.ICMP:
        parts.append(u8(2, code))
    return _expression("reject", *parts)


def counter() -> bytes:
    """Count packets and bytes."""
    return _expression("counter", attribute(_COUNTER_BYTES, _BE64.pack(0)), attribute(_COUNTER_PACKETS, _BE64.pack(0)))


def limit(rate: int, burst: int) -> bytes:
    """Match so many packets a second, after `burst` at once."""
    # NFTA_LIMIT_RATE, NFTA_LIMIT_UNIT: a second, NFTA_LIMIT_BURST, NFTA_LIMIT_TYPE: NFT_LIMIT_PKTS, NFTA_LIMIT_FLAGS
    each_second = attribute(1, _BE64.pack(rate)), attribute(2, _BE64.pack(1))
    return _expression("limit", *each_second, be32(3, burst), be32(4, 0), be32(5, 0))


def log(group: int, prefix: str) -> bytes:
    """Copy the packet to the program that listens to this group of nfnetlink_log, as much of it as that asks for."""
    return _expression("log", text(2, prefix), be16(1, group))


def packets_counted(expression: bytes) -> int | None:
    """How many packets a counter has counted; None for another expression."""
    name, parts = parse_expression(expression)
    return int.from_bytes(parts[_COUNTER_PACKETS], "big") if name == "counter" else None


def is_as_wanted(found: bytes, wanted: bytes) -> bool:
    """Whether an expression that the kernel gave is the wanted one, though a newer kernel may say more of it.

    What a counter has counted does not matter.
    """
    try:
        name, said = parse_expression(found)
        wanted_name, wanted_parts = parse_expression(wanted)
    except UNINTELLIGIBLE:
        return False
    known = {kind: content for kind, content in said.items() if kind <= KNOWN_ATTRIBUTES.get(name, 0)}
    return name == wanted_name and (name == "counter" or known == wanted_parts)


def chain_named_by(expression: bytes) -> str:
    """The chain to which an expression jumps or goes; "" if it does neither."""
    name, parts = parse_expression(expression)
    if name != "immediate":
        return ""
    verdict = attributes(attributes(parts.get(2, b"")).get(DATA_VERDICT, b""))
    return to_text(verdict.get(VERDICT_CHAIN, b""))


def parse_expression(expression: bytes) -> tuple[str, dict[int, bytes]]:
    """The expression's name, and its attributes by their types."""
    parts = attributes(attributes(expression)[LIST_ELEMENT])
    return to_text(parts[EXPRESSION_NAME]), attributes(parts.get(EXPRESSION_DATA, b""))


def _expression(name: str, *parts: bytes) -> bytes:
    content = text(EXPRESSION_NAME, name) + attribute(EXPRESSION_DATA, b"".join(parts))
    return attribute(LIST_ELEMENT, content)


def _value(value: bytes) -> bytes:
    return attribute(DATA_VALUE, value)
