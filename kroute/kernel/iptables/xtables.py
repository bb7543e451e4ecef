"""iptables and ip6tables rules in the legacy tables, by python-iptables.

libiptc reads a whole table, changes it in memory, and commits it whole. It takes no lock, and python-iptables has
global state. So each client calls it in its own thread, one call at a time (`_LIBRARY`), under /run/xtables.lock.
"""

import asyncio
import errno
import fcntl
import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from kroute.kernel.digest import Digest
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import Ipset
from kroute.kernel.iptables.rule import parse_rule, set_names
from kroute.kernel.iptables.tools import legacy_tables

if TYPE_CHECKING:
    from kroute.kernel.iptables.table import OpenTable


POLL_INTERVAL = 0.02
"""Seconds between two attempts. flock has no timeout, so the xtables thread polls."""

LOCK_PATH = Path("/run/xtables.lock")
LOCK_TIMEOUT = 5.0
"""Seconds to wait for the lock at first."""
AGAIN_TIMEOUT = 0.5
"""The same after a failed attempt: the other tables, and controllers that wait for the rules, wait meanwhile."""
COMMIT_ATTEMPTS = 5
"""How often to try when other programs change the table, without the lock, between our read and our commit."""

_LIBRARY = threading.Lock()

Result = TypeVar("Result")


class TableRules(NamedTuple):
    """The desired rules of one table: our chains with all their rules, and the jumps that begin built-in chains.

    In the chains `after_neighbours`, jumps of other programs to chains of theirs may stay in front of ours, and no
    other rule may.
    """

    table: str
    chains: Mapping[str, Sequence[str]]
    jumps: Sequence[tuple[str, str]]
    after_neighbours: frozenset[str] = frozenset()

    def jumps_by_chain(self) -> dict[str, list[str]]:
        """The jumps of each built-in chain."""
        found: dict[str, list[str]] = {}
        for chain, rule in self.jumps:
            found.setdefault(chain, []).append(rule)
        return found

    def texts(self) -> list[str]:
        return [rule for rules in self.chains.values() for rule in rules] + [rule for _, rule in self.jumps]


