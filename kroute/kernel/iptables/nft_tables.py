"""Rules in the nf_tables tables of iptables-nft, by the iptables package's tools.

Where other programs use that variant, a packet passes their chains there too, and no rule of the legacy tables speaks
for it. The tools compare and write rules by their text; nf_tables takes a batch as a whole or not at all, and needs no
lock.
"""

import shlex
import socket
from collections.abc import Iterator, Sequence
from itertools import dropwhile

from kroute.kernel.digest import Digest
from kroute.kernel.iptables.tools import SavedRule, SavedTable, Variant, XtablesTools, parse_saved
from kroute.kernel.iptables.xtables import TableRules
from kroute.kernel.nftables.client import Nftables


class NftTables:
    """The rules of one address family. Same shape as `Xtables`, whose docstrings hold here."""

    def __init__(self, family: int, tools: XtablesTools | None = None) -> None:
        self._variant = Variant(family, "nft")
        self._nft_family = "ip6" if family == socket.AF_INET6 else "ip"
        self._tools = tools or XtablesTools()

    async def is_used(self, table: str) -> bool:
        """Whether a program has made the table. The kernel is asked: the tools show one that is not there as empty."""
        async with Nftables() as nftables:
            return (self._nft_family, table) in await nftables.tables()

    async def digest(self, tables: Sequence[str]) -> Digest:
        """The generation of nf_tables while one of the tables is used: it changes with every change of any program."""
        async with Nftables() as nftables:
            listed = await nftables.tables()
            used = [table for table in tables if (self._nft_family, table) in listed]
            return Digest(await nftables.foreign_generation() if used else 0, (len(used),))

    async def differences(self, rules: TableRules) -> list[str]:
        return _compare(await self._read(rules.table) or SavedTable(rules.table), rules)

    async def ensure(self, rules: TableRules) -> list[str]:
        table = await self._read(rules.table) or SavedTable(rules.table)
        found = _compare(table, rules)
        if found:
            await self._tools.write(self._variant, rules.table, list(_lines(table, rules)))
        return found

    async def remove(self, table: str, prefix: str) -> list[str]:
        found = await self._read(table)
        ours = [name for name in found.chains if name.startswith(prefix)] if found else []
        if found is None or not ours:
            return []
        jumps = [rule for rule in found.rules if rule.target in ours and rule.chain not in ours]
        await self._tools.delete(self._variant, table, [rule.text for rule in jumps], ours)
        return [*(f"jump from {rule.chain}" for rule in jumps), *(f"chain {name}" for name in ours)]

    async def chains(self, table: str) -> list[str]:
        found = await self._read(table)
        return [*found.policies, *found.chains] if found else []

    async def _read(self, table: str) -> SavedTable | None:
        """The table; None if there is none, or no tool that shows it. This loads no module."""
        if not await self.is_used(table):
            return None
        tables = parse_saved(await self._tools.save(self._variant, table) or "")
        return next((saved for saved in tables if saved.name == table), None)


def _compare(table: SavedTable, rules: TableRules) -> list[str]:
    """What is wrong, in words; the same words as in the legacy tables."""
    found = []
    for name, desired in rules.chains.items():
        if name not in table.chains:
            found.append(f"chain {name} is missing")
        elif not _equal(table.rules_of(name), desired):
            found.append(f"chain {name} has other rules")
    return found + [f"the jumps of {chain} are not first" for chain in _misplaced(table, rules)]


def _misplaced(table: SavedTable, rules: TableRules) -> dict[str, list[str]]:
    """The jumps of the built-in chains where they are not in their place."""
    found = {}
    for chain, jumps in rules.jumps_by_chain().items():
        present = table.rules_of(chain)
        if chain in rules.after_neighbours:
            present = list(
                dropwhile(lambda rule: rule.target in table.chains and rule.target not in rules.chains, present)
            )
        strays = any(rule.target in rules.chains for rule in present[len(jumps) :])
        if strays or not _equal(present[: len(jumps)], jumps):
            found[chain] = jumps
    return found


def _equal(present: Sequence[SavedRule], desired: Sequence[str]) -> bool:
    """Whether these are the rules. The order of matches does not count: versions of the tools print it differently."""
    return [sorted(rule.words[1:]) for rule in present] == [sorted(shlex.split(rule)) for rule in desired]


def _lines(table: SavedTable, rules: TableRules) -> Iterator[str]:
    """What iptables-restore is told: a chain that is named first is made, or emptied."""
    yield from (f":{name} - [0:0]" for name in rules.chains)
    for chain, jumps in _misplaced(table, rules).items():
        yield from (f"-D {rule.text}" for rule in table.rules_of(chain) if rule.target in rules.chains)
        yield from (f"-I {chain} {position} {jump}" for position, jump in enumerate(jumps, 1))
    yield from (f"-A {name} {rule}" for name, desired in rules.chains.items() for rule in desired)
