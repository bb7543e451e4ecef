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
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings

NAT, MANGLE, FILTER = "nat", "mangle", "filter"
LEGACY = (NAT, MANGLE, FILTER)
"""The legacy tables in the order in which they are written. Removal is in reverse order."""
NFT_FILTER = "nft filter"
"""The table filter of iptables-nft."""

WITHOUT = {
    NAT: "nothing is masqueraded in this family until its table is there; trying again",
    MANGLE: "ports with loadBalancerSourceRanges are not served in this family, and ports of the node itself answer"
    " behind endpoints that are VIPs, until its table is there; trying again",
    FILTER: "ports with loadBalancerSourceRanges are not served in this family, and ports of the node itself answer on"
    " VIPs, until its table is there; trying again",
    NFT_FILTER: "a firewall there may drop the answers of pods; trying again at the next resync",
}
"""What the absence of each table means."""

ENFORCING = (MANGLE, FILTER)
"""The tables that enforce source ranges. Without one of them, some client outside the ranges reaches the port."""

Key = tuple[Family, str]


class IptablesTables(RuleWriter[Key]):
    """Owns the chains whose names begin with KROUTE-. `legacy` and `nft` have a client for each address family."""

    hindering = frozenset({errno.EAGAIN})

    def __init__(
        self, settings: Settings, legacy: Mapping[Family, XtablesClient], nft: Mapping[Family, XtablesClient]
    ) -> None:
        super().__init__()
        self._settings = settings
        self._legacy = legacy
        self._clients: dict[Key, XtablesClient] = {
            **{(family, table): client for family, client in legacy.items() for table in LEGACY},
            **{(family, NFT_FILTER): client for family, client in nft.items()},
        }
        self._last_look: list[Digest] | None = None

    async def ensure(self, node: NodeFacts) -> tuple[list[str], bool]:
        """Write all rules that are missing or wrong. Their sets must exist and be filled.

        Returns the drift, and whether all tables are as they were before.
        """
        self.hindered_by = ""
        before = await self._digests()
        drift = [what for key in self._clients for what in await self._ensure(key, node)]
        is_same = before == await self._digests()
        # After a write, or if not all could be compared, the next look does not know what was compared.
        self._last_look = before if is_same and not self.failing else None
        return drift, is_same

    async def are_untouched(self) -> bool:
        """Whether all tables are as they were when they were last compared and found right."""
        return self._last_look is not None and self._last_look == await self._digests()

    def enforce(self, family: Family) -> bool:
        """Whether the tables of ENFORCING were right after they were last checked or written."""
        return all((family, table) in self.standing for table in ENFORCING)

    async def withdraw(self, family: Family) -> None:
        """Delete the rules of one family, so that its sets can be replaced. A failure shows when a set is destroyed."""
        self.written.pop((family, NFT_FILTER), None)
        for key in self._in_order_of_removal(family):
            self.standing.discard(key)
            with suppress(KernelError):
                await self._clients[key].remove(_kernel_name(key[1]), PREFIX)

    async def remove(self, report: CleanupReport) -> None:
        for key in self._in_order_of_removal(*Family):
            family, table = key
            with report.step(f"{family} rules of {_in_words(table)}"):
                for what in await self._clients[key].remove(_kernel_name(table), PREFIX):
                    report.add(f"remove {family} {what} of {_in_words(table)}")

    def expected(self, family: Family, node: NodeFacts) -> IptablesRules:
        """The rules that one family should have."""
        return family_rules(self._settings, family, node)

    async def differences(self, family: Family, node: NodeFacts) -> list[str]:
        """What is wrong with the rules in the kernel, or why they cannot be read, one sentence each."""
        found = []
        for (_, table), client in ((key, client) for key, client in self._clients.items() if key[0] is family):
            rules = self._rules(family, table, node)
            wrong = [] if table == NFT_FILTER else ["there are none"]
            try:
                if await client.is_used(rules.table):
                    wrong = await client.differences(rules)
            except KernelError as error:
                wrong = [str(error)]
            found += [f"{family} rules of {_in_words(table)}: {what}" for what in wrong]
        return found

    async def missing(self, family: Family) -> list[str]:
        """The kernel's errors for the legacy tables that it cannot make, one sentence each."""
        found = []
        for table in LEGACY:
            try:
                await self._legacy[family].differences(TableRules(table, {}, []))
            except KernelError as error:
                found.append(str(error))
        return found

    async def _ensure(self, key: Key, node: NodeFacts) -> list[str]:
        """Write one table; returns the drift."""
        (family, table), client = key, self._clients[key]

        async def write() -> tuple[TableRules | None, list[str]]:
            if table == NFT_FILTER and not await client.is_used(FILTER):
                return None, []
            rules = self._rules(family, table, node)
            return rules, await client.ensure(rules)

        drift = await self.keep(key, write, WITHOUT[table], family=family.value, table=table)
        variant = " nft" if table == NFT_FILTER else ""
        return [f"{family}{variant}: {what}" for what in drift]

    def _rules(self, family: Family, table: str, node: NodeFacts) -> TableRules:
        if table == NFT_FILTER:
            return accepting_rules(self._settings, family)
        return self.expected(family, node).of(table)

    async def _digests(self) -> list[Digest] | None:
        """The digests of all tables now; None if some are refused."""
        asked: list[tuple[XtablesClient, tuple[str, ...]]] = [(client, LEGACY) for client in self._legacy.values()]
        asked += [(client, (FILTER,)) for (_, table), client in self._clients.items() if table == NFT_FILTER]
        try:
            return [await client.digest(tables) for client, tables in asked]
        except KernelError:
            return None  # then the rules themselves are compared, and that says what is wrong

    def _in_order_of_removal(self, *families: Family) -> list[Key]:
        keys = [(family, NFT_FILTER) for family in families]
        keys += [(family, table) for family in families for table in reversed(LEGACY)]
        return [key for key in keys if key in self._clients]


def _kernel_name(table: str) -> str:
    return FILTER if table == NFT_FILTER else table


def _in_words(table: str) -> str:
    return f"nft table {FILTER}" if table == NFT_FILTER else f"table {table}"
