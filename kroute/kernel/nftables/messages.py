"""Messages of nf_tables: numbers, requests, and what the kernel answers.

The numbers are those of include/uapi/linux/netfilter/nf_tables.h and nfnetlink.h. Numbers in attributes are in network
byte order. A network alone is two elements in the kernel: its first address, and the address after its last one, with a
flag; the network that ends with the last of all addresses has no second one. A concatenation of intervals is one
element with two keys. Userdata is what nft(8) leaves with its
objects, in libnftnl's form: type, length, content, each byte-sized.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from kroute.kernel.errors import UNINTELLIGIBLE
from kroute.kernel.netlink.message import (
    NFNETLINK_HEADER,
    NLM_F_CREATE,
    NLM_F_EXCL,
    attribute,
    attributes,
    be32,
    iterate_attributes,
    nfnetlink_message,
    text,
    to_be32,
    to_text,
)
from kroute.kernel.nftables.expressions import (
    DATA_VALUE,
    DATA_VERDICT,
    LIST_ELEMENT,
    VERDICT_CHAIN,
    VerdictCode,
    verdict_data,
)
from kroute.kernel.nftables.objects import (
    Chain,
    Element,
    NftChain,
    NftRule,
    NftSet,
    Table,
    has_ranges,
    is_interval,
    is_verdict_map,
)
from kroute.kernel.nftables.set_keys import (
    DESCRIPTION_CONCAT,
    DESCRIPTION_SIZE,
    byte_order,
    concatenation,
    decode_key,
    encode_key,
    flags_of,
    key_length,
    key_type,
    parts_of,
)

ELEMENT_KEY, ELEMENT_DATA, ELEMENT_FLAGS, ELEMENT_KEY_END = 1, 2, 3, 10
_INTERVAL_END = 0x1
_END_FLAG = attribute(ELEMENT_FLAGS, _INTERVAL_END.to_bytes(4, "big"))
_HEADERS = struct.Struct("=HHHHHH")
"""Length and type of an element, of its key, and of the key's value."""
MESSAGE_ELEMENTS = 600
"""The most elements of a message: their attribute has 65,535 bytes at most, and the longest element has 100."""

NFNL_SUBSYS_NFTABLES = 10
NFNLGRP_NFTABLES = 7
NLM_F_APPEND = 0x800

_BE32S = struct.Struct("!i")
_BE64 = struct.Struct("!Q")


Message = IntEnum(
    "Message",
    "NEWTABLE GETTABLE DELTABLE NEWCHAIN GETCHAIN DELCHAIN NEWRULE GETRULE DELRULE NEWSET GETSET DELSET"
    " NEWSETELEM GETSETELEM DELSETELEM NEWGEN GETGEN",
    start=0,
)
"""Types of messages, in the order of enum nf_tables_msg_types."""
TABLE_NAME, TABLE_FLAGS = 1, 2
DORMANT = 0x1
"""NFT_TABLE_F_DORMANT."""
"""In the messages of all other objects, too, attribute 1 is the name of the table."""
CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY, CHAIN_TYPE = 1, 3, 4, 5, 7
HOOK_NUMBER, HOOK_PRIORITY = 1, 2
RULE_CHAIN, RULE_HANDLE, RULE_EXPRESSIONS, RULE_USERDATA = 2, 3, 4, 7
SET_NAME, SET_FLAGS, SET_KEY_TYPE, SET_KEY_LENGTH, SET_DESCRIPTION, SET_ID, SET_USERDATA = 2, 3, 4, 5, 9, 10, 13
SET_DATA_TYPE = 6
VERDICTS = 0xFFFFFF00
"""NFT_DATA_VERDICT, the type of a verdict map's data."""
LIST_SET, LIST_ELEMENTS = 2, 3
GENERATION_ID, GENERATION_PROCESS, GENERATION_PROGRAM = 1, 2, 3

RULE_COMMENT = 0
SET_BYTE_ORDER = 0
"""Types of userdata (libnftnl, udata.h)."""
HOOKS = ("prerouting", "input", "forward", "output", "postrouting")
"""By their numbers (linux/netfilter.h, linux/netfilter_bridge.h)."""
HOOKED = frozenset({"ip", "ip6", "inet", "bridge"})
"""The families whose hooks have the numbers of HOOKS."""
FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
DROP, ACCEPT = 0, 1
LONGEST_COMMENT = 127
"""Bytes of a rule's comment: nft(8) takes 128 with the NUL."""


