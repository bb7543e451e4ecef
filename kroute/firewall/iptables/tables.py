"""Writes the rules of both address families and all tables.

A family or table that the kernel does not support is reported once, with what the node lacks without it. It stops none
of the others.
"""

import errno
from collections.abc import Mapping
from contextlib import suppress

import structlog

from kroute.firewall.iptables.address_sets import PREFIX
from kroute.firewall.iptables.rules import FamilyRules, family_rules
from kroute.kernel.errors import KernelError
from kroute.kernel.firewall_clients import XtablesClient
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings

log = structlog.get_logger(__name__)

NAT, MANGLE, FILTER = "nat", "mangle", "filter"

WITHOUT = {
    NAT: "nothing is masqueraded in this family until its table is there; trying again",
    MANGLE: "ports with loadBalancerSourceRanges are not served in this family, and ports of the node itself answer"
    " behind endpoints that are VIPs, until its table is there; trying again",
    FILTER: "ports with loadBalancerSourceRanges are not served in this family, and ports of the node itself answer on"
    " VIPs, until its table is there; trying again",
}
"""The tables in the order in which they are written, with what their absence means. Removal is in reverse order."""

ENFORCING = (MANGLE, FILTER)
"""The tables that enforce source ranges. Without one of them, some client outside the ranges reaches the port."""


class Tables:
    """Owns the chains whose names begin with KROUTE-. `xtables` has a client for each address family.

    `hindered_by` says which other program kept the last `ensure` from writing what the kernel could have; "" if none.
    """

    def __init__(self, settings: Settings, xtables: Mapping[Family, XtablesClient]) -> None:
        self._settings = settings
        self._xtables = xtables
        self._random_fully: dict[Family, bool] = {}
        self._written: dict[tuple[Family, str], TableRules] = {}
        self._failing: set[tuple[Family, str]] = set()
        self._standing: set[tuple[Family, str]] = set()
        self.hindered_by = ""

    async def ensure(self, node: NodeFacts) -> list[str]:
        """Write all rules that are missing or wrong; returns the drift. Their sets must exist and be filled."""
        self.hindered_by = ""
        return [
            f"{family}: {what}"
            for family in self._xtables
            for table in WITHOUT
            for what in await self._ensure(family, table, node)
        ]

    def enforce(self, family: Family) -> bool:
        """Whether the tables of ENFORCING were right after they were last checked or written."""
        return all((family, table) in self._standing for table in ENFORCING)

    @property
    def are_right(self) -> bool:
        """Whether the last `ensure` could compare and write all tables."""
        return not self._failing

    async def withdraw(self, family: Family) -> None:
        """Delete the rules of one family, so that its sets can be replaced. A failure shows when a set is destroyed."""
        self._standing -= {(family, table) for table in WITHOUT}
        for table in reversed(WITHOUT):
            with suppress(KernelError):
                await self._xtables[family].remove(table, PREFIX)

    async def remove(self, report: CleanupReport) -> None:
        for family, xtables in self._xtables.items():
            for table in reversed(WITHOUT):
                with report.step(f"{family} rules of table {table}"):
                    for what in await xtables.remove(table, PREFIX):
                        report.add(f"remove {family} {what} of table {table}")

    async def expected(self, family: Family, node: NodeFacts) -> FamilyRules:
        """The rules that one family should have. If table nat is not in use yet, this does not make it."""
        xtables = self._xtables[family]
        random_fully = False
        with suppress(KernelError):
            random_fully = await xtables.is_used(NAT) and await xtables.supports_random_fully()
        return family_rules(self._settings, family, node, random_fully=random_fully)

    async def differences(self, rules: FamilyRules) -> list[str]:
        """What is wrong with the rules in the kernel, or why they cannot be read, one sentence each."""
        xtables = self._xtables[rules.family]
        found = []
        for table in rules.tables:
            try:
                wrong = await xtables.differences(table) if await xtables.is_used(table.table) else ["there are none"]
            except KernelError as error:
                wrong = [str(error)]
            found += [f"{rules.family} rules of table {table.table}: {what}" for what in wrong]
        return found

    async def missing(self, family: Family) -> list[str]:
        """The kernel's errors for the tables that it cannot make, one sentence each."""
        found = []
        for table in WITHOUT:
            try:
                await self._xtables[family].differences(TableRules(table, {}, []))
            except KernelError as error:
                found.append(str(error))
        return found

    async def _ensure(self, family: Family, table: str, node: NodeFacts) -> list[str]:
        """Write one table; returns the drift: what was wrong although the same rules had been written before."""
        key = (family, table)
        try:
            rules = await self._rules(family, table, node)
            wrong = await self._xtables[family].ensure(rules)
        except KernelError as error:
            if key not in self._failing:
                without = WITHOUT[table]
                log.warning("rules.failed", family=family.value, table=table, error=str(error), next_step=without)
            if error.errno == errno.EAGAIN:
                self.hindered_by = str(error)
            self._failing.add(key)
            self._standing.discard(key)
            return []
        self._failing.discard(key)
        self._standing.add(key)
        before, self._written[key] = self._written.get(key), rules
        if wrong and before != rules:
            log.info("rules.written", family=family.value, table=table, what=wrong)
            return []
        return wrong

    async def _rules(self, family: Family, table: str, node: NodeFacts) -> TableRules:
        """Table nat alone depends on `random_fully`, so only it fails if the kernel does not say."""
        if table == NAT and family not in self._random_fully:
            self._random_fully[family] = await self._xtables[family].supports_random_fully()
        random_fully = self._random_fully.get(family, False)
        return family_rules(self._settings, family, node, random_fully=random_fully).of(table)
