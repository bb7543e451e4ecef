"""Keeps the masquerade rules and the sets that they look up.

The rules never change with the Services; the sets do. A set is there and filled before a rule looks into it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import structlog

from kroute.broadcaster import Subscription
from kroute.controllers.claims import Claims, Difference
from kroute.controllers.cleanup_report import CleanupReport
from kroute.controllers.masquerade_rules import (
    PREFIX,
    TABLE,
    Family,
    cluster_networks,
    family_of,
    masquerade_rules,
    set_definitions,
)
from kroute.controllers.milestones import Milestones, Stage
from kroute.controllers.preparer import Preparer
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import AddEntry, DeleteEntry, Ipset, SetChange, SetDefinition
from kroute.kernel.xtables import Xtables
from kroute.planning.objects import ObjectKey
from kroute.planning.plan import ServicePlan
from kroute.settings import Settings

log = structlog.get_logger(__name__)

Present = Literal[True]

SETTINGS = ObjectKey("", "the settings")
"""Who claims the entries that come from no Service."""


class Masquerade(Preparer[AddEntry, Present]):
    """Owns the rules and sets named KROUTE-. `xtables` has an entry for each family that the node may have."""

    name = "masquerade"
    stage = Stage.ENTRIES_PREPARED

    def __init__(
        self,
        settings: Settings,
        subscription: Subscription,
        milestones: Milestones,
        *,
        ipset: Ipset,
        xtables: Mapping[Family, Xtables],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(settings, subscription, milestones, Claims(), None, clock)
        self._ipset = ipset
        self._xtables = xtables
        self._failing: set[Family] = set()
        self._rules_due = True
        self._looked_at_rules = False
        self._had_rules: set[Family] = set()
        self.claims.claim(SETTINGS, {AddEntry(name, (cidr,)): True for name, cidr in cluster_networks(settings)})

    def wanted_by(self, plan: ServicePlan) -> Mapping[AddEntry, Present]:
        """One set entry for each of the plan's, in the set of its family."""
        return {
            AddEntry(f"{family_of(entry.element[0]).set_prefix}{entry.set}", entry.element): True
            for entry in plan.set_entries
        }

    async def read(self) -> Iterable[str]:
        """Make the sets that are missing, and read the others. The rules are looked at when the sets are right."""
        drift: list[str] = []
        actual: dict[AddEntry, Present] = {}
        present = await self._ipset.names()
        for definition in set_definitions():
            if definition.name not in present:
                await self._ipset.create(definition)
                drift.append(f"set {definition.name} was missing")
            elif not await self._fits(definition):
                await self._remake(definition)
                drift.append(f"set {definition.name} was of another kind")
            else:
                entries = await self._ipset.read(definition.name)
                actual |= {AddEntry(definition.name, element): True for element in entries}
        self._rules_due = True
        drift += [
            f"entry {one.key} was {'not wanted' if one.applied else 'missing'}"
            for one in self.claims.replace_applied(actual)
        ]
        return drift

    async def write(self) -> None:
        """Fill the sets, then see to the rules. At first, no plan is prepared before the rules have been seen to."""
        await self.write_differences()
        if self._rules_due:
            if self._looked_at_rules:
                self.say_what_is_prepared()  # an audit of the rules may wait for the xtables lock
            self._rules_due, self._looked_at_rules = False, True
            for family, xtables in self._xtables.items():
                await self._ensure_rules(family, xtables)
        self.say_what_is_prepared()

    async def apply(self, differences: Sequence[Difference[AddEntry, Present]]) -> Mapping[AddEntry, str]:
        """Write set entries."""
        changes: list[SetChange] = [
            difference.key if difference.wanted else DeleteEntry(*difference.key) for difference in differences
        ]
        failures = await self._ipset.write(changes)
        return {AddEntry(*failure.change): str(failure) for failure in failures}

    def event_of(self, difference: Difference[AddEntry, Present]) -> str:
        """`set_entry.added`, `set_entry.removed`."""
        return "set_entry.added" if difference.wanted else "set_entry.removed"

    def fields_of(self, difference: Difference[AddEntry, Present]) -> dict[str, object]:
        """The set and its element."""
        return {"set": difference.key.set, "entry": difference.key.element}

    async def cleanup(self, report: CleanupReport) -> None:
        """Remove the rules, then the sets."""
        for family, xtables in self._xtables.items():
            with report.step(f"{family.name} rules"):
                for what in await xtables.remove(TABLE, PREFIX):
                    report.add(f"remove {family.name} {what}")
        for name in sorted(name for name in await self._ipset.names() if name.startswith(PREFIX)):
            with report.step(f"set {name}"):
                await self._ipset.destroy(name)
                report.add(f"destroy set {name}")

    async def _ensure_rules(self, family: Family, xtables: Xtables) -> None:
        """Make one family's rules right. A family that cannot have any is told of once, and does not stop the other."""
        try:
            random_fully = await xtables.supports_random_fully()
            wrong = await xtables.ensure(masquerade_rules(self._settings, family, random_fully=random_fully))
        except KernelError as error:
            if family not in self._failing:
                log.warning(
                    "rules.failed",
                    family=family.name,
                    error=str(error),
                    next_step="nothing is masqueraded in this family until its tables are there; trying again",
                )
            self._failing.add(family)
            return
        self._failing.discard(family)
        if wrong and family in self._had_rules:
            self.account.repaired(f"{family.name}: {what}" for what in wrong)
        elif wrong:
            log.info("rules.written", family=family.name, what=wrong)
        self._had_rules.add(family)

    async def _fits(self, definition: SetDefinition) -> bool:
        found = await self._ipset.definition(definition.name)
        return found is not None and found.fits(definition)

    async def _remake(self, definition: SetDefinition) -> None:
        """Replace a set of another kind, which an older version may have left; rules that look into it go first."""
        for xtables in self._xtables.values():
            await xtables.remove(TABLE, PREFIX)
        await self._ipset.destroy(definition.name)
        await self._ipset.create(definition)