def query(kind: Message, flags: int = 0, *parts: bytes, family: int = 0) -> bytes:
    """A request that changes nothing."""
    return nfnetlink_message(NFNL_SUBSYS_NFTABLES, kind, flags, family, *parts)


def type_of(kind: int) -> int:
    """The type of an answer without its subsystem; -1 if it is not of nf_tables."""
    return kind & 0xFF if kind >> 8 == NFNL_SUBSYS_NFTABLES else -1


def table_message(kind: Message, flags: int, table: Table, *parts: bytes) -> bytes:
    """A request about a table, or about something in it."""
    return query(kind, flags, text(TABLE_NAME, table.name), *parts, family=table.family)


def parse_is_dormant(payload: bytes) -> bool:
    flags = attributes(payload, NFNETLINK_HEADER.size).get(TABLE_FLAGS, b"")
    return bool(int.from_bytes(flags, "big") & DORMANT)


def new_chain(table: Table, chain: Chain) -> bytes:
    parts = [text(CHAIN_NAME, chain.name)]
    if chain.hook:
        number, priority = HOOKS.index(chain.hook), _BE32S.pack(chain.priority)
        parts.append(attribute(CHAIN_HOOK, be32(HOOK_NUMBER, number) + attribute(HOOK_PRIORITY, priority)))
        parts += [be32(CHAIN_POLICY, DROP if chain.drops else ACCEPT), text(CHAIN_TYPE, chain.type)]
    return table_message(Message.NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL, table, *parts)


def new_rule(table: Table, rule: NftRule) -> bytes:
    parts = [text(RULE_CHAIN, rule.chain), attribute(RULE_EXPRESSIONS, b"".join(rule.expressions))]
    if rule.comment:
        comment = rule.comment.encode()
        if len(comment) > LONGEST_COMMENT:
            raise ValueError(f"a rule's comment has {len(comment)} bytes, and may have {LONGEST_COMMENT}")
        parts.append(attribute(RULE_USERDATA, _userdata(RULE_COMMENT, comment + b"\0")))
    return table_message(Message.NEWRULE, NLM_F_CREATE | NLM_F_APPEND, table, *parts)


def del_rule(table: Table, chain: str, handle: int) -> bytes:
    name = text(RULE_CHAIN, chain)
    return table_message(Message.DELRULE, 0, table, name, attribute(RULE_HANDLE, _BE64.pack(handle)))


def new_set(table: Table, definition: NftSet, number: int) -> bytes:
    """Make a set; `number` tells it apart from the other new ones of its transaction."""
    family, parts = table.family, definition.parts
    content = [text(SET_NAME, definition.name)]
    if flags := flags_of(parts):
        content.append(be32(SET_FLAGS, flags))
    content += [be32(SET_KEY_TYPE, key_type(family, parts)), be32(SET_KEY_LENGTH, key_length(family, parts))]
    if is_verdict_map(parts):
        content.append(be32(SET_DATA_TYPE, VERDICTS))
    if described := concatenation(family, parts):
        content.append(attribute(SET_DESCRIPTION, described))
    content += [be32(SET_ID, number), attribute(SET_USERDATA, _userdata(SET_BYTE_ORDER, byte_order(parts)))]
    return table_message(Message.NEWSET, NLM_F_CREATE | NLM_F_EXCL, table, *content)


def parse_set(payload: bytes) -> NftSet:
    """The set as the kernel has it. One that kroute would not make has parts that no set of kroute's has."""
    found = attributes(payload, NFNETLINK_HEADER.size)
    flags = to_be32(found.get(SET_FLAGS, bytes(4)))
    described = attributes(found.get(SET_DESCRIPTION, b""))
    family = payload[0]
    parts = parts_of(family, to_be32(found[SET_KEY_TYPE]), flags)
    wanted = attributes(concatenation(family, parts)).get(DESCRIPTION_CONCAT)
    if DESCRIPTION_SIZE in described:
        parts += (f"at most {to_be32(described[DESCRIPTION_SIZE])}",)
    elif described.get(DESCRIPTION_CONCAT) != wanted:
        parts += ("otherwise concatenated",)
    elif is_verdict_map(parts) and to_be32(found[SET_DATA_TYPE]) != VERDICTS:
        parts += ("other data",)
    return NftSet(to_text(found[SET_NAME]), parts)


