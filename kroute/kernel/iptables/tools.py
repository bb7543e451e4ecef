"""The iptables package's tools, which read and change the rules of both variants of iptables, legacy and nft.

They delete a rule by its text, so a rule that was changed since it was read is not deleted. They take the xtables lock
where the variant has one, to write. What iptables-nft has written can also be read and deleted without any tool:
`kroute.kernel.iptables.nft_rules`; and the chains of legacy tables read: `kroute.kernel.iptables.table_digest`.
"""

import errno
import shlex
import socket
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from kroute.base import program
from kroute.kernel.errors import KernelError

LOCK_SECONDS = 5
"""For how many seconds the tools wait for the xtables lock, unless the caller says otherwise."""
LONGEST = 60.0
"""After how many seconds a tool is ended: a table of kube-proxy's may have hundreds of thousands of rules."""
LARGEST = 1 << 26
"""How many bytes a tool may print, for the same reason."""
RESOURCE_PROBLEM = 4
"""The exit code when another program holds the lock (include/xtables.h)."""
SAVES = 5
"""How often rules are read at most. iptables-save fails if a set is deleted before it has asked for the set's name."""
_SET_IS_GONE = "in kernel doesn't exist"


@dataclass(frozen=True)
class SavedRule:
    """One line that begins with `-A`. `text` is the rest of it. `handle` is nf_tables' number for the rule, or 0."""

    text: str
    handle: int = 0

    @cached_property
    def words(self) -> list[str]:
        """The words of the rule. The first is the chain. A comment with a line break ends the rule too early."""
        try:
            return shlex.split(self.text)
        except ValueError:
            return self.text.split()

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
    for line in text.split("\n"):
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


class Variant(NamedTuple):
    """One of the four rule sets that a node may have: one address family in one variant, legacy or nft."""

    family: int
    name: str

    def __str__(self) -> str:
        return f"{'IPv6' if self.family == socket.AF_INET6 else 'IPv4'} {self.name}"

    @property
    def label(self) -> str:
        """The name without `legacy`, which is the usual variant."""
        return str(self).removesuffix(" legacy")

    def tool(self, action: str) -> str:
        """The program's name, such as `iptables-legacy-save` or `ip6tables-nft-restore`."""
        return f"{'ip6tables' if self.family == socket.AF_INET6 else 'iptables'}-{self.name}-{action}"


VARIANTS = tuple(Variant(family, name) for name in ("legacy", "nft") for family in (socket.AF_INET, socket.AF_INET6))


def not_installed(tool: str) -> str:
    return f"{tool} is not installed; install the package iptables"


async def save(variant: Variant, table: str = "") -> str | None:
    """One table, or all tables that are in use, as iptables-save prints them; None if the tool is not installed.

    A legacy table that is not in use, or that the kernel does not have at all, is empty; the tool would fail, or
    make it. Raises KernelError.
    """
    if table and not may_be_in_use(variant, table):
        return ""
    words = [variant.tool("save"), *(["-t", table] if table else [])]
    for _ in range(SAVES - 1):
        try:
            return await run(words)
        except KernelError as error:
            if _SET_IS_GONE not in str(error):
                raise
    return await run(words)


def may_be_in_use(variant: Variant, table: str) -> bool:
    """Whether the legacy table exists in this network namespace, or the kernel does not say so. True for nft."""
    if variant.name != "legacy":
        return True
    names = legacy_tables(variant.family)
    return names is None or table in names


async def delete(
    variant: Variant, table: str, rules: Sequence[str], chains: Sequence[str], *, wait: int = LOCK_SECONDS
) -> None:
    """Delete rules (`CHAIN …`, as the tool prints them after `-A`), then chains with their rules: all or nothing.

    Raises KernelError as `write` does, also if a rule no longer exists, or another rule still jumps to a chain.
    """
    await write(variant, table, deletions(rules, chains), wait=wait)


def deletions(rules: Sequence[str], chains: Sequence[str]) -> list[str]:
    """The lines for iptables-restore that delete rules, then chains."""
    return [*(f"-D {rule}" for rule in rules), *(f"-F {it}" for it in chains), *(f"-X {it}" for it in chains)]


async def write(variant: Variant, table: str, lines: Sequence[str], *, wait: int = LOCK_SECONDS) -> None:
    """Pass lines to iptables-restore for one table, whose other rules stay with their counters: all or nothing.

    Raises KernelError; EAGAIN if another program holds the lock for longer than `wait` seconds.
    """
    tool = variant.tool("restore")
    lock = ["-w", str(wait)] if variant.name == "legacy" else []
    if await run([tool, "--noflush", *lock], "\n".join([f"*{table}", *lines, "COMMIT", ""])) is None:
        raise KernelError(not_installed(tool))


def legacy_tables(family: int) -> list[str] | None:
    """The legacy tables that exist in this network namespace; None if this process may not know."""
    file = "ip6_tables_names" if family == socket.AF_INET6 else "ip_tables_names"
    try:
        return Path("/proc/thread-self/net", file).read_text().split()
    except FileNotFoundError:
        return []
    except OSError:
        return None


async def run(argv: Sequence[str], stdin: str = "") -> str | None:
    """What a program prints; None if it is not installed. Raises KernelError.

    One that does not end in time, or prints too much, is killed with the modprobe that it may have started.
    """
    try:
        code, output, errors = await program.run(argv, stdin.encode(), seconds=LONGEST, most=LARGEST)
    except FileNotFoundError:
        return None
    except TimeoutError:
        raise KernelError(f"{argv[0]} did not end within {LONGEST:g} s; trying later", errno=errno.ETIMEDOUT) from None
    except OverflowError:
        raise KernelError(f"{argv[0]} prints more than {LARGEST >> 20} MiB; trying later", errno=errno.EFBIG) from None
    except OSError as error:
        raise KernelError(f"cannot start {argv[0]}: {error.strerror}; trying later", errno=error.errno) from error
    if code:
        lines = errors.decode(errors="replace").splitlines()
        said = " ".join(word for line in lines if not _is_noise(line) for word in line.split())
        number = errno.EAGAIN if code == RESOURCE_PROBLEM else None
        raise KernelError(f"{argv[0]} failed: {said.rstrip('.')}; trying later", errno=number)
    return output.decode(errors="replace")


def _is_noise(line: str) -> bool:
    """Whether a line is about the other variant, the tool's help, or the number of a line of its input."""
    return line.startswith(("#", "Try `", "Error occurred at line"))
