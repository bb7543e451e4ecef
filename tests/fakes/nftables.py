"""The client of a fake kernel's nf_tables."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Self, TypeVar

import msgspec

from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.nftables.objects import (
    FAMILY_NAMES,
    AddElements,
    AddTable,
    Chain,
    DeleteElements,
    DeleteTable,
    Element,
    ElementChange,
    NftChain,
    NftChange,
    NftRule,
    NftSet,
    Table,
    TableState,
)
from tests.fakes.client import FakeClient
from tests.fakes.kernel import FakeKernel
from tests.fakes.nft_tables import FakeNft, FakeNftTable

T = TypeVar("T")

PART = 500


class FakeNftables(FakeClient):
    """Same shape as kroute.kernel.nftables.client.Nftables."""

    def __init__(self, kernel: FakeKernel) -> None:
        super().__init__(kernel)
        self._commits = 0

    async def chains(self) -> list[NftChain]:
        self.check_open()
        return [
            NftChain(FAMILY_NAMES[table.family], table.name, it.name, it.hook, drops=it.drops)
            for table, state in self.kernel.nft.tables.items()
            for it in state.chains.values()
        ]

    async def tables(self) -> list[tuple[str, str]]:
        self.check_open()
        return [table.listed_as for table in self.kernel.nft.tables]

    async def transact(
        self, table: Table, changes: Sequence[NftChange], *, generation: int = 0
    ) -> list[Failure[NftChange]]:
        self.check_open()
        if generation not in {0, self._nft.generation}:
            raise KernelError("the kernel refused a transaction", errno=errno.ERESTART)
        failures, state = self._try(table, changes)
        if not failures:
            self._commit(table, changes, state)
        return failures

    async def validate(self, table: Table, changes: Sequence[NftChange]) -> list[Failure[NftChange]]:
        self.check_open()
        return self._try(table, changes)[0]

    async def write(self, table: Table, changes: Sequence[ElementChange]) -> list[Failure[NftChange]]:
        self.check_open()
        failures, state = self._try(table, changes)
        if state is not None:
            self._commit(table, [it for it in _singly(changes) if it not in {each.change for each in failures}], state)
        return [it for it in failures if not (isinstance(it.change, DeleteElements) and it.errno == errno.ENOENT)]

    async def read(self, table: Table) -> TableState | None:
        self.check_open()
        found = self._nft.tables.get(table)
        if found is None:
            return None
        rules = [it for chain in found.chains for it in found.rules[chain]]
        return TableState({name: it.definition for name, it in found.sets.items()}, dict(found.chains), rules)

    async def rules(
        self, table: Table, keep: Callable[[int, NftRule], T | None]
    ) -> tuple[int, dict[str, Chain], list[T]] | None:
        found = await self.read(table)
        if found is None:
            return None
        kept = [it for handle, rule in found.rules if (it := keep(handle, rule)) is not None]
        return self._nft.generation, found.chains, kept

    async def elements(self, table: Table, of: NftSet) -> AsyncIterator[list[Element]]:
        self.check_open()
        state = self._nft.tables.get(table)
        if state is None or of.name not in state.sets:
            raise KernelError(f"there is no set {of.name} in table {table}", errno=errno.ENOENT)
        listed = list(state.sets[of.name].elements)
        for start in range(0, len(listed), PART):
            yield listed[start : start + PART]

    async def foreign_generation(self) -> int:
        self.check_open()
        return self._nft.generation - self._commits

    def foreign_changes(self, tables: Collection[Table]) -> "FakeForeignChanges":
        self.check_open()
        return FakeForeignChanges(self, set(tables))

    @property
    def _nft(self) -> FakeNft:
        return self.kernel.nft

    def _try(self, table: Table, changes: Sequence[NftChange]) -> tuple[list[Failure[NftChange]], FakeNftTable | None]:
        """The refused changes, and the table after all others; the fake's tables are as they were."""
        found = self._nft.tables.get(table)
        state = found.copy() if found else None
        failures: list[Failure[NftChange]] = []
        for change in _singly(changes):
            number = self.kernel.refusal(change) or 0
            if isinstance(change, AddTable):
                number = number or (errno.EOPNOTSUPP if FAMILY_NAMES[table.family] in self._nft.lacking else 0)
                state = state or (FakeNftTable(table.family, lacking=self._nft.lacking) if not number else None)
            elif state is None:
                number = number or errno.ENOENT
            elif isinstance(change, DeleteTable):
                state = state if number else None
            else:
                number = number or state.refusal(change)
            if number:
                failures.append(Failure(change, number))
        return failures, state

    def _commit(self, table: Table, changes: Sequence[NftChange], state: FakeNftTable | None) -> None:
        self._commits += self._nft.commit(table, state, self)
        self.kernel.writes += _singly(changes)


class FakeForeignChanges:
    """Same shape as kroute.kernel.nftables.table_monitor.TableMonitor."""

    def __init__(self, client: FakeNftables, tables: set[Table]) -> None:
        self._watchers = client.kernel.nft.watchers
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._watcher = (client, tables, self._queue)

    async def __aenter__(self) -> Self:
        self._watchers.append(self._watcher)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watchers.remove(self._watcher)

    async def next(self) -> str:
        who = await self._queue.get()
        while not self._queue.empty():
            who = self._queue.get_nowait()
        return who


def _singly(changes: Sequence[NftChange]) -> list[NftChange]:
    """The changes, each of one element at most."""
    found: list[NftChange] = []
    for change in changes:
        if isinstance(change, AddElements | DeleteElements):
            found.extend(msgspec.structs.replace(change, elements=(element,)) for element in change.elements)
        else:
            found.append(change)
    return found
