"""The recording client of nf_tables."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Self

from kroute.inspect.dry_run.recording import ADD, DELETE, EDIT, Recorder
from kroute.kernel.errors import Failure
from kroute.kernel.firewall_clients import NftablesClient
from kroute.kernel.nftables.chains import NftChain
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
    SetDefinition,
    Table,
    TableState,
)

_NEW_RULE = 0
"""The handle of a rule that is only recorded; the kernel's begin with 1."""


class RecordingNftables:
    """Tables with their sets, chains and rules. What is recorded counts as made when a table is read again."""

    def __init__(self, nftables: NftablesClient, recorder: Recorder) -> None:
        self._nftables = nftables
        self._recorder = recorder
        self._states: dict[Table, TableState | None] = {}
        self._emptied: set[tuple[Table, str]] = set()
        """Sets that have no elements but recorded ones."""

    async def chains(self) -> list[NftChain]:
        return await self._recorder.answered(self._nftables.chains())

    async def tables(self) -> list[tuple[str, str]]:
        return await self._recorder.answered(self._nftables.tables())

    async def transact(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        """Record the changes, except a table that exists already and is not dormant."""
        state = await self.read(table)
        for change in changes:
            if isinstance(change, AddTable) and state is not None and not state.is_dormant:
                continue
            self._note(table, change)
            if isinstance(change, AddSet | FlushSet):
                self._emptied.add((table, change.set.name if isinstance(change, AddSet) else change.name))
            state = _changed(state, change)
        self._states[table] = state
        return []

    async def validate(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        """The kernel's own answer: it changes nothing."""
        return await self._nftables.validate(table, changes)

    async def write(self, table: Table, changes: Sequence[ElementChange]) -> list[Failure[NftChange]]:
        for change in changes:
            self._note(table, change)
        return []

    async def read(self, table: Table) -> TableState | None:
        """The recorded table, else the kernel's."""
        if table not in self._states:
            self._states[table] = await self._recorder.answered(self._nftables.read(table))
        return self._states[table]

    async def elements(self, table: Table, of: SetDefinition) -> AsyncIterator[list[Element]]:
        """The kernel's elements. A set that is only recorded has none."""
        if (table, of.name) not in self._emptied:
            async for part in self._nftables.elements(table, of):
                yield part

    async def foreign_generation(self) -> int:
        return await self._nftables.foreign_generation()

    def foreign_changes(self, tables: Collection[Table]) -> "NoForeignChanges":  # noqa: ARG002
        """No changes: a dry run compares the state of one moment."""
        return NoForeignChanges()

    def _note(self, table: Table, change: NftChange) -> None:
        if isinstance(change, AddElements | DeleteElements):
            action = ADD if isinstance(change, AddElements) else DELETE
            for element in change.elements:
                one = change._replace(elements=(element,))
                self._recorder.note("set entry", action, str(one), (f"{table} {change.set.name}", element))
            return
        kind = "set" if isinstance(change, AddSet | DeleteSet | FlushSet) else "rules"
        action = ADD if isinstance(change, AddTable | AddSet | AddChain | AddRule) else DELETE
        action = EDIT if isinstance(change, FlushChain | FlushSet) else action
        what = f"{action} table {table}" if isinstance(change, AddTable | DeleteTable) else f"{change} of table {table}"
        self._recorder.note(kind, action, what)


class NoForeignChanges:
    """A source of no changes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def next(self) -> str:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never


def _changed(state: TableState | None, change: NftChange) -> TableState | None:
    """The table after a change of sets, chains or rules."""
    if isinstance(change, DeleteTable):
        return None
    sets, chains, rules, is_dormant = state or TableState({}, {}, [])
    match change:
        case AddTable():
            is_dormant = False
        case AddSet(definition):
            sets = {**sets, definition.name: definition}
        case DeleteSet(name):
            sets = {key: it for key, it in sets.items() if key != name}
        case AddChain(chain):
            chains = {**chains, chain.name: chain}
        case DeleteChain(name):
            chains = {key: it for key, it in chains.items() if key != name}
        case AddRule(rule):
            rules = [*rules, (_NEW_RULE, rule)]
        case FlushChain(name):
            rules = [it for it in rules if it[1].chain != name]
        case DeleteRule(name, handle):
            rules = [it for it in rules if (it[1].chain, it[0]) != (name, handle)]
    order = list(chains)
    rules = sorted(rules, key=lambda it: order.index(it[1].chain) if it[1].chain in order else 0)
    return TableState(sets, chains, rules, is_dormant)