class Xtables:
    """The rules of one address family in the network namespace of the thread that calls `open()`."""

    def __init__(
        self,
        family: int = socket.AF_INET,
        *,
        lock_path: Path = LOCK_PATH,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> None:
        self.family = family
        self._lock_path = lock_path
        self._lock_timeout = lock_timeout
        self._waited_in_vain = False
        self._ipset = Ipset()
        self._executor: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """Start the thread, and load python-iptables in it. Raises KernelError if its shared libraries are missing."""
        name = "ip6tables" if self.family == socket.AF_INET6 else "iptables"
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        try:
            await self._ipset.open()
            await self._in_thread(_load_library)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop the thread, after the work in progress."""
        await self._ipset.close()
        if self._executor is not None:
            executor, self._executor = self._executor, None
            await asyncio.to_thread(executor.shutdown)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ensure(self, rules: TableRules) -> list[str]:
        """Write our chains and jumps, if any is missing or wrong; return what was wrong, in words.

        Needs no lock when nothing is wrong. Foreign rules and chains stay as they are, with their counters. Raises
        KernelError if the kernel has no such table, another program holds the lock (EAGAIN), or a set that a rule names
        is missing (ENOENT).
        """
        if not await self.differences(rules):
            return []
        return await self._in_thread(lambda: self._locked(rules.table, lambda table: _ensure(table, rules)))

    async def differences(self, rules: TableRules) -> list[str]:
        """What `ensure` would find wrong. Changes nothing, and asks for no lock: the kernel gives a table whole."""
        await self._check(rules)
        return await self._read(rules.table, lambda table: _compare(table, rules)[0])

    async def remove(self, table: str, prefix: str) -> list[str]:
        """Delete every chain whose name has the prefix, and every jump to them; return what was deleted, in words.

        A table that does not exist yet is not made, and counts as empty even if the kernel could not make it.
        """
        return await self._in_thread(
            lambda: self._locked(table, lambda opened: _remove(opened, prefix)) if self._is_used(table) else []
        )

    async def is_used(self, table: str) -> bool:
        """Whether the table exists. The kernel makes a table when a program first reads or writes it."""
        return await self._in_thread(lambda: self._is_used(table))

    async def chains(self, table: str) -> list[str]:
        """The names of all chains of a table, the built-in ones too; none if the table does not exist yet."""
        if not await self.is_used(table):
            return []
        return await self._read(table, lambda opened: opened.chain_names())

    async def digest(self, tables: Sequence[str]) -> Digest:
        """A digest of the tables without their counters, and how many of them exist. Makes none, and needs no lock."""
        return await self._in_thread(lambda: self._digest(tables))

    async def _check(self, rules: TableRules) -> None:
        """Find errors in the rules before libxtables does: it leaves Python's frames by longjmp when it fails."""
        desired: set[str] = set()
        for text in rules.texts():
            parse_rule(text, self.family)
            desired.update(set_names(text))
        missing = desired - await self._ipset.names() if desired else desired
        if missing:
            sentence = f"rules of table {rules.table} name sets that do not exist: {', '.join(sorted(missing))}"
            raise KernelError(f"{sentence}; create them first", errno=errno.ENOENT)

    def _digest(self, tables: Sequence[str]) -> Digest:
        from kroute.kernel.iptables.table_digest import table_digest  # noqa: PLC0415 (loads ctypes)

        used = [table for table in tables if self._is_used(table)]
        return Digest(hash(tuple((table, table_digest(self.family, table)) for table in used)), (len(used),))

    def _is_used(self, table: str) -> bool:
        """Whether the table exists. Call it in the xtables thread, whose network namespace counts."""
        names = legacy_tables(self.family)
        return names is None or table in names

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        if self._executor is None:
            raise KernelError("the xtables thread is not running; open() comes first", errno=errno.EBADF)
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _read(self, name: str, work: "Callable[[OpenTable], Result]") -> Result:
        """Do work that commits nothing on a table as it is now."""

        def read() -> Result:
            with _LIBRARY:
                return self._work_on(name, work)

        return await self._in_thread(read)

    def _locked(self, name: str, work: "Callable[[OpenTable], Result]") -> Result:
        """Read the table under both locks and do the work on it, again if the table changed meanwhile.

        Call it in the xtables thread.
        """
        from kroute.kernel.iptables.table import TableChangedError  # noqa: PLC0415 (slow: `open` loads it)

        timeout = AGAIN_TIMEOUT if self._waited_in_vain else self._lock_timeout
        self._waited_in_vain = True
        with _LIBRARY, xtables_lock(self._lock_path, min(timeout, self._lock_timeout)):
            self._waited_in_vain = False
            for _ in range(COMMIT_ATTEMPTS - 1):
                with suppress(TableChangedError):
                    return self._work_on(name, work)
            return self._work_on(name, work)

    def _work_on(self, name: str, work: "Callable[[OpenTable], Result]") -> Result:
        from kroute.kernel.iptables.table import OpenTable, iptc  # noqa: PLC0415

        tool, module = ("ip6tables", "ip6table") if self.family == socket.AF_INET6 else ("iptables", "iptable")
        try:
            table = OpenTable(self.family, name)
            try:
                return work(table)
            finally:
                table.close()
        except iptc.IPTCError as error:
            raise KernelError(f"{tool} table {name}: {error}; load the module {module}_{name}") from error
        except (iptc.XTablesError, ValueError) as error:
            sentence = f"cannot make a rule of {tool} table {name}: {error}"
            raise KernelError(f"{sentence}; check what the rule names, and the iptables package's version") from error


def _load_library() -> None:
    with _LIBRARY:
        importlib.import_module("kroute.kernel.iptables.table")


def _compare(table: "OpenTable", rules: TableRules) -> tuple[list[str], list[str], list[str]]:
    """What is wrong, in words; the chains to fill; and the built-in chains whose jumps are not first.

    Creates missing chains in memory: a rule that jumps to a missing one cannot be built.
    """
    missing, ours, after = table.create_missing(rules.chains), frozenset(rules.chains), rules.after_neighbours
    wrong = [name for name, desired in rules.chains.items() if not table.holds(name, desired)]
    found = [f"chain {name} is missing" for name in missing]
    found += [f"chain {name} has other rules" for name in wrong if name not in missing]
    misplaced = [
        builtin
        for builtin, jumps in rules.jumps_by_chain().items()
        if not table.starts_with(builtin, jumps, ours, after_neighbours=builtin in after)
    ]
    return found + [f"the jumps of {builtin} are not first" for builtin in misplaced], wrong, misplaced


def _ensure(table: "OpenTable", rules: TableRules) -> list[str]:
    found, wrong, misplaced = _compare(table, rules)
    for name in wrong:
        table.fill(name, rules.chains[name])
    for builtin in misplaced:
        table.put_first(builtin, rules.jumps_by_chain()[builtin], frozenset(rules.chains))
    if found:
        table.commit()
    return found


def _remove(table: "OpenTable", prefix: str) -> list[str]:
    ours = frozenset(name for name in table.chain_names() if name.startswith(prefix) and not table.is_builtin(name))
    if not ours:
        return []
    removed: list[str] = []
    for name in table.chain_names():
        jumps = table.drop_jumps(name, ours)
        if name not in ours:
            removed += [f"jump from {name}"] * jumps
    for name in sorted(ours):
        table.fill(name, ())
    for name in sorted(ours):
        table.delete_chain(name)
        removed.append(f"chain {name}")
    table.commit()
    return removed


@contextmanager
def xtables_lock(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock. Raises KernelError EAGAIN when another program holds it for longer than `timeout` seconds."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        sentence = f"cannot open the xtables lock {path}: {error.strerror}; mount the host's file there"
        raise KernelError(sentence, errno=error.errno) from error
    try:
        _acquire(descriptor, path, timeout)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                sentence = f"another program holds the xtables lock {path} for more than {timeout:g} s; trying later"
                raise KernelError(sentence, errno=errno.EAGAIN) from None
            time.sleep(POLL_INTERVAL)
        else:
            return
