"""The rules of one table after the other: compared by what iptables-save prints, and written by iptables-restore.

iptables-restore changes the kernel's table as a whole or not at all, and leaves the rules that it does not name, with
their counters. A table that has not changed since it was found right is not read again: the kernel gives its digest
without a process. What costs time with tens of thousands of rules of another program is done in a thread.
"""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import NamedTuple

from kroute.kernel.digest import Digest
from kroute.kernel.errors import KernelError
from kroute.kernel.iptables import tools
from kroute.kernel.iptables.rule import ParsedRule, parse_rule
from kroute.kernel.iptables.table_digest import legacy_chains, legacy_packets, read_table, table_digest
from kroute.kernel.iptables.tools import SavedRule, SavedTable, Variant, parse_saved
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import Table

LOCK_SECONDS = 2
"""For how long to wait for the lock: the other tables, and controllers that wait for the rules, wait meanwhile."""
INSISTS = ("cali-", "KROUTE")
"""The chains of Calico's Felix. It puts its jumps back to the first place whenever they are not there
(`ChainInsertMode`), so ours come behind them: otherwise both programs would write the table again and again. For the
same reason ours come behind others of kroute's."""


class TableRules(NamedTuple):
    """The desired rules of one table: our chains with all their rules, and the jumps that begin built-in chains.

    In the chains `after_neighbours`, jumps of other programs to chains of theirs may stay in front of ours, and no
    other rule may. With a `prefix`, all other chains whose names begin with it are deleted, and jumps to them.
    """

    table: str
    chains: Mapping[str, Sequence[str]]
    jumps: Sequence[tuple[str, str]]
    after_neighbours: frozenset[str] = frozenset()
    prefix: str = ""

    def jumps_by_chain(self) -> dict[str, list[str]]:
        """The jumps of each built-in chain."""
        found: dict[str, list[str]] = {}
        for chain, rule in self.jumps:
            found.setdefault(chain, []).append(rule)
        return found


class Xtables:
    """The rules of one address family in one variant of iptables, in the network namespace of the calling thread."""

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._right: dict[str, tuple[int, TableRules]] = {}
        """For each table the rules that it had when it was last found right, and its digest from before that."""

    async def ensure(self, rules: TableRules) -> list[str]:
        """Write our chains and jumps, if any is missing or wrong; return what was wrong, in words.

        Needs no lock when nothing is wrong. Rules that are right, and those of others, stay with their counters. Raises
        KernelError if the kernel has no such table, another program holds the lock (EAGAIN), or a rule names what does
        not exist.
        """
        found, lines = await self._compare(rules)
        if lines:
            await tools.write(self._variant, rules.table, lines, wait=LOCK_SECONDS)
        return found

    async def differences(self, rules: TableRules) -> list[str]:
        """What `ensure` would find wrong. Changes nothing, and asks for no lock: the kernel gives a table whole."""
        return (await self._compare(rules))[0]

    async def remove(self, table: str, prefix: str) -> list[str]:
        """Delete every chain whose name has the prefix, and every jump to them; return what was deleted, in words.

        A table that does not exist yet is not made, and counts as empty even if the kernel could not make it.
        """
        if not any(name.startswith(prefix) for name in await self.chains(table)):
            return []
        jumps, chains = await asyncio.to_thread(_with_prefix, await self._save(table), prefix)
        await tools.delete(self._variant, table, [rule.text for rule in jumps], chains, wait=LOCK_SECONDS)
        return [*(f"jump from {rule.chain}" for rule in jumps), *(f"chain {name}" for name in chains)]

    async def is_used(self, table: str) -> bool:
        """Whether a program has made the table, which the kernel does when one first reads or writes it."""
        if self._variant.name == "legacy":
            return tools.may_be_in_use(self._variant, table)
        async with Nftables() as nftables:
            return Table(self._variant.family, table).listed_as in await nftables.tables()

    async def chains(self, table: str) -> list[str]:
        """The chains of a table, of a legacy one without those that are built in. Needs no tool, and makes no table."""
        if not await self.is_used(table):
            return []
        if self._variant.name == "legacy":
            return legacy_chains(self._variant.family, table)
        family, name = Table(self._variant.family, table).listed_as
        async with Nftables() as nftables:
            return [chain.name for chain in await nftables.chains() if (chain.family, chain.table) == (family, name)]

    async def packets(self, table: str) -> Mapping[str, Sequence[int]]:
        """How many packets have matched each rule of a legacy table, by its chain, without those that are built in."""
        if self._variant.name != "legacy" or not await self.is_used(table):
            return {}
        return await asyncio.to_thread(legacy_packets, self._variant.family, table)

    async def digest(self, tables: Sequence[str]) -> Digest:
        """A digest of the tables without their counters, and how many of them exist. Makes none, and needs no lock."""
        states = [await self._state(table) for table in tables if await self.is_used(table)]
        return Digest(hash(tuple(states)), (len(states),))

    async def _state(self, table: str) -> int:
        """What changes with every change of the table: its digest, or the generation of nf_tables."""
        if self._variant.name == "legacy":
            listing = read_table(self._variant.family, table)
            return await asyncio.to_thread(table_digest, self._variant.family, listing)
        async with Nftables() as nftables:
            return await nftables.foreign_generation()

    async def _compare(self, rules: TableRules) -> tuple[list[str], list[str]]:
        """What is wrong, in words, and the lines for iptables-restore that put it right."""
        exists, state = tools.may_be_in_use(self._variant, rules.table), await self._state(rules.table)
        if self._right.get(rules.table) == (state, rules):
            return [], []
        saved = await self._save(rules.table) if exists else ""
        found, lines = await asyncio.to_thread(compare, saved, rules, self._variant.family)
        if not found:
            self._right[rules.table] = state, rules
        return found, lines

    async def _save(self, table: str) -> str:
        saved = await tools.save(self._variant, table)
        if saved is None:
            raise KernelError(tools.not_installed(self._variant.tool("save")))
        return saved


