"""Writes the rules of both address families and all tables.

All rules are in the legacy tables. A packet that they refuse, mark or translate is refused, marked or translated for
every later chain too. A packet that they accept is not accepted by these, since each packet also passes the chains of
iptables-nft. So where another program has made a table of iptables-nft, kroute adds the rules that accept packets of
Services; it does not make such a table itself.

A family or table that the kernel does not support is reported once, with what the node lacks without it. The others are
written all the same. No table reports its changes, so the kernel lists a whole table for a digest.
"""

import errno
from collections.abc import Mapping
from contextlib import suppress

from kroute.firewall.iptables.address_sets import PREFIX
from kroute.firewall.iptables.rules import IptablesRules, accepting_rules, family_rules
from kroute.firewall.rule_writer import RuleWriter
from kroute.kernel.clients import XtablesClient
from kroute.kernel.digest import Digest
from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.tools import Variant
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings

NAT, MANGLE, FILTER = "nat", "mangle", "filter"
LEGACY = (NAT, MANGLE, FILTER)
"""The legacy tables in the order in which they are written. Removal is in reverse order."""
_TABLES = {"legacy": LEGACY, "nft": (FILTER,)}
"""By variant."""
_FAMILIES = {family.number: family for family in Family}

WITHOUT = {
    NAT: "nothing is masqueraded in this family until its table is there; trying again",
    MANGLE: "ports with loadBalancerSourceRanges are not served in this family, and ports of the node itself answer"
    " behind endpoints that are VIPs, until its table is there; trying again",
    FILTER: "ports with loadBalancerSourceRanges are not served in this family, and ports of the node itself answer on"
    " VIPs, until its table is there; trying again",
    f"nft {FILTER}": "a firewall there may drop the answers of pods; trying again at the next resync",
}
"""What the absence of each table means."""

ENFORCING = (MANGLE, FILTER)
"""The tables that enforce source ranges. Without one of them, some client outside the ranges reaches the port."""

Key = tuple[Variant, str]


class IptablesTables(RuleWriter[Key]):
    """Owns the chains whose names begin with KROUTE-: the part of the backend that writes rules."""

    hindering = frozenset({errno.EAGAIN})

    def __init__(self, settings: Settings, clients: Mapping[Variant, XtablesClient]) -> None:
        super().__init__()
        self._settings = settings
        self._clients = clients
        self._keys = [(variant, table) for variant in clients for table in _TABLES[variant.name]]
        self._last_look: list[Digest] | None = None

    async def ensure(self, node: NodeFacts) -> tuple[list[str], bool]:
        """Write all rules that are missing or wrong. Their sets must exist and be filled.

        Returns the drift, and whether all tables are as they were before.
        """
        self.hindered_by = ""
        before = await self._digests()
        drift = [what for key in self._keys for what in await self._ensure(key, node)]
        is_same = before == await self._digests()
        # After a write, or if not all could be compared, the next look does not know what was compared.
        self._last_look = before if is_same and not self.failing else None
        return drift, is_same

    async def are_rules_untouched(self) -> bool:
        """Whether all tables are as they were when they were last compared and found right."""
        return self._last_look is not None and self._last_look == await self._digests()

    def enforces(self, family: Family) -> bool:
        """Whether the tables of ENFORCING were right after they were last checked or written."""
        return all((Variant(family.number, "legacy"), table) in self.standing for table in ENFORCING)

    async def withdraw(self, family: int) -> None:
        """Delete the rules of one family, so that its sets can be replaced. A failure shows when a set is destroyed."""
        self.written.pop((Variant(family, "nft"), FILTER), None)
        for key in reversed(self._keys):
            if key[0].family == family:
                self.standing.discard(key)
                with suppress(KernelError):
                    await self._clients[key[0]].remove(key[1], PREFIX)

    async def remove(self, report: CleanupReport) -> None:
        for key in reversed(self._keys):
            await remove_rules(self._clients[key[0]], key, PREFIX, report)

    async def rules(self, family: Family, node: NodeFacts) -> IptablesRules:
        return family_rules(self._settings, family, node)

    async def rule_differences(self, family: Family, node: NodeFacts) -> list[str]:
        """What is wrong with the rules in the kernel, or why they cannot be read, one sentence each."""
        found = []
        for variant, table in [key for key in self._keys if key[0].family == family.number]:
            client, wrong = self._clients[variant], [] if variant.name == "nft" else ["there are none"]
            try:
                if await client.is_used(table):
                    wrong = await client.differences(self._rules(variant, table, node))
            except KernelError as error:
                wrong = [str(error)]
            found += [f"{family} rules of {_in_words(variant, table)}: {what}" for what in wrong]
        return found

    async def missing(self, family: Family) -> list[str]:
        """The kernel's errors for the legacy tables that it cannot make, one sentence each."""
        found = []
        for table in LEGACY:
            try:
                await self._clients[Variant(family.number, "legacy")].differences(TableRules(table, {}, []))
            except KernelError as error:
                found.append(str(error))
        return found

    async def _ensure(self, key: Key, node: NodeFacts) -> list[str]:
        """Write one table; returns the drift."""
        variant, table = key
        client, label = self._clients[variant], table if variant.name == "legacy" else f"nft {table}"

        async def write() -> tuple[TableRules | None, list[str]]:
            if variant.name == "nft" and not await client.is_used(table):
                return None, []
            rules = self._rules(variant, table, node)
            return rules, await client.ensure(rules)

        family = _FAMILIES[variant.family].value
        drift = await self.keep(key, write, WITHOUT[label], family=family, table=label)
        return [f"{variant.label}: {what}" for what in drift]

    def _rules(self, variant: Variant, table: str, node: NodeFacts) -> TableRules:
        family = _FAMILIES[variant.family]
        if variant.name == "nft":
            return accepting_rules(self._settings, family)
        return family_rules(self._settings, family, node).tables[table]

    async def _digests(self) -> list[Digest] | None:
        """The digests of all tables now; None if some are refused."""
        try:
            return [await client.digest(_TABLES[variant.name]) for variant, client in self._clients.items()]
        except KernelError:
            return None  # then the rules themselves are compared, and that says what is wrong


async def remove_rules(client: XtablesClient, key: Key, prefix: str, report: CleanupReport) -> None:
    """Remove the chains of a table whose names have the prefix, and the jumps to them."""
    variant, table = key
    family, words = _FAMILIES[variant.family], _in_words(variant, table)
    with report.step(f"{family} rules of {words}"):
        for what in await client.remove(table, prefix):
            report.add(f"remove {family} {what} of {words}")


def _in_words(variant: Variant, table: str) -> str:
    return f"nft table {table}" if variant.name == "nft" else f"table {table}"
