"""The rules of both address families and both tables, as they are now, and what a node lacks without them.

A family or table that the kernel does not offer is told of once, and stops none of the others.
"""

from collections.abc import Mapping
from contextlib import suppress

import structlog

from kroute.controllers.masquerade.address_sets import PREFIX, Family
from kroute.controllers.masquerade.filter_rules import filter_rules, output_rules
from kroute.controllers.masquerade.nat_rules import masquerade_rules
from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.xtables import TableRules, Xtables
from kroute.model.node_facts import NodeFacts
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.pass_status import Account
from kroute.settings import Settings

log = structlog.get_logger(__name__)

NAT, MANGLE, FILTER = "nat", "mangle", "filter"

WITHOUT = {
    NAT: "nothing is masqueraded in this family until its table is there; trying again",
    MANGLE: "loadBalancerSourceRanges do not bind this node's own processes until its table is there; trying again",
    FILTER: "ports of the node itself answer on VIPs in this family until its table is there; trying again",
}
"""The tables in the order in which they are written, and what their absence means. They are removed in reverse."""


class NodeRules:
    """Owns the chains named KROUTE-. `xtables` has an entry for each family that the node may have."""

    def __init__(self, settings: Settings, xtables: Mapping[Family, Xtables], account: Account) -> None:
        self._settings = settings
        self._xtables = xtables
        self._account = account
        self._random_fully: dict[Family, bool] = {}
        self._written: dict[tuple[Family, str], TableRules] = {}
        self._failing: set[tuple[Family, str]] = set()

    async def ensure(self, node: NodeFacts) -> None:
        """Make all rules right. The sets that they look up must be there, and filled."""
        for family in self._xtables:
            for table in WITHOUT:
                await self._ensure(family, table, node)

    async def withdraw(self, family_number: int) -> None:
        """Delete the rules of one family, so that its sets can be replaced; a set still in use will say so itself."""
        for family, xtables in self._xtables.items():
            if family.number == family_number:
                for table in reversed(WITHOUT):
                    with suppress(KernelError):
                        await xtables.remove(table, PREFIX)

    async def cleanup(self, report: CleanupReport) -> None:
        """Delete all rules."""
        for family, xtables in self._xtables.items():
            for table in reversed(WITHOUT):
                with report.step(f"{family.name} rules of table {table}"):
                    for what in await xtables.remove(table, PREFIX):
                        report.add(f"remove {family.name} {what} of table {table}")

    async def _ensure(self, family: Family, table: str, node: NodeFacts) -> None:
        key = (family, table)
        try:
            rules = await self._rules(family, table, node)
            wrong = await self._xtables[family].ensure(rules)
        except KernelError as error:
            if key not in self._failing:
                log.warning("rules.failed", family=family.name, table=table, error=str(error), next_step=WITHOUT[table])
            self._failing.add(key)
            return
        self._failing.discard(key)
        if wrong and self._written.get(key) == rules:
            self._account.repaired(f"{family.name}: {what}" for what in wrong)
        elif wrong:
            log.info("rules.written", family=family.name, table=table, what=wrong)
        self._written[key] = rules

    async def _rules(self, family: Family, table: str, node: NodeFacts) -> TableRules:
        if table == FILTER:
            return filter_rules(self._settings, family)
        if table == MANGLE:
            return output_rules(family)
        if family not in self._random_fully:
            self._random_fully[family] = await self._xtables[family].supports_random_fully()
        return masquerade_rules(self._settings, family, node, random_fully=self._random_fully[family])
