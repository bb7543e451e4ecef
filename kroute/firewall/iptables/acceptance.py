"""Accepts the packets of Services in the chains of iptables-nft too, where another program has made them.

All other rules are in the legacy tables alone: what they refuse, mark and translate is so for every later chain. What
they accept is not, since each packet passes the chains of both variants.
"""

from collections.abc import Mapping
from contextlib import suppress

import structlog

from kroute.firewall.iptables.address_sets import PREFIX
from kroute.firewall.iptables.filter_rules import accepting_rules
from kroute.kernel.errors import KernelError
from kroute.kernel.firewall_clients import XtablesClient
from kroute.model.addresses import Family
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import Settings

log = structlog.get_logger(__name__)

FILTER = "filter"
WITHOUT = "a firewall there may drop the answers of pods; trying again at the next resync"


class Acceptance:
    """Owns the chains of iptables-nft whose names begin with KROUTE-. A table that nobody has made is not made."""

    def __init__(self, settings: Settings, nft: Mapping[Family, XtablesClient]) -> None:
        self._rules = {family: accepting_rules(settings, family) for family in nft}
        self._nft = nft
        self._written: set[Family] = set()
        self._failing: set[Family] = set()

    async def ensure(self) -> list[str]:
        """Write what is missing or wrong; returns the drift. The sets must exist."""
        return [f"{family} nft: {what}" for family in self._nft for what in await self._ensure(family)]

    @property
    def are_right(self) -> bool:
        """Whether the last `ensure` could compare and write all tables."""
        return not self._failing

    async def differences(self, family: Family) -> list[str]:
        """What is wrong, or why it cannot be read, one sentence each."""
        if family not in self._nft:
            return []
        try:
            return [f"{family} rules of nft table {FILTER}: {what}" for what in await self._differences(family)]
        except KernelError as error:
            return [f"{family} rules of nft table {FILTER}: {error}"]

    async def withdraw(self, family: Family) -> None:
        """Delete the rules of one family, so that its sets can be replaced."""
        self._written.discard(family)
        if family in self._nft:
            with suppress(KernelError):
                await self._nft[family].remove(FILTER, PREFIX)

    async def remove(self, report: CleanupReport) -> None:
        for family, tables in self._nft.items():
            with report.step(f"{family} rules of nft table {FILTER}"):
                for what in await tables.remove(FILTER, PREFIX):
                    report.add(f"remove {family} {what} of nft table {FILTER}")

    async def _differences(self, family: Family) -> list[str]:
        tables = self._nft[family]
        return await tables.differences(self._rules[family]) if await tables.is_used(FILTER) else []

    async def _ensure(self, family: Family) -> list[str]:
        """Write the rules of one family; returns the drift: what was wrong although it had been written before."""
        fields = {"family": family.value, "table": f"nft {FILTER}"}
        try:
            wrong = await self._write(family)
        except KernelError as error:
            if family not in self._failing:
                log.warning("rules.failed", **fields, error=str(error), next_step=WITHOUT)
            self._failing.add(family)
            return []
        self._failing.discard(family)
        if wrong is None:
            self._written.discard(family)
            return []
        is_first = family not in self._written
        self._written.add(family)
        if wrong and is_first:
            log.info("rules.written", **fields, what=wrong)
            return []
        return wrong

    async def _write(self, family: Family) -> list[str] | None:
        """What was wrong; None if nobody uses the table."""
        tables = self._nft[family]
        return await tables.ensure(self._rules[family]) if await tables.is_used(FILTER) else None
