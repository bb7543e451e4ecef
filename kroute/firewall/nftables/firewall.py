"""Implements `kroute.firewall.protocol.Firewall` with nf_tables."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping

from kroute.firewall.nftables.contents import SetContents
from kroute.firewall.nftables.names import BY_NAME, DEFINITIONS, TABLES, full_name
from kroute.firewall.nftables.table_watch import TableWatch
from kroute.firewall.nftables.tables import NftablesTables
from kroute.firewall.protocol import Prerequisites, SetCount
from kroute.firewall.sets import ROOM, Capacity, Room, Sets
from kroute.kernel.clients import NftablesClient
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, Element, SetEntry
from kroute.settings import Settings


class NftablesFirewall(NftablesTables):
    """Owns the tables `ip kroute` and `ip6 kroute` with all that is in them.

    The kernel's sets grow by themselves; this object keeps each at `room.most` elements.
    """

    def __init__(self, settings: Settings, nftables: NftablesClient, *, room: Room = ROOM) -> None:
        super().__init__(settings, nftables)
        self._room = room
        self._contents = SetContents(nftables, room)
        self._known: set[Family] = set()
        self._reading: int | None = None
        self._read: int | None = None
        self.watch = TableWatch(nftables, TABLES.values())
        self._transactions = asyncio.Lock()
        """Held while rules are compared: after a change of elements the kernel's state would have to be read again."""

    async def ensure_sets(self) -> list[str]:
        self._reading = self._read = None
        generation = await self.watch.begin()
        drift = []
        for family in Family:
            made, wrong = await self.ensure_sets_of(family)
            for definition in made:
                self._contents.made(family, BY_NAME[definition.name])
            drift += wrong
        self._known = set(self.supported)
        self._reading = generation
        return drift

    def capacity(self, family: Family, which: AddressSet) -> Capacity | None:
        del which
        return Capacity(self._room.most, self._room.most) if family in self._known else None

    async def elements(self) -> AsyncIterator[list[SetEntry]]:
        for family in self.supported:
            async for part in self._contents.all(family):
                yield part
        self._read = self._reading

    async def change_elements(self, changes: Mapping[SetEntry, bool]) -> Mapping[SetEntry, str]:
        by_family: dict[Family, dict[AddressSet, dict[Element, bool]]] = {family: {} for family in Family}
        for entry, is_wanted in changes.items():
            by_family[entry.family].setdefault(entry.set, {})[entry.element] = is_wanted
        refused: dict[SetEntry, str] = {}
        async with self._transactions:
            for family, of_family in by_family.items():
                if of_family:
                    refused |= await self._contents.change(family, of_family)
        return refused

    async def ensure_rules(self, node: NodeFacts) -> list[str]:
        async with self._transactions:
            drift = await super().ensure_rules(node)
        if not all(map(self.enforces, Family)):
            self.watch.found_wrong()
        elif self._read is not None:
            self.watch.found_right(self._read)
            self._read = None
        return drift

    async def is_untouched(self) -> bool:
        return await self.watch.is_untouched()

    async def looks_untouched(self, count: SetCount) -> bool:
        del count
        return await self.is_untouched()

    async def are_rules_untouched(self) -> bool:
        return True  # `looks_untouched` says so of sets and rules

    async def follow(self, changed: Callable[[], None]) -> None:
        await self.watch.follow(changed)

    async def is_present(self) -> bool:
        return bool(await self.present())

    def set_name(self, family: Family, which: AddressSet) -> str:
        return full_name(family, which)

    async def read_sets(self, family: Family, sets: Collection[AddressSet] = tuple(AddressSet)) -> Sets:
        state = await self.nftables.read(TABLES[family])
        present = state.sets if state is not None else {}
        return {which: await self._contents.read(family, which) for which in sets if DEFINITIONS[which].name in present}

    async def prerequisites(self) -> Prerequisites:
        """Let the kernel check a table with all sets and rules, which it then does not make."""
        missing = {family: await self.unsupported(family) for family in Family}
        return Prerequisites("nftables", missing, "the kernel has all of nf_tables that is needed, for both families")
