"""Implements `kroute.firewall.protocol.Firewall` with iptables' legacy tables and ipset."""

import errno
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping

import structlog

from kroute.firewall.iptables.address_sets import (
    PREFIX,
    SetGrowth,
    are_present,
    destroy_sets,
    set_definitions,
    set_name,
)
from kroute.firewall.iptables.tables import LEGACY, IptablesTables
from kroute.firewall.protocol import Prerequisites, SetCount
from kroute.firewall.sets import ROOM, SHAPES, Capacity, Room, Sets
from kroute.kernel.clients import IpsetClient, XtablesClient
from kroute.kernel.digest import LastLook
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.ipset import IPSET_ERR_HASH_FULL, AddEntry, DeleteEntry, SetChange, SetDefinition
from kroute.kernel.iptables.tools import Variant, run
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.plan import AddressSet, SetEntry
from kroute.reconcile.batches import sliced
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings

log = structlog.get_logger(__name__)


class IptablesFirewall(IptablesTables):
    """Owns the chains and sets whose names begin with KROUTE-."""

    def __init__(
        self,
        settings: Settings,
        ipset: IpsetClient,
        xtables: Mapping[Variant, XtablesClient],
        *,
        room: Room = ROOM,
    ) -> None:
        super().__init__(settings, xtables)
        self._ipset = ipset
        self._room = room
        self._growth = SetGrowth(ipset, room)
        self._definitions = set_definitions(room)
        self._looks: defaultdict[str, LastLook] = defaultdict(LastLook)
        """For each set. ipset does not report changes, so the kernel lists the whole set for a digest."""
        self._leftover_sets: set[str] = set()
        self._kept_sets: set[str] = set()

    async def ensure_sets(self) -> list[str]:
        drift = []
        present = await self._ipset.names()
        for definition in self._definitions:
            standing = definition
            if definition.name not in present:
                await self._ipset.create(definition)
                drift.append(f"set {definition.name} was missing")
            elif (found := await self._ipset.definition(definition.name)) is None or not found.fits(definition):
                drift.append(await self._replace(found, definition))
            else:
                standing = found
            self._growth.found(definition.name, standing.maxelem)
        self._leftover_sets = {name for name in present if name.startswith(PREFIX)} - {
            definition.name for definition in self._definitions
        }
        return drift

    def capacity(self, family: Family, which: AddressSet) -> Capacity | None:
        now = self._growth.standing.get(set_name(family, which))
        return Capacity(now, max(now, self._room.most)) if now is not None else None

    async def elements(self) -> AsyncIterator[list[SetEntry]]:
        for family in Family:
            for which in SHAPES:
                name = set_name(family, which)
                self._looks[name].read(await self._ipset.digest(name))
                async for elements in sliced(await self._ipset.read(name)):
                    yield [SetEntry(which, element) for element in elements]

    async def change_elements(self, changes: Mapping[SetEntry, bool]) -> Mapping[SetEntry, str]:
        written = [_change(entry, is_desired) for entry, is_desired in changes.items()]
        for change in written:
            self._looks[change.set].wrote()
        failures = await self._ipset.write(written)
        if not failures:
            return {}
        if grown := [name for name in _full(failures) if await self._has_grown(name)]:
            again = [failure.change for failure in failures if failure.change.set in grown]
            failures = [failure for failure in failures if failure.change.set not in grown]
            failures += await self._ipset.write(again)
        entries = dict(zip(written, changes, strict=True))
        return {entries[failure.change]: str(failure) for failure in failures}

    async def ensure_rules(self, node: NodeFacts) -> list[str]:
        """Write the rules of all tables, then destroy the sets that only the rules of an earlier version used."""
        drift, is_same = await self.ensure(node)
        if not is_same:
            for look in self._looks.values():
                look.wrote()  # a set counts the rules that refer to it
        await self._destroy_leftover_sets()
        return drift

    async def is_untouched(self) -> bool:
        """Never known: neither ipset nor the tables count their changes."""
        return False

    async def looks_untouched(self, count: SetCount) -> bool:
        for family in Family:
            for which in SHAPES:
                name = set_name(family, which)
                if not self._looks[name].is_same(await self._ipset.digest(name), (count(family, which),)):
                    return False
        return True

    async def follow(self, changed: Callable[[], None]) -> None:
        """Return at once: neither ipset nor the tables report their changes."""

    async def is_present(self) -> bool:
        return await are_present(self._ipset, PREFIX)

    async def remove(self, report: CleanupReport) -> None:
        await super().remove(report)
        await destroy_sets(self._ipset, PREFIX, report)

    def set_name(self, family: Family, which: AddressSet) -> str:
        return set_name(family, which)

    async def read_sets(self, family: Family, sets: Collection[AddressSet] = tuple(AddressSet)) -> Sets:
        present = await self._ipset.names()
        names = {which: name for which in sets if (name := set_name(family, which)) in present}
        return {which: await self._ipset.read(name) for which, name in names.items()}

    async def prerequisites(self) -> Prerequisites:
        """Check the tables. The kernel makes a table when a program first reads or writes it."""
        missing = {family: await self.missing(family) for family in Family}
        fulfilled = f"the kernel has the legacy tables {', '.join(LEGACY)}, for both families{await _variant()}"
        return Prerequisites("xtables", missing, fulfilled)

    async def _has_grown(self, name: str) -> bool:
        """What keeps a set from growing is no reason to leave others as they are."""
        try:
            return await self._growth.grow(name)
        except KernelError as error:
            log.warning("set.not_grown", set=name, error=str(error), next_step="trying again with the next entry")
            return False

    async def _replace(self, found: SetDefinition | None, definition: SetDefinition) -> str:
        """Make a set fit; says what was wrong with it."""
        if found is not None and found._replace(maxelem=definition.maxelem).fits(definition):
            await self._growth.enlarge(found, definition.maxelem)
            return f"set {definition.name} had room for {found.maxelem} elements only"
        await self.withdraw(definition.family)  # some of its rules look the set up
        await self._ipset.destroy(definition.name)
        await self._ipset.create(definition)
        return f"set {definition.name} was of another kind"

    async def _destroy_leftover_sets(self) -> None:
        """Destroy sets with our prefix that only an earlier version had. One that a foreign rule uses is kept."""
        for name in sorted(self._leftover_sets - self._kept_sets):
            try:
                await self._ipset.destroy(name)
            except KernelError as error:
                if error.errno != errno.EBUSY:
                    raise
                self._kept_sets.add(name)
                log.warning("set.kept", set=name, error=str(error), next_step="delete the rule that names it")
            else:
                log.info("set.destroyed", set=name)
        self._leftover_sets.clear()


def _full(failures: Iterable[Failure[SetChange]]) -> list[str]:
    """The sets that have no room for an element."""
    return sorted({failure.change.set for failure in failures if failure.errno == IPSET_ERR_HASH_FULL})


def _change(entry: SetEntry, is_desired: bool) -> AddEntry | DeleteEntry:
    change = AddEntry if is_desired else DeleteEntry
    return change(set_name(entry.family, entry.set), entry.element)


async def _variant() -> str:
    """A clause that says whether `iptables` here shows the legacy tables; "" where it is not installed."""
    said = await run(["iptables", "--version"])
    if said is None:
        return ""
    if "nf_tables" not in said:
        return "; `iptables` here shows them"
    return "; `iptables` here speaks nf_tables: kroute's rules are shown by `iptables-legacy-save`, and both are heeded"
