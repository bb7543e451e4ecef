"""The iptables package: its tools, which read and change rules in both variants of iptables, and its libraries.

kroute writes most of its rules to the legacy tables with python-iptables, which supports no other variant. The tools
support both. They delete a rule by its text, so a rule that was changed since it was read is not deleted. They take the
xtables lock where the variant has one. What iptables-nft has written can also be read and deleted without any tool:
`kroute.kernel.iptables.nft_rules`.
"""

import asyncio
import errno
import importlib.util
import re
import shlex
import socket
import sysconfig
from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from kroute.kernel.errors import KernelError

LIBRARY_DIRECTORIES = ("usr/lib/*-linux-*", "usr/lib64", "usr/lib", "usr/local/lib", "lib/*-linux-*", "lib64", "lib")

LOCK_SECONDS = 5
"""For how many seconds the tools wait for the xtables lock."""
LONGEST = 60.0
"""After how many seconds a tool is ended: a table of kube-proxy's may have hundreds of thousands of rules."""


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


def find_python_iptables() -> Path:
    """The directory in which the package is. Raises KernelError if it is not installed."""
    found = importlib.util.find_spec("iptc")
    if found is None or found.origin is None:
        raise KernelError("the Python package python-iptables is not installed; install kroute[iptables]")
    return Path(found.origin).parents[1]


def find_libxtables() -> tuple[Path, str]:
    """The directory of libxtables and its extensions, and its version. Raises KernelError if it is not installed."""
    multiarch = sysconfig.get_config_var("MULTIARCH")
    patterns = ([f"usr/lib/{multiarch}"] if multiarch else []) + list(LIBRARY_DIRECTORIES)
    for pattern in patterns:
        for path in sorted(Path("/").glob(f"{pattern}/libxtables.so.*")):
            found = re.search(r"\.so\.(\d+)$", path.name)
            if found and (path.parent / "xtables").is_dir():
                return path.parent, found[1]
    raise KernelError("cannot find libxtables and its extensions; install the package iptables")


def missing_libraries() -> list[str]:
    """One sentence for each library that is missing; it ends in `; ` and the next step."""
    missing = []
    for find in (find_python_iptables, find_libxtables):
        try:
            find()
        except KernelError as error:
            missing.append(str(error))
    return missing


class Variant(NamedTuple):
    """One of the four rule sets that a node may have: one address family in one variant, legacy or nft."""

    family: int
    name: str

    def __str__(self) -> str:
        return f"{'IPv6' if self.family == socket.AF_INET6 else 'IPv4'} {self.name}"

    def tool(self, action: str) -> str:
        """The program's name, such as `iptables-legacy-save` or `ip6tables-nft-restore`."""
        return f"{'ip6tables' if self.family == socket.AF_INET6 else 'iptables'}-{self.name}-{action}"


VARIANTS = tuple(Variant(family, name) for name in ("legacy", "nft") for family in (socket.AF_INET, socket.AF_INET6))


class XtablesTools:
    """The iptables tools, in the network namespace of the calling thread."""

    async def save(self, variant: Variant, table: str = "") -> str | None:
        """One table, or all tables that are in use, as iptables-save prints them; None if the tool is not installed.

        A legacy table that is not in use, or that the kernel does not have at all, is empty; the tool would fail, or
        make it.
        """
        if table and not self.may_be_in_use(variant, table):
            return ""
        return await _run([variant.tool("save"), *(["-t", table] if table else [])], "")

    def may_be_in_use(self, variant: Variant, table: str) -> bool:
        """Whether the legacy table exists in this network namespace, or the kernel does not say so. True for nft."""
        if variant.name != "legacy":
            return True
        names = legacy_tables(variant.family)
        return names is None or table in names

    async def delete(self, variant: Variant, table: str, rules: list[str], chains: list[str]) -> None:
        """Delete rules (`CHAIN …`, as the tool prints them after `-A`), then chains with their rules: all or nothing.

        Raises KernelError if a rule no longer exists, or another rule still jumps to a chain.
        """
        lines = [f"-D {rule}" for rule in rules]
        lines += [*(f"-F {chain}" for chain in chains), *(f"-X {chain}" for chain in chains)]
        await self.write(variant, table, lines)

    async def write(self, variant: Variant, table: str, lines: list[str]) -> None:
        """Pass lines to iptables-restore for one table, whose other rules stay: all or nothing. Raises KernelError."""
        text = "\n".join([f"*{table}", *lines, "COMMIT", ""])
        tool = variant.tool("restore")
        lock = ["-w", str(LOCK_SECONDS)] if variant.name == "legacy" else []
        if await _run([tool, "--noflush", *lock], text) is None:
            raise KernelError(f"{tool} is not installed; install the package iptables")


def legacy_tables(family: int) -> list[str] | None:
    """The legacy tables that exist in this network namespace; None if this process may not know."""
    file = "ip6_tables_names" if family == socket.AF_INET6 else "ip_tables_names"
    try:
        return Path("/proc/thread-self/net", file).read_text().split()
    except FileNotFoundError:
        return []
    except OSError:
        return None


async def _run(argv: list[str], stdin: str) -> str | None:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KernelError(f"cannot start {argv[0]}: {error.strerror}; trying later", errno=error.errno) from error
    try:
        async with asyncio.timeout(LONGEST):
            output, errors = await process.communicate(stdin.encode())
    except TimeoutError:
        raise KernelError(f"{argv[0]} did not end within {LONGEST:g} s; trying later", errno=errno.ETIMEDOUT) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise KernelError(f"{argv[0]} failed: {' '.join(errors.decode(errors='replace').split())}; trying later")
    return output.decode()