def missing_tools() -> list[str]:
    """A sentence about the first missing tool of the legacy tables; none if all are there."""
    needed = (variant.tool(action) for variant in tools.VARIANTS[:2] for action in ("save", "restore"))
    return [tools.not_installed(tool) for tool in needed if shutil.which(tool) is None][:1]


def compare(saved: str, rules: TableRules, family: int) -> tuple[list[str], list[str]]:
    """What is wrong with a table that iptables-save has printed, in words; and what to tell iptables-restore.

    There a chain that is named first is made, or emptied. The order of matches does not count: versions of the tools
    print it differently.
    """
    table = next(iter(parse_saved(saved)), SavedTable(rules.table))
    gone, to_gone = _gone(table, rules)
    jumps = rules.jumps_by_chain()
    table.rules = [rule for rule in table.rules if rule.chain in rules.chains or rule.chain in jumps]
    present: dict[str, list[SavedRule]] = {name: [] for name in table.chains}
    for rule in table.rules:
        present.setdefault(rule.chain, []).append(rule)
    missing = [name for name in rules.chains if name not in present]
    wrong = [
        name for name, desired in rules.chains.items() if name in present and not _are(present[name], desired, family)
    ]
    misplaced = [chain for chain in jumps if not _begins(table, chain, jumps[chain], rules, family)]
    lines = [f":{name} - [0:0]" for name in (*missing, *wrong)]
    for chain in misplaced:
        ours = [rule for rule in table.rules_of(chain) if rule.target in rules.chains]
        kept = (rule for rule in table.rules_of(chain) if rule.target not in rules.chains)
        place = 1 + sum(1 for _ in takewhile(_insists, kept))
        lines += [f"-D {rule.text}" for rule in ours]
        lines += [f"-I {chain} {at} {jump}" for at, jump in enumerate(jumps[chain], place)]
    lines += [f"-A {name} {rule}" for name in (*missing, *wrong) for rule in rules.chains[name]]
    lines += tools.deletions(to_gone, gone)
    found = [f"chain {name} is missing" for name in missing]
    found += [f"chain {name} has other rules" for name in wrong]
    found += [f"chain {name} is one too many" for name in gone]
    return found + [f"the jumps of {chain} are not first" for chain in misplaced], lines


def _gone(table: SavedTable, rules: TableRules) -> tuple[list[str], list[str]]:
    """The chains that are to be deleted, and the rules of chains that stay as they are which lead there."""
    if not rules.prefix:
        return [], []
    gone = [name for name in table.chains if name.startswith(rules.prefix) and name not in rules.chains]
    rewritten = {*gone, *rules.chains}
    others = [rule for rule in table.rules if rule.chain not in rewritten] if gone else []
    return gone, [rule.text for rule in others if rule.target in gone]


def _begins(table: SavedTable, chain: str, jumps: Sequence[str], rules: TableRules, family: int) -> bool:
    """Whether the chain begins with these jumps, behind those that may be in front, and has no other jumps to ours."""

    def may_be_in_front(rule: SavedRule) -> bool:
        if rule.target in rules.chains:
            return False
        return rule.target in table.chains if chain in rules.after_neighbours else _insists(rule)

    present = list(dropwhile(may_be_in_front, table.rules_of(chain)))
    strays = any(rule.target in rules.chains for rule in present[len(jumps) :])
    return not strays and _are(present[: len(jumps)], jumps, family)


def _insists(rule: SavedRule) -> bool:
    return rule.target.startswith(INSISTS)


def _are(present: Sequence[SavedRule], desired: Sequence[str], family: int) -> bool:
    """Whether these are the rules. Most have the same text, and to parse hundreds takes a tenth of a second."""
    texts = [rule.text.removeprefix(rule.chain).strip() for rule in present]
    return len(texts) == len(desired) and all(
        text == other or _sorted(text, family) == _sorted(other, family)
        for text, other in zip(texts, desired, strict=True)
    )


def _sorted(text: str, family: int) -> ParsedRule | None:
    """The rule with its matches in an order that does not matter; None if it is none of those that kroute writes."""
    try:
        rule = parse_rule(text, family)
    except ValueError:
        return None
    return rule._replace(matches=tuple(sorted(rule.matches)))


def _with_prefix(saved: str, prefix: str) -> tuple[list[SavedRule], list[str]]:
    """The chains of a table whose names have the prefix, and the jumps to them from other chains."""
    table = next(iter(parse_saved(saved)), SavedTable(""))
    ours = [name for name in table.chains if name.startswith(prefix)]
    jumps = [rule for rule in table.rules if f" {prefix}" in rule.text and rule.target in ours]
    return [rule for rule in jumps if rule.chain not in ours], ours
