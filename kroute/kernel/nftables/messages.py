"""Messages of nf_tables: numbers, requests, and what the kernel answers.

The numbers are those of include/uapi/linux/netfilter/nf_tables.h and nfnetlink.h. Numbers in attributes are in network
byte order. Userdata is what nft(8) leaves with its objects, in libnftnl's form: type, length, content, each byte-sized.
"""

import struct
from enum import IntEnum

from kroute.kernel.errors import UNINTELLIGIBLE
from kroute.kernel.netlink.message import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    attribute,
    attributes,
    iterate_attributes,
    message,
    text,
    to_text,
)
from kroute.kernel.nftables.expressions import LIST_ELEMENT
from kroute.kernel.nftables.objects import Chain, NftRule, NftSet, Table
from kroute.kernel.nftables.set_keys import (
    DESCRIPTION_CONCAT,
    DESCRIPTION_SIZE,
    byte_order,
    flags_of,
    key_length,
    key_type,
    parts_of,
)

NFNL_SUBSYS_NFTABLES = 10
NFNLGRP_NFTABLES = 7
NLM_F_APPEND = 0x800

HEADER = struct.Struct("!BBH")
"""family, version, resource id."""
_BE32 = struct.Struct("!I")
_BE32S = struct.Struct("!i")
_BE64 = struct.Struct("!Q")


class Message(IntEnum):
    """Types of messages (enum nf_tables_msg_types)."""

    NEWTABLE = 0
    GETTABLE = 1
    DELTABLE = 2
    NEWCHAIN = 3
    GETCHAIN = 4
    DELCHAIN = 5
    NEWRULE = 6
    GETRULE = 7
    DELRULE = 8
    NEWSET = 9
    GETSET = 10
    DELSET = 11
    NEWSETELEM = 12
    GETSETELEM = 13
    DELSETELEM = 14
    NEWGEN = 15
    GETGEN = 16


TABLE_NAME, TABLE_FLAGS = 1, 2
DORMANT = 0x1
"""NFT_TABLE_F_DORMANT."""
"""In the messages of all other objects, too, attribute 1 is the name of the table."""
CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY, CHAIN_TYPE = 1, 3, 4, 5, 7
HOOK_NUMBER, HOOK_PRIORITY = 1, 2
RULE_TABLE, RULE_CHAIN, RULE_HANDLE, RULE_EXPRESSIONS, RULE_USERDATA = 1, 2, 3, 4, 7
SET_TABLE, SET_NAME, SET_FLAGS, SET_KEY_TYPE, SET_KEY_LENGTH, SET_DESCRIPTION, SET_ID, SET_USERDATA = (
    1, 2, 3, 4, 5, 9, 10, 13,
)  # fmt: skip
LIST_TABLE, LIST_SET, LIST_ELEMENTS = 1, 2, 3
GENERATION_ID, GENERATION_PROCESS, GENERATION_PROGRAM = 1, 2, 3

RULE_COMMENT = 0
SET_BYTE_ORDER = 0
"""Types of userdata (libnftnl, udata.h)."""
HOOKS = ("prerouting", "input", "forward", "output", "postrouting")
"""By their numbers (linux/netfilter.h, linux/netfilter_bridge.h)."""
DROP, ACCEPT = 0, 1
LONGEST_COMMENT = 127
"""Bytes of a rule's comment: nft(8) takes 128 with the NUL."""


def query(kind: Message, flags: int = 0, *parts: bytes, family: int = 0) -> bytes:
    """A request that changes nothing."""
    return message(NFNL_SUBSYS_NFTABLES << 8 | kind, flags, HEADER.pack(family, 0, 0) + b"".join(parts))


def type_of(kind: int) -> int:
    """The type of an answer without its subsystem; -1 if it is not of nf_tables."""
    return kind & 0xFF if kind >> 8 == NFNL_SUBSYS_NFTABLES else -1


def table_message(kind: Message, flags: int, table: Table, *parts: bytes) -> bytes:
    """A request about a table, or about something in it."""
    return query(kind, flags, text(TABLE_NAME, table.name), *parts, family=table.family)


def new_table(table: Table) -> bytes:
    return table_message(Message.NEWTABLE, NLM_F_CREATE, table, _be32(TABLE_FLAGS, 0))


