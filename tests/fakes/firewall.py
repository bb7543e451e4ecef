"""A firewall in memory. It refuses what every kernel refuses, whichever backend is used."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from ipaddress import ip_address, ip_network

from kroute.firewall.protocol import Prerequisites, SetCount
from kroute.firewall.sets import ROOM, SHAPES, Capacity, ElementPart, Room, Sets
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, Element, SetEntry
from kroute.reconcile.batches import sliced
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings
from tests.fakes.firewall_rules import FakeRules

NO_SET, OTHER_SHAPE, FULL = "there is no such set", "the element does not fit the set", "the set is full"


class FakeFirewall:
    """Same shape as kroute.firewall.protocol.Firewall.

    While the `lock` is not set, somebody else writes rules, and who has to write some waits.
    `sets` are those that were made, `written_for` the facts that the rules were last written for; tests damage both.
    A set grows to `room.most`. While it `refuses_rules`, none can be written, but those that stand are read.
    `knows_untouched` is what it says of itself; `disturb` tells its followers that somebody has changed it.
    """

    def __init__(self, settings: Settings, *, room: Room = ROOM) -> None:
        self.sets: dict[tuple[Family, AddressSet], set[Element]] = {}
        self.written_for: NodeFacts | None = None
        self._known: NodeFacts | None = None
        self._settings = settings
        self._room = room
        self.refuses_rules = False
        self.lock = asyncio.Event()
        self.lock.set()
        self.waiting_for: NodeFacts | None = None
        self.knows_untouched = False
        self._followers: list[Callable[[], None]] = []

    async def ensure_sets(self) -> list[str]:
        missing = [(family, which) for family in Family for which in SHAPES if (family, which) not in self.sets]
        self.sets |= {key: set() for key in missing}
        return [f"set {self.set_name(*key)} was missing" for key in missing]

    def capacity(self, family: Family, which: AddressSet) -> Capacity | None:
        elements = self.sets.get((family, which))
        if elements is None:
            return None
        now = self._room.first
        while now < len(elements):
            now = self._room.after(now)
        return Capacity(now, self._room.most)

    async def elements(self) -> AsyncIterator[list[SetEntry]]:
        for (_, which), elements in list(self.sets.items()):
            async for part in sliced(set(elements)):
                yield [SetEntry(which, element) for element in part]

    async def change_elements(self, changes: Mapping[SetEntry, bool]) -> Mapping[SetEntry, str]:
        refused = {}
        for entry, is_wanted in changes.items():
            if why := self._refusal(entry, is_wanted=is_wanted):
                refused[entry] = f"cannot change {entry}: {why}"
            elif is_wanted:
                self.sets[entry.family, entry.set].add(entry.element)
            else:
                self.sets[entry.family, entry.set].discard(entry.element)
        return refused

    async def ensure_rules(self, node: NodeFacts) -> list[str]:
        if self.refuses_rules and self.written_for != node:
            self._known = node
            return []
        if self.written_for != node:
            self.waiting_for = node
            await self.lock.wait()
            self.waiting_for = None
        drift = ["the rules were not as they should be"] if self._known == node != self.written_for else []
        self.written_for = self._known = node
        return drift

    def enforces(self, family: Family) -> bool:
        return self.written_for is not None and family in Family

    def rules_hindered_by(self) -> str:
        return "somebody else writes rules" if self.refuses_rules and self.written_for != self._known else ""

    async def is_untouched(self) -> bool:
        return self.knows_untouched

    async def looks_untouched(self, count: SetCount) -> bool:
        return self.knows_untouched and all(count(*key) == len(it) for key, it in self.sets.items())

    async def are_rules_untouched(self) -> bool:
        return self.written_for == self._known

    async def follow(self, changed: Callable[[], None]) -> None:
        self._followers.append(changed)
        try:
            await asyncio.Event().wait()
        finally:
            self._followers.remove(changed)

    def disturb(self) -> None:
        for changed in self._followers:
            changed()

    async def is_present(self) -> bool:
        return bool(self.sets)

    async def remove(self, report: CleanupReport) -> None:
        if self.written_for is not None:
            report.add("remove the rules")
        for key in self.sets:
            report.add(f"remove set {self.set_name(*key)}")
        self.sets.clear()
        self.written_for = None

    def set_name(self, family: Family, which: AddressSet) -> str:
        return f"{which} of {family}"

    async def read_sets(self, family: Family, sets: Collection[AddressSet] = tuple(AddressSet)) -> Sets:
        return {which: set(self.sets[family, which]) for which in sets if (family, which) in self.sets}

    async def rules(self, family: Family, node: NodeFacts) -> FakeRules:
        return FakeRules(self._settings, family, node)

    async def rule_differences(self, family: Family, node: NodeFacts) -> list[str]:
        return [] if self.written_for == node else [f"{family} rules are others"]

    async def prerequisites(self) -> Prerequisites:
        return Prerequisites("firewall", {family: [] for family in Family}, "there is memory")

    def _refusal(self, entry: SetEntry, *, is_wanted: bool) -> str:
        known = self.sets.get((entry.family, entry.set))
        if known is None:
            return NO_SET
        if not _fits(entry):
            return OTHER_SHAPE
        return FULL if is_wanted and entry.element not in known and len(known) >= self._room.most else ""


def _fits(entry: SetEntry) -> bool:
    """Whether the element has the parts that its set needs, in one family."""
    fields = iter(entry.element)
    version = 6 if entry.family is Family.IPV6 else 4
    try:
        for part in SHAPES[entry.set]:
            if part is ElementPart.PORT:
                if not (0 <= int(next(fields)) <= 255 and 0 <= int(next(fields)) <= 65535):
                    return False
            elif (ip_address if part is ElementPart.ADDRESS else ip_network)(next(fields)).version != version:
                return False
    except (StopIteration, ValueError):
        return False
    return next(fields, None) is None
