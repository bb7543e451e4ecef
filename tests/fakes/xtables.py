"""The rules of a fake kernel."""

import errno
import functools
import re
import shlex
import socket
from collections.abc import Container, Mapping, Sequence
from itertools import dropwhile

from kroute.kernel.digest import Digest
from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.rule import ParsedRule, parse_rule
from kroute.kernel.iptables.xtables import INSISTS, TableRules
from tests.fakes.kernel import FakeKernel, FakeTable


class FakeXtables:
    """Same shape as kroute.kernel.iptables.xtables.Xtables; a rule that names a missing set or chain is refused.

    Held against the real tools of the legacy tables in the lab, by `XtablesContract`.
    """

    def __init__(self, kernel: FakeKernel, family: int = socket.AF_INET) -> None:
        self.kernel = kernel
        self.family = family

    async def is_used(self, table: str) -> bool:
        return (self.family, table) in self.kernel.tables

    async def chains(self, table: str) -> list[str]:
        fake = self.kernel.tables.get((self.family, table))
        return list(fake.chains) if fake else []

    async def packets(self, table: str) -> Mapping[str, Sequence[int]]:
        """Nothing sends packets here."""
        fake = self.kernel.tables.get((self.family, table))
        named = fake.chains.keys() - {*fake.builtin_chains} if fake else ()
        return {chain: [0] * len(fake.chains[chain]) for chain in named if fake}

    async def digest(self, tables: Sequence[str]) -> Digest:
        used = {name: fake for name in tables if (fake := self.kernel.tables.get((self.family, name)))}
        return Digest(hash(repr([(name, fake.chains) for name, fake in used.items()])), (len(used),))

    async def differences(self, rules: TableRules) -> list[str]:
        table = self._table(rules.table)
        found = [f"chain {name} is missing" for name in rules.chains if name not in table.chains]
        found += [
            f"chain {name} has other rules"
            for name, desired in rules.chains.items()
            if name in table.chains and table.chains[name] != list(desired)
        ]
        found += [f"chain {name} is one too many" for name in _gone(table, rules)]
        return found + [f"the jumps of {builtin} are not first" for builtin in _misplaced(table, rules)]

    async def ensure(self, rules: TableRules) -> list[str]:
        found = await self.differences(rules)
        if not found:
            return []
        self._check_rules(rules)
        self.kernel.operate("commit table", rules.table)
        table = self._table(rules.table)
        table.chains.update({name: list(desired) for name, desired in rules.chains.items()})
        for builtin, desired in _misplaced(table, rules).items():
            foreign = [rule for rule in table.chains[builtin] if _jump_target(rule) not in rules.chains]
            foreign = [rule for rule in foreign if rule not in desired]
            at = _insisting(foreign, rules.chains)
            table.chains[builtin] = foreign[:at] + desired + foreign[at:]
        for gone in _gone(table, rules):
            del table.chains[gone]
            for name, present in table.chains.items():
                table.chains[name] = [rule for rule in present if _jump_target(rule) != gone]
        return found

    async def remove(self, table: str, prefix: str) -> list[str]:
        fake = self.kernel.tables.get((self.family, table))
        if fake is None:  # nobody has used the table: reading must not create it
            return []
        ours = [name for name in fake.chains if name.startswith(prefix)]
        removed = []
        for name in set(fake.chains) - set(ours):
            kept = [rule for rule in fake.chains[name] if not _jump_target(rule).startswith(prefix)]
            removed += [f"jump from {name}"] * (len(fake.chains[name]) - len(kept))
            fake.chains[name] = kept
        for name in ours:
            del fake.chains[name]
            removed.append(f"chain {name}")
        if removed:
            self.kernel.operate("commit table", table)
        return removed

    def _table(self, name: str) -> FakeTable:
        if self.family == socket.AF_INET6 and not self.kernel.ipv6:
            raise KernelError("the kernel has no ip6_tables", errno=errno.ENOPROTOOPT)
        return self.kernel.table(self.family, name)

    def _check_rules(self, rules: TableRules) -> None:
        table = self._table(rules.table)
        every_rule = [rule for chain in rules.chains.values() for rule in chain] + [rule for _, rule in rules.jumps]
        for rule in every_rule:
            parsed = _parsed(rule, self.family)
            if f"xt_{parsed.target.name}" in self.kernel.missing_modules:
                raise KernelError(f"no target {parsed.target.name}", errno=errno.ENOENT)
            if "--reject-with tcp-reset" in rule and parsed.protocol != "tcp":
                raise KernelError(f"only TCP is reset: {rule}", errno=errno.EINVAL)
            target = _jump_target(rule)
            if target.startswith("KROUTE") and target not in rules.chains and target not in table.chains:
                raise KernelError(f"no chain {target}", errno=errno.ENOENT)
            for name in re.findall(r"--match-set (\S+)", rule):
                if name not in self.kernel.sets:
                    raise KernelError(f"no set {name}", errno=errno.ENOENT)


def _misplaced(table: FakeTable, rules: TableRules) -> dict[str, list[str]]:
    """The jumps of the built-in chains where they are not in their place."""
    found = {}
    for builtin, desired in rules.jumps_by_chain().items():
        present = table.chains[builtin]
        if builtin in rules.after_neighbours:
            present = list(dropwhile(lambda rule: _leads_elsewhere(table, rule, rules), present))
        else:
            present = present[_insisting(present, rules.chains) :]
        strays = any(_jump_target(rule) in rules.chains for rule in present[len(desired) :])
        if present[: len(desired)] != desired or strays:
            found[builtin] = desired
    return found


def _gone(table: FakeTable, rules: TableRules) -> list[str]:
    """The chains that the rules have no more."""
    ours = [name for name in table.chains if rules.prefix and name.startswith(rules.prefix)]
    return [name for name in ours if name not in rules.chains]


def _insisting(chain: list[str], ours: Container[str]) -> int:
    """How many jumps of those that insist on the first place, Calico's and others of kroute's, have it."""
    targets = [_jump_target(rule) for rule in chain]
    return next((at for at, it in enumerate(targets) if it in ours or not it.startswith(INSISTS)), len(chain))


def _leads_elsewhere(table: FakeTable, rule: str, rules: TableRules) -> bool:
    """Whether a rule is a jump to a chain of another program."""
    target = _jump_target(rule)
    return target in table.chains and target not in rules.chains


@functools.cache
def _parsed(text: str, family: int) -> ParsedRule:
    """The rule; the same texts are written again and again, and cutting one into words takes 0.1 ms."""
    return parse_rule(text, family)


@functools.cache
def _jump_target(text: str) -> str:
    """The target of `-j` or `-g`, or "" if the rule has none."""
    words = shlex.split(text)
    return next((words[words.index(option) + 1] for option in ("-j", "-g") if option in words[:-1]), "")
