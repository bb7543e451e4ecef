"""The client of nf_tables: transactions, and what the kernel has.

The kernel numbers its generations: each transaction that changes something, of any program in the network namespace,
makes the next one. What this client commits itself it learns from the kernel's echo, so it can tell whether another
program has committed anything.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from kroute.kernel.errors import UNINTELLIGIBLE, Failure, KernelError, describe_errno, none_if_refused
from kroute.kernel.modules import is_present
from kroute.kernel.netlink.batch import BatchSocket
from kroute.kernel.netlink.client import NetlinkClient, listed_once, only
from kroute.kernel.netlink.message import NLM_F_DUMP, text
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER
from kroute.kernel.nftables.messages import (
    LIST_SET,
    NFNL_SUBSYS_NFTABLES,
    Key,
    Message,
    decode_elements,
    parse_any_chain,
    parse_any_table,
    parse_chain,
    parse_generation,
    parse_is_dormant,
    parse_keys,
    parse_rule,
    parse_set,
    query,
    table_message,
    type_of,
)
from kroute.kernel.nftables.objects import (
    Chain,
    DeleteElements,
    Element,
    ElementChange,
    NftChain,
    NftChange,
    NftRule,
    NftSet,
    Table,
    TableState,
)
from kroute.kernel.nftables.table_monitor import TableMonitor
from kroute.kernel.nftables.transactions import FIRST_PORTION, encode, next_portion, portion, without

T = TypeVar("T")

ATTEMPTS = 10
"""How often a table is read that changes meanwhile, and how often a transaction is tried without what is refused."""
SEND_BUFFER = 8 * 1024 * 1024
"""Bytes of the longest transaction. The kernel takes memory only for what is sent."""
RECEIVE_BUFFER = 8 * 1024 * 1024
"""Bytes for the refusals of one transaction, which come together. The kernel counts each as about 1 KiB."""
PART = 500
"""Elements of a part of a listing."""


class Nftables(NetlinkClient):
    """The nf_tables of the calling process's network namespace."""

    protocol = NETLINK_NETFILTER
    netlink: BatchSocket

    def __init__(self) -> None:
        super().__init__()
        self.netlink = BatchSocket(NETLINK_NETFILTER, receive_buffer=RECEIVE_BUFFER, send_buffer=SEND_BUFFER)
        self._commits = 0
        self._portion = FIRST_PORTION

    async def chains(self) -> list[NftChain]:
        """All chains of all families; none if the kernel has not loaded nf_tables, which this does not load."""
        return await self._dump_all(Message.GETCHAIN, parse_any_chain)

    async def tables(self) -> list[tuple[str, str]]:
        """The family's name in nft(8) and the name of each table; none as above."""
        return await self._dump_all(Message.GETTABLE, parse_any_table)

    async def transact(
        self, table: Table, changes: Sequence[NftChange], *, generation: int = 0
    ) -> list[Failure[NftChange]]:
        """Make all changes in order, at one moment for packets; or none of them, and return those that are refused.

        Of changes of elements every refused element is returned, each as a change of its own. The event loop waits
        while the kernel works. Raises KernelError ERESTART, and changes nothing, if any program has committed anything
        since `generation`; and KernelError when the outcome is unknown.
        """
        refused, _seconds = await self._commit(table, changes, generation)
        return refused

    async def validate(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        """What `transact` would return. The kernel checks everything, loads the modules, and changes nothing."""
        pieces, refused = await encode(table, changes, singly=True)
        if not pieces:
            return refused
        outcome = await self.netlink.batch(NFNL_SUBSYS_NFTABLES, [piece.message for piece in pieces], commit=False)
        return refused + [Failure(pieces[index].change, number) for index, number in sorted(outcome.refused.items())]

    async def write(self, table: Table, changes: Sequence[ElementChange]) -> list[Failure[NftChange]]:
        """Make changes of elements in order, in transactions so short that other tasks run every few milliseconds.

        Refused elements do not stop the others. One that is there already, or is gone already, is no failure.
        """
        failures: list[Failure[NftChange]] = []
        start = 0
        while changes_now := portion(changes, start, self._portion):
            start += sum(len(change.elements) for change in changes_now)
            failures += await self._write(table, changes_now)
            await asyncio.sleep(0)
        return failures

    async def read(self, table: Table) -> TableState | None:
        """Sets, chains and rules; None if there is no such table. Raises KernelError EINTR if it changes too fast."""
        return (await self._at_rest(table, lambda: self._state(table)))[1]

    async def rules(
        self, table: Table, keep: Callable[[int, NftRule], T | None]
    ) -> tuple[int, dict[str, Chain], list[T]] | None:
        """The generation that was read, for `transact`; the chains; and what `keep` makes of each handle and rule.

        For tables of other programs, which may have tens of thousands of rules: only what `keep` returns stays in
        memory. None if there is no such table. Raises KernelError as `read` does.
        """

        async def chains_and_rules() -> tuple[dict[str, Chain], list[T]] | None:
            if await self._is_dormant(table) is None:
                return None
            rules = await self._dump(Message.GETRULE, table, lambda payload: keep(*parse_rule(payload)))
            return await self._chains(table), rules

        generation, found = await self._at_rest(table, chains_and_rules)
        return (generation, *found) if found is not None else None

    async def elements(self, table: Table, of: NftSet) -> AsyncIterator[list[Element]]:
        """The elements of a set, in parts of some hundreds. Raises KernelError ENOENT if there is no such set."""
        keys = await self.keys(table, of.name)
        size = len(keys) if of.parts == ("net",) else PART
        for start in range(0, len(keys), max(1, size)):
            try:
                part = list(decode_elements(table, of, keys[start : start + size]))
            except UNINTELLIGIBLE as error:
                sentence = f"set {of.name} of table {table} has other elements; make it again"
                raise KernelError(sentence, errno=errno.EBADMSG) from error
            yield part
            await asyncio.sleep(0)

    async def foreign_generation(self) -> int:
        """A number that stays the same as long as no other socket commits a transaction, to any table."""
        return await self._generation() - self._commits

    def foreign_changes(self, tables: Collection[Table]) -> TableMonitor:
        """Follow changes of these tables that other sockets make. The caller opens what it gets."""
        return TableMonitor(tables, self.netlink.port)

    async def _dump_all(self, kind: Message, parse: Callable[[bytes], T]) -> list[T]:
        if not is_present("nf_tables"):
            return []
        request = self.netlink.request(query(kind, NLM_F_DUMP), parse)
        return await none_if_refused(request, errno.EINVAL, errno.EOPNOTSUPP) or []

    async def _state(self, table: Table) -> TableState | None:
        is_dormant = await self._is_dormant(table)
        if is_dormant is None:
            return None
        sets = {definition.name: definition for definition in await self._dump(Message.GETSET, table, parse_set)}
        chains = await self._chains(table)
        return TableState(sets, chains, await self._dump(Message.GETRULE, table, parse_rule), is_dormant)

    async def _at_rest(self, table: Table, read: Callable[[], Awaitable[T]]) -> tuple[int, T]:
        """What `read` returns when nothing has changed meanwhile, with the generation."""
        for _ in range(ATTEMPTS):
            before = await self._generation()
            found = await read()
            if await self._generation() == before:
                return before, found
        raise KernelError(f"table {table} changes faster than it can be read; trying later", errno=errno.EINTR)

    async def _chains(self, table: Table) -> dict[str, Chain]:
        listed = await self._dump(Message.GETCHAIN, table, parse_chain)
        return {chain.name: chain for name, chain in listed if name == table.name}

    async def _commit(
        self, table: Table, changes: Sequence[NftChange], generation: int = 0
    ) -> tuple[list[Failure[NftChange]], float]:
        """Make all changes or none; returns the refused ones, and the seconds for which the kernel worked."""
        pieces, unfit = await encode(table, changes)
        if unfit or not pieces:
            return unfit, 0.0
        messages = [piece.message for piece in pieces]
        outcome = await self.netlink.batch(NFNL_SUBSYS_NFTABLES, messages, generation=generation)
        self._commits += sum(type_of(kind) == Message.NEWGEN for kind, _payload in outcome.echoes)
        if not outcome.refused:
            return [], outcome.seconds
        refused = [Failure(pieces[index].change, number) for index, number in sorted(outcome.refused.items())]
        return await self.validate(table, changes) or refused, outcome.seconds

    async def _write(self, table: Table, changes: list[ElementChange]) -> list[Failure[NftChange]]:
        """Make these changes without those that the kernel refuses, which are returned."""
        failures: list[Failure[NftChange]] = []
        for _ in range(ATTEMPTS):
            refused, seconds = await self._commit(table, changes)
            if not refused:
                count = sum(len(change.elements) for change in changes)
                self._portion = next_portion(self._portion, count, seconds)
                return failures
            failures += [failure for failure in refused if not _is_gone_already(failure)]
            changes = without(changes, refused)
        number = refused[0].errno
        sentence = f"cannot write elements of table {table}: {describe_errno(number)}"
        raise KernelError(f"{sentence}; another program changes the table; trying later", errno=number)

    async def _generation(self) -> int:
        found = await self.netlink.request(query(Message.GETGEN), parse_generation)
        return only(found)[0]

    async def keys(self, table: Table, of: str) -> list[Key]:
        """The keys of the elements of the set or map `of`, as the kernel lists them. Raises KernelError as `elements`.

        The kernel counts no generation when it rehashes a table.
        """
        listing = table_message(Message.GETSETELEM, NLM_F_DUMP, table, text(LIST_SET, of))

        async def read(keys: dict[Key, None]) -> int:
            return sum(await self.netlink.request(listing, partial(_keep, keys)))

        return list(await listed_once(f"set {of}", read))

    async def _is_dormant(self, table: Table) -> bool | None:
        """None if there is no such table."""
        asked = table_message(Message.GETTABLE, 0, table)
        found = await none_if_refused(self.netlink.request(asked, parse_is_dormant), errno.ENOENT)
        return only(found) if found is not None else None

    async def _dump(self, kind: Message, table: Table, parse: Callable[[bytes], T | None]) -> list[T]:
        return await self.netlink.request(table_message(kind, NLM_F_DUMP, table), parse)


def _keep(keys: dict[Key, None], payload: bytes) -> int:
    """Add the elements of a part of a listing as it arrives; returns how many it has."""
    part = parse_keys(payload)
    keys.update(dict.fromkeys(part))
    return len(part)


def _is_gone_already(failure: Failure[NftChange]) -> bool:
    return isinstance(failure.change, DeleteElements) and failure.errno == errno.ENOENT