def parse_chain(payload: bytes) -> tuple[str, Chain]:
    """The name of the table, and the chain."""
    found = attributes(payload, NFNETLINK_HEADER.size)
    table, name = to_text(found[CHAIN_TABLE]), to_text(found[CHAIN_NAME])
    if CHAIN_HOOK not in found:
        return table, Chain(name)
    hook = attributes(found[CHAIN_HOOK])
    [priority] = _BE32S.unpack(hook[HOOK_PRIORITY])
    number, drops = to_be32(hook[HOOK_NUMBER]), to_be32(found[CHAIN_POLICY]) == DROP
    return table, Chain(name, to_text(found[CHAIN_TYPE]), HOOKS[number], priority, drops=drops)


def parse_any_table(payload: bytes) -> tuple[str, str]:
    """The family's name in nft(8) and the name of a table of any program."""
    name = to_text(attributes(payload, NFNETLINK_HEADER.size)[TABLE_NAME])
    return FAMILIES.get(payload[0], str(payload[0])), name


def parse_any_chain(payload: bytes) -> NftChain:
    """A chain of any program."""
    found = attributes(payload, NFNETLINK_HEADER.size)
    name = FAMILIES.get(payload[0], str(payload[0]))
    hook = ""
    if CHAIN_HOOK in found and name in HOOKED:
        number = to_be32(attributes(found[CHAIN_HOOK])[HOOK_NUMBER])
        hook = HOOKS[number] if number < len(HOOKS) else ""
    drops = CHAIN_POLICY in found and to_be32(found[CHAIN_POLICY]) == DROP
    return NftChain(name, to_text(found[CHAIN_TABLE]), to_text(found[CHAIN_NAME]), hook, drops)


def parse_rule(payload: bytes) -> tuple[int, NftRule]:
    """The handle, and the rule."""
    found = attributes(payload, NFNETLINK_HEADER.size)
    listed = iterate_attributes(found.get(RULE_EXPRESSIONS, b""))
    expressions = tuple(attribute(LIST_ELEMENT, content) for _kind, content in listed)
    [handle] = _BE64.unpack(found[RULE_HANDLE])
    return handle, NftRule(to_text(found[RULE_CHAIN]), expressions, _comment(found.get(RULE_USERDATA, b"")))


def parse_generation(payload: bytes) -> tuple[int, str]:
    """The number of the generation, and the program that made it, in words."""
    found = attributes(payload, NFNETLINK_HEADER.size)
    process = to_be32(found[GENERATION_PROCESS]) if GENERATION_PROCESS in found else 0
    program = to_text(found[GENERATION_PROGRAM]) if GENERATION_PROGRAM in found else "a program"
    return to_be32(found[GENERATION_ID]), f"{program} (process {process})"


def _comment(userdata: bytes) -> str:
    """The comment that a rule's userdata holds; "" if it holds none."""
    try:
        while userdata:
            kind, length = userdata[0], userdata[1]
            if kind == RULE_COMMENT:
                return to_text(userdata[2 : 2 + length])
            userdata = userdata[2 + length :]
    except UNINTELLIGIBLE:
        pass
    return ""


def _userdata(kind: int, content: bytes) -> bytes:
    return bytes((kind, len(content))) + content


def encode_element(family: int, parts: tuple[str, ...], element: Element) -> bytes:
    """The element as one or two elements of a list. Raises ValueError if it does not fit the set."""
    first, last = encode_key(family, parts, element)
    if has_ranges(parts):
        return _listed(_key(ELEMENT_KEY, first) + _key(ELEMENT_KEY_END, last))
    if is_verdict_map(parts):
        data = attribute(ELEMENT_DATA, verdict_data(VerdictCode.JUMP, str(element[-1])))
        return _listed(_key(ELEMENT_KEY, first) + data)
    if not is_interval(parts):
        return _headers(len(first)) + first
    end = int.from_bytes(last, "big") + 1
    if end >> 8 * len(last):
        return _listed(_key(ELEMENT_KEY, first))
    return _listed(_key(ELEMENT_KEY, first)) + _listed(_key(ELEMENT_KEY, end.to_bytes(len(last), "big")) + _END_FLAG)


