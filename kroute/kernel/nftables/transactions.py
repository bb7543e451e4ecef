"""The changes of a transaction as messages, and how large a transaction may be."""

import asyncio
import errno
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kroute.kernel.errors import Failure
from kroute.kernel.netlink.message import NLM_F_CREATE, be32, text
from kroute.kernel.nftables.messages import (
    CHAIN_NAME,
    LIST_SET,
    MESSAGE_ELEMENTS,
    RULE_CHAIN,
    SET_NAME,
    TABLE_FLAGS,
    Message,
    del_rule,
    elements_message,
    encode_element,
    new_chain,
    new_rule,
    new_set,
    table_message,
)
from kroute.kernel.nftables.objects import (
    AddChain,
    AddElements,
    AddRule,
    AddSet,
    AddTable,
    DeleteChain,
    DeleteElements,
    DeleteRule,
    DeleteSet,
    DeleteTable,
    Element,
    ElementChange,
    FlushChain,
    FlushSet,
    NftChange,
    Table,
)

FIRST_PORTION, LEAST_PORTION, LARGEST_PORTION = 250, 50, 2000
"""Elements of a transaction of `Nftables.write`."""
PORTION_SECONDS = 0.006
"""How long the event loop should wait for such a transaction."""
TURN = 250
"""Elements that are encoded before other tasks run."""


BY_NAME = {
    DeleteSet: (Message.DELSET, SET_NAME),
    FlushSet: (Message.DELSETELEM, LIST_SET),
    DeleteChain: (Message.DELCHAIN, CHAIN_NAME),
    FlushChain: (Message.DELRULE, RULE_CHAIN),
}
"""Changes that only name an object: the message, and the attribute for the name."""


class Piece(NamedTuple):
    """A message, and the change that fails if the kernel refuses it."""

    message: bytes
    change: NftChange


async def encode(
    table: Table, changes: Sequence[NftChange], *, singly: bool = False
) -> tuple[list[Piece], list[Failure[NftChange]]]:
    """The messages for the changes, and the changes that cannot be encoded (EINVAL).

    `singly`: each element has a message of its own, so that a refusal names it.
    """
    pieces: list[Piece] = []
    unfit: list[Failure[NftChange]] = []
    for number, change in enumerate(changes, 1):
        if not isinstance(change, AddElements | DeleteElements):
            try:
                pieces.append(Piece(_encode(table, change, number), change))
            except (LookupError, ValueError):
                unfit.append(Failure(change, errno.EINVAL))
            continue
        encoded, unfit_elements = await _encode_elements(table, change)
        unfit += unfit_elements
        # The first message of a transaction is echoed by the kernel with all its elements, so it has only one.
        sizes = 1 if singly else MESSAGE_ELEMENTS
        begin = 0
        while begin < len(encoded):
            end = begin + (sizes if pieces else 1)
            pieces.append(_piece(table, change, encoded[begin:end]))
            begin = end
    return pieces, unfit


async def _encode_elements(
    table: Table, change: ElementChange
) -> tuple[list[tuple[Element, bytes]], list[Failure[NftChange]]]:
    encoded: list[tuple[Element, bytes]] = []
    unfit: list[Failure[NftChange]] = []
    for number, element in enumerate(change.elements, 1):
        try:
            encoded.append((element, encode_element(table.family, change.set.parts, element)))
        except ValueError:
            unfit.append(Failure(msgspec.structs.replace(change, elements=(element,)), errno.EINVAL))
        if number % TURN == 0:
            await asyncio.sleep(0)
    return encoded, unfit


def _piece(table: Table, change: ElementChange, part: list[tuple[Element, bytes]]) -> Piece:
    kind = Message.NEWSETELEM if isinstance(change, AddElements) else Message.DELSETELEM
    message = elements_message(kind, table, change.set.name, (content for _, content in part))
    return Piece(message, msgspec.structs.replace(change, elements=tuple(element for element, _ in part)))


def _encode(table: Table, change: NftChange, number: int) -> bytes:
    encoded = b""
    match change:
        case AddTable():
            encoded = table_message(Message.NEWTABLE, NLM_F_CREATE, table, be32(TABLE_FLAGS, 0))
        case DeleteTable():
            encoded = table_message(Message.DELTABLE, 0, table)
        case AddSet(definition):
            encoded = new_set(table, definition, number)
        case AddChain(chain):
            encoded = new_chain(table, chain)
        case AddRule(rule):
            encoded = new_rule(table, rule)
        case DeleteRule(name, handle):
            encoded = del_rule(table, name, handle)
        case DeleteSet(name) | FlushSet(name) | DeleteChain(name) | FlushChain(name):
            kind, attribute = BY_NAME[type(change)]
            encoded = table_message(kind, 0, table, text(attribute, name))
    return encoded


def portion(changes: Sequence[ElementChange], skip: int, most: int) -> list[ElementChange]:
    """The next changes of single elements after the first `skip` ones: as many as `most`, in their order."""
    found: list[ElementChange] = []
    for change in changes:
        size = len(change.elements)
        if skip >= size:
            skip -= size
            continue
        taken = change.elements[skip : skip + most]
        found.append(msgspec.structs.replace(change, elements=taken))
        skip = 0
        most -= len(taken)
        if not most:
            break
    return found


def without(changes: Sequence[ElementChange], refused: Sequence[Failure[NftChange]]) -> list[ElementChange]:
    """The changes without the refused ones, which are of single elements."""
    not_made = [each.change for each in refused if isinstance(each.change, AddElements | DeleteElements)]
    gone = {(type(change), change.set, element) for change in not_made for element in change.elements}
    kept: list[ElementChange] = []
    for change in changes:
        of_change = type(change), change.set
        if left := tuple(element for element in change.elements if (*of_change, element) not in gone):
            kept.append(msgspec.structs.replace(change, elements=left))
    return kept


def next_portion(limit: int, elements: int, seconds: float) -> int:
    """The most elements of the next transaction, after one with this limit whose elements took so long."""
    if elements < limit and seconds < PORTION_SECONDS:
        return limit
    fitting = int(elements * PORTION_SECONDS / seconds) if seconds > 0 else LARGEST_PORTION
    return max(LEAST_PORTION, min(LARGEST_PORTION, 2 * limit, fitting))
