"""The rules of one table in the words of iptables-save, and a parser of its output."""

import shlex
from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class SavedRule:
    """One line that begins with `-A`. `text` is the rest of it. `handle` is nf_tables' number for the rule, or 0."""

    text: str
    handle: int = 0

    @cached_property
    def words(self) -> list[str]:
        """The words of the rule. The first is the chain."""
        return shlex.split(self.text)

    @property
    def chain(self) -> str:
        """The rule's chain. Found without splitting the text, since there may be hundreds of thousands of rules."""
        return self.text.partition(" ")[0]

    def after(self, option: str) -> str:
        """The word after an option, or "" if the rule does not have the option, or negates it."""
        words = self.words
        if option not in words[1:-1]:
            return ""
        at = words.index(option, 1)
        return "" if words[at - 1] == "!" else words[at + 1]

    @property
    def target(self) -> str:
        """The chain or target of `-j`, or of `-g`."""
        return self.after("-j") or self.after("-g")


@dataclass
class SavedTable:
    """One table: the policies of its built-in chains, its other chains, and every rule in order.

    `jumps` are (chain, target) of rules of which no more is kept.
    """

    name: str
    policies: dict[str, str] = field(default_factory=dict)
    chains: list[str] = field(default_factory=list)
    rules: list[SavedRule] = field(default_factory=list)
    jumps: list[tuple[str, str]] = field(default_factory=list)

    def rules_of(self, chain: str) -> list[SavedRule]:
        return [rule for rule in self.rules if rule.chain == chain]

    def targets_of(self, chains: Set[str]) -> set[str]:
        """Where the rules of these chains lead."""
        found = {rule.target for rule in self.rules if rule.chain in chains}
        return found | {target for chain, target in self.jumps if chain in chains}


def parse_saved(text: str) -> list[SavedTable]:
    """The tables in the output of iptables-save."""
    tables: list[SavedTable] = []
    for line in text.splitlines():
        if line.startswith("*"):
            tables.append(SavedTable(line[1:].strip()))
        elif line.startswith(":"):
            name, policy = line[1:].split()[:2]
            if policy == "-":
                tables[-1].chains.append(name)
            else:
                tables[-1].policies[name] = policy
        elif line.startswith("-A "):
            tables[-1].rules.append(SavedRule(line[3:]))
    return tables