def elements_message(kind: Message, table: Table, set_name: str, encoded: Iterable[bytes]) -> bytes:
    """Add encoded elements to a set (NEWSETELEM), or delete them (DELSETELEM)."""
    flags = NLM_F_CREATE if kind is Message.NEWSETELEM else 0
    return table_message(kind, flags, table, text(LIST_SET, set_name), attribute(LIST_ELEMENTS, b"".join(encoded)))


class Key(NamedTuple):
    """An element as the kernel lists it, and whether it is the end of an interval.

    `last` is the other key of a concatenation of intervals, `chain` the one to which a verdict map leads.
    """

    value: bytes
    is_end: bool = False
    last: bytes = b""
    chain: str = ""


def parse_keys(payload: bytes) -> list[Key]:
    """The elements of a part of a listing."""
    listed = attributes(payload, NFNETLINK_HEADER.size).get(LIST_ELEMENTS, b"")
    if keys := _plain_keys(listed):
        return keys
    found = []
    for _kind, content in iterate_attributes(listed):
        element = attributes(content)
        if ELEMENT_KEY not in element:
            continue  # a catch-all element, which has none
        is_end = bool(int.from_bytes(element.get(ELEMENT_FLAGS, b""), "big") & _INTERVAL_END)
        last = attributes(element[ELEMENT_KEY_END])[DATA_VALUE] if ELEMENT_KEY_END in element else b""
        verdict = attributes(attributes(element.get(ELEMENT_DATA, b"")).get(DATA_VERDICT, b""))
        chain = to_text(verdict.get(VERDICT_CHAIN, b""))
        found.append(Key(attributes(element[ELEMENT_KEY])[DATA_VALUE], is_end, last, chain))
    return found


def _plain_keys(listed: bytes) -> list[Key]:
    """The elements, if all are like the first one and have nothing but a key; none otherwise. A set may have 100,000.

    Then each begins with the same headers: of the element, of its key, and of the key's value.
    """
    headers = listed[: _HEADERS.size]
    if len(headers) < _HEADERS.size:
        return []
    length, _kind, key_length, key_kind, value_length, _value_kind = _HEADERS.unpack(headers)
    size = value_length - 4
    if (key_length, key_kind, length) != (size + 8, ELEMENT_KEY, size + 12) or size % 4 or len(listed) % length:
        return []
    parts = list(struct.iter_unpack(f"{_HEADERS.size}s{size}s", listed))
    if any(begin != headers for begin, _key in parts):
        return []
    return [Key(key) for _begin, key in parts]


def decode_elements(table: Table, of: NftSet, keys: Sequence[Key]) -> Iterator[Element]:
    """The elements of some parts of a listing; of all parts, if the set has networks alone."""
    if is_verdict_map(of.parts):
        for key in keys:
            yield from ((*found, key.chain) for found in decode_key(table.family, of.parts, key.value, key.value))
        return
    ends = _intervals(keys) if is_interval(of.parts) else ((key.value, key.last or key.value) for key in keys)
    for first, last in ends:
        yield from decode_key(table.family, of.parts, first, last)


def _intervals(keys: Sequence[Key]) -> Iterator[tuple[bytes, bytes]]:
    """The first and last address of each interval. The listing is in no order. Before the first one may be an end."""
    if not keys:
        return
    size = len(keys[0].value)
    # At the same address the end of one interval comes before the start of the next.
    bounds = sorted((int.from_bytes(key.value, "big"), not key.is_end) for key in keys)
    for (first, is_start), (after, _) in pairwise([*bounds, (1 << 8 * size, False)]):
        if is_start:
            yield first.to_bytes(size, "big"), (after - 1).to_bytes(size, "big")


@lru_cache(64)
def _headers(size: int) -> bytes:
    """What is before a key of so many bytes, which is a multiple of four, in an element that has nothing else."""
    return _HEADERS.pack(size + 12, LIST_ELEMENT, size + 8, ELEMENT_KEY, size + 4, DATA_VALUE)


def _key(kind: int, key: bytes) -> bytes:
    return attribute(kind, attribute(DATA_VALUE, key))


def _listed(content: bytes) -> bytes:
    return attribute(LIST_ELEMENT, content)