def parse_is_dormant(payload: bytes) -> bool:
    flags = attributes(payload, HEADER.size).get(TABLE_FLAGS, b"")
    return bool(int.from_bytes(flags, "big") & DORMANT)


def new_chain(table: Table, chain: Chain) -> bytes:
    parts = [text(CHAIN_NAME, chain.name)]
    if chain.hook:
        number, priority = HOOKS.index(chain.hook), _BE32S.pack(chain.priority)
        parts.append(attribute(CHAIN_HOOK, _be32(HOOK_NUMBER, number) + attribute(HOOK_PRIORITY, priority)))
        parts += [_be32(CHAIN_POLICY, DROP if chain.drops else ACCEPT), text(CHAIN_TYPE, chain.type)]
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


def new_set(table: Table, it: NftSet, number: int) -> bytes:
    """Make a set; `number` tells it apart from the other new ones of its transaction."""
    family, parts = table.family, it.parts
    content = [text(SET_NAME, it.name)]
    if flags := flags_of(parts):
        content.append(_be32(SET_FLAGS, flags))
    content += [_be32(SET_KEY_TYPE, key_type(family, parts)), _be32(SET_KEY_LENGTH, key_length(family, parts))]
    content += [_be32(SET_ID, number), attribute(SET_USERDATA, _userdata(SET_BYTE_ORDER, byte_order(parts)))]
    return table_message(Message.NEWSET, NLM_F_CREATE | NLM_F_EXCL, table, *content)


def parse_set(payload: bytes) -> NftSet:
    """The set as the kernel has it. One that kroute would not make has parts that no set of kroute's has."""
    [family, _version, _resource] = HEADER.unpack_from(payload)
    found = attributes(payload, HEADER.size)
    flags = _number(found.get(SET_FLAGS, bytes(4)))
    described = attributes(found.get(SET_DESCRIPTION, b""))
    parts = parts_of(family, _number(found[SET_KEY_TYPE]), flags)
    if DESCRIPTION_SIZE in described:
        parts += (f"at most {_number(described[DESCRIPTION_SIZE])}",)
    elif DESCRIPTION_CONCAT in described:
        parts += ("otherwise concatenated",)
    return NftSet(to_text(found[SET_NAME]), parts)


def parse_chain(payload: bytes) -> tuple[str, Chain]:
    """The name of the table, and the chain."""
    found = attributes(payload, HEADER.size)
    table, name = to_text(found[CHAIN_TABLE]), to_text(found[CHAIN_NAME])
    if CHAIN_HOOK not in found:
        return table, Chain(name)
    hook = attributes(found[CHAIN_HOOK])
    [priority] = _BE32S.unpack(hook[HOOK_PRIORITY])
    number, drops = _number(hook[HOOK_NUMBER]), _number(found[CHAIN_POLICY]) == DROP
    return table, Chain(name, to_text(found[CHAIN_TYPE]), HOOKS[number], priority, drops=drops)


def parse_rule(payload: bytes) -> tuple[int, NftRule]:
    """The handle, and the rule."""
    found = attributes(payload, HEADER.size)
    listed = iterate_attributes(found.get(RULE_EXPRESSIONS, b""))
    expressions = tuple(attribute(LIST_ELEMENT, content) for _kind, content in listed)
    [handle] = _BE64.unpack(found[RULE_HANDLE])
    return handle, NftRule(to_text(found[RULE_CHAIN]), expressions, _comment(found.get(RULE_USERDATA, b"")))


def parse_generation(payload: bytes) -> tuple[int, str]:
    """The number of the generation, and the program that made it, in words."""
    found = attributes(payload, HEADER.size)
    process = _number(found[GENERATION_PROCESS]) if GENERATION_PROCESS in found else 0
    program = to_text(found[GENERATION_PROGRAM]) if GENERATION_PROGRAM in found else "a program"
    return _number(found[GENERATION_ID]), f"{program} (process {process})"


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


def _number(content: bytes) -> int:
    return int(_BE32.unpack(content)[0])


def _be32(kind: int, value: int) -> bytes:
    return attribute(kind, _BE32.pack(value))
