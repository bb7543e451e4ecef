"""One table that was read from the kernel: compares it with the desired rules, and changes it.

Rules are compared as the kernel holds them, not as text: the entry's header byte for byte, and the part of each match
and target that libxtables declares as the user's.

Import this module in the xtables thread only. It imports python-iptables, with changes for a long-running agent:

- Its import imports distutils. Where setuptools is installed, that loads setuptools with all its modules instead.
  Without distutils python-iptables uses a fallback, so distutils is hidden during the import.
- It calls ctypes.util.find_library for each shared library, which runs ldconfig, the C compiler and the linker one
  after the other (26 s in emulation). This module finds directories and version itself, and passes them in environment
  variables during the import. Both changes together save 0.19 s and 13 MiB of 0.22 s and 15 MiB.
- To learn whether a target is a chain it opens all five tables, and the kernel makes each table that is opened. Here it
  opens only the table in use.
- Its final check of a match or target first prints the match to file descriptor 1, which it redirects to a pipe
  meanwhile. In a threaded process that swallows the output of other threads. The check itself does not need it.
- A library registers its extensions when it is loaded, but only those of the current family. A name that was looked up
  and not found is never looked up again, for either family. So the NAT targets are loaded for both families before any
  lookup (`_load_nat`).
- A libxtables error leaves its callback by longjmp over Python's frames. So `Xtables` checks rules for errors first.
"""

import ctypes
import errno
import importlib
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.rule import Extension, ParsedRule, parse_rule
from kroute.kernel.iptables.tools import find_libxtables, find_python_iptables

INSISTS = "cali-"
"""The chains of Calico's Felix. It puts its jumps back to the first place whenever they are not there
(`ChainInsertMode`), so ours come behind them: otherwise both programs would write the table again and again."""

STANDARD_TARGETS = frozenset({"ACCEPT", "DROP", "RETURN", "QUEUE"})

_EXTENSION_HEADER = struct.Struct("=H29sB")
"""struct xt_entry_match and xt_entry_target: size, name, revision."""


@contextmanager
def _library_environment() -> Iterator[None]:
    """Tell python-iptables where its libraries are, and hide distutils. Variables that the user has set are kept."""
    directory, version = find_libxtables()
    wanted = {
        "IPTABLES_LIBDIR": f"{directory}:{find_python_iptables()}",
        "XTABLES_LIBDIR": str(directory / "xtables"),
        "PYTHON_IPTABLES_XTABLES_VERSION": version,
    }
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    hidden = {"distutils"} - set(sys.modules)
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
        for name in hidden:
            del sys.modules[name]


def _load_nat(extensions: Path) -> None:
    """Load MASQUERADE and the other NAT targets for each family.

    Since iptables 1.8.8 they are in one library. Earlier versions have separate files for each family, and need no
    help. A copy of the file is loaded for each family, because dlopen(3) takes a copy for another library, which
    registers its extensions again.
    """
    library = extensions / "libxt_NAT.so"
    if not library.exists():
        return
    for family in (iptc.xtables.NFPROTO_IPV4, iptc.xtables.NFPROTO_IPV6):
        iptc.xtables.xtables._xtables_set_nfproto(family)  # noqa: SLF001  there is no public way to set it
        copy = os.memfd_create(library.name)
        try:
            os.write(copy, library.read_bytes())
            ctypes.CDLL(f"/proc/self/fd/{copy}")
        except OSError as error:
            raise KernelError(f"cannot load {library}: {error}; check the iptables package") from error
        finally:
            os.close(copy)


with _library_environment():
    iptc: Any = importlib.import_module("iptc")
    _load_nat(Path(os.environ["XTABLES_LIBDIR"]))

ENTRY_HEADER_SIZE = ctypes.sizeof(iptc.ip4tc.xt_entry_match)


class _Match(iptc.Match):  # type: ignore[misc]
    def _update_parameters(self) -> None:
        """Skip the library's version, which prints to standard output: the parameters are as they were set."""


class _Target(iptc.Target):  # type: ignore[misc]
    def _update_parameters(self) -> None: ...


class _Rule(iptc.Rule):  # type: ignore[misc]
    tables: Any = ()


class _Rule6(iptc.Rule6):  # type: ignore[misc]
    tables: Any = ()


class _TableMethods:
    """Methods that python-iptables' tables lack."""

    _iptc: Any
    _handle: Any

    def strerror(self) -> str:
        """The reason of the last failure as text; the library's own method returns bytes."""
        reason = super().strerror()  # type: ignore[misc]
        return reason.decode() if isinstance(reason, bytes) else str(reason)

    def delete_position(self, chain: str, position: int) -> None:
        """Delete a rule by its position, from 0. libiptc can do so, but python-iptables has no method for it."""
        if self._iptc.iptc_delete_num_entry(chain.encode(), position, self._handle) != 1:
            raise iptc.IPTCError(f"can't delete rule {position} of chain {chain}: {self.strerror()}")


class _Table(_TableMethods, iptc.Table):  # type: ignore[misc]
    pass


class _Table6(_TableMethods, iptc.Table6):  # type: ignore[misc]
    pass


def build_rule(rule: ParsedRule, family: int, table: Any) -> Any:
    """The rule as libiptc takes it, for `table`. Raises iptc.XTablesError or ValueError if the rule is wrong."""
    built = _Rule6() if family == socket.AF_INET6 else _Rule()
    built.tables = [table]
    if rule.source:
        built.src = rule.source
    if rule.destination:
        built.dst = rule.destination
    if rule.protocol:
        built.protocol = rule.protocol
    _set_interfaces(built, rule)
    for extension in rule.matches:
        match = _Match(built, name=extension.name)
        _set_parameters(match, extension)
        built.add_match(match)
    target = _Target(built, name=rule.target.name)
    _set_parameters(target, rule.target)
    built.target = target
    return built


def _set_interfaces(built: Any, rule: ParsedRule) -> None:
    """Set the interfaces as iptables does: a wildcard's `+` stays in the name; the mask says how many characters count.

    The setters of python-iptables drop the `+`, and make a mask of 0x01 instead of 0xff in IPv6 rules.
    """
    header = built.get_ip()
    for word, field, flag in ((rule.in_interface, "iniface", 0x01), (rule.out_interface, "outiface", 0x02)):
        name = word.removeprefix("!")
        if not name:
            continue
        compared = len(name) - 1 if name.endswith("+") else len(name) + 1
        setattr(header, field, name.encode())
        setattr(header, f"{field}_mask", b"\xff" * compared)
        if word.startswith("!"):
            header.invflags |= flag


def _set_parameters(module: Any, extension: Extension) -> None:
    for parameter in extension.parameters:
        values = list(parameter.values)
        module.set_parameter(parameter.name, ["!", *values] if parameter.inverted else values)
    module.final_check()


class _Extension(NamedTuple):
    name: bytes
    revision: int
    contents: bytes


class TableChangedError(KernelError):
    """Another program changed the table after it was read and before it was committed."""


class OpenTable:
    """A table that was read and not yet committed."""

    def __init__(self, family: int, name: str) -> None:
        """Raises iptc.IPTCError if the kernel has no such table."""
        self._family = family
        self._table = (_Table6 if family == socket.AF_INET6 else _Table)(name, autocommit=False)
        self._table.refresh()

    def close(self) -> None:
        """Forget the table; changes that were not committed are lost."""
        self._table.close()

    def commit(self) -> None:
        """Write the table to the kernel, which takes all of it or nothing.

        Raises TableChangedError when the table must be read again.
        """
        try:
            self._table.commit()
        except iptc.IPTCError as error:
            if os.strerror(errno.EAGAIN) not in str(error):
                raise
            sentence = "another program changed the table meanwhile, without the lock; trying later"
            raise TableChangedError(sentence, errno=errno.EAGAIN) from error

    def chain_names(self) -> list[str]:
        """The names of all chains, the built-in ones too."""
        return [chain.name for chain in self._table.chains]

    def is_builtin(self, chain: str) -> bool:
        """Whether the chain is the kernel's own, such as INPUT."""
        return bool(self._table.builtin_chain(chain))

    def create_missing(self, chains: Mapping[str, Sequence[str]]) -> list[str]:
        """Create the chains that are missing; return their names."""
        missing = [name for name in chains if not self._table.is_chain(name)]
        for name in missing:
            self._table.create_chain(name)
        return missing

    def holds(self, chain: str, rules: Sequence[str]) -> bool:
        """Whether the chain has exactly these rules. The chains that they jump to must exist."""
        entries = list(self._entries(chain))
        return len(entries) == len(rules) and all(map(self._equals, entries, self._build(rules)))

    def fill(self, chain: str, rules: Sequence[str]) -> None:
        """Make the chain have exactly these rules."""
        built = self._build(rules)
        self._table.flush_entries(chain)
        for rule in built:
            self._table.append_entry(chain, rule.rule)

    def starts_with(self, chain: str, jumps: Sequence[str], targets: frozenset[str], *, after_neighbours: bool) -> bool:
        """Whether the chain begins with these jumps and jumps to none of the targets after them.

        Jumps that insist on it may be in front, and with `after_neighbours` those to all other chains than the targets.
        """
        entries = list(self._entries(chain))
        if after_neighbours:
            entries = list(dropwhile(lambda entry: self._leads_elsewhere(entry, targets), entries))
        else:
            entries = entries[self._insisting(chain) :]
        first, rest = entries[: len(jumps)], entries[len(jumps) :]
        if len(first) < len(jumps) or not all(map(self._equals, first, self._build(jumps))):
            return False
        return not any(self._target_name(entry) in targets for entry in rest)

    def put_first(self, chain: str, jumps: Sequence[str], targets: frozenset[str]) -> None:
        """Make the chain begin with these jumps, and delete its other jumps to the targets. Other rules stay.

        Jumps that insist on the first place keep it if they have it.
        """
        self.drop_jumps(chain, targets)
        rules = self._build(jumps)
        for rule in rules:
            self._drop(chain, [at for at, entry in enumerate(self._entries(chain)) if self._equals(entry, rule)])
        for position, rule in enumerate(rules, self._insisting(chain)):
            self._table.insert_entry(chain, rule.rule, position)

    def _insisting(self, chain: str) -> int:
        """How many jumps that insist on the first place have it."""
        entries = takewhile(lambda entry: self._target_name(entry).startswith(INSISTS), self._entries(chain))
        return sum(1 for _ in entries)

    def drop_jumps(self, chain: str, targets: frozenset[str]) -> int:
        """Delete the rules of the chain that jump to one of the targets; return how many."""
        found = [at for at, entry in enumerate(self._entries(chain)) if self._target_name(entry) in targets]
        self._drop(chain, found)
        return len(found)

    def delete_chain(self, chain: str) -> None:
        """Delete a chain that is empty and to which no rule jumps."""
        self._table.delete_chain(chain)

    def _leads_elsewhere(self, entry: Any, targets: frozenset[str]) -> bool:
        """Whether an entry is a jump to a chain that is none of the targets."""
        name = self._target_name(entry)
        return name not in targets and bool(self._table.is_chain(name))

    def _drop(self, chain: str, positions: Sequence[int]) -> None:
        for position in reversed(positions):
            self._table.delete_position(chain, position)

    def _build(self, rules: Sequence[str]) -> list[Any]:
        return [build_rule(parse_rule(text, self._family), self._family, self._table) for text in rules]

    def _entries(self, chain: str) -> Iterator[Any]:
        entry = self._table.first_rule(chain)
        while entry:
            yield entry
            entry = self._table.next_rule(entry)

    def _target_name(self, entry: Any) -> str:
        return (self._table.get_target(entry) or b"").decode()

    def _equals(self, entry: Any, rule: Any) -> bool:
        """Whether an entry of the kernel equals a built rule."""
        header = bytes(rule.get_ip())
        contents = ctypes.string_at(ctypes.addressof(entry), entry.next_offset)
        if contents[: len(header)] != header or self._target_name(entry) != rule.target.name:
            return False
        matches = _extensions(contents, type(entry).elems.offset, entry.target_offset)
        if len(matches) != len(rule.matches):
            return False
        pairs = zip(matches, rule.matches, strict=True)
        if not all(_same(found, bytes(match.match_buf), match.usersize) for found, match in pairs):
            return False
        if rule.target.name in STANDARD_TARGETS or self._table.is_chain(rule.target.name):
            return True
        [target] = _extensions(contents, entry.target_offset, entry.next_offset)
        desired = ctypes.string_at(ctypes.addressof(rule.target.target), rule.target.size)
        return _same(target, desired, rule.target.usersize)


def _extensions(contents: bytes, start: int, end: int) -> list[_Extension]:
    """The matches, or the target, between two offsets of an entry."""
    found = []
    while start < end:
        size, name, revision = _EXTENSION_HEADER.unpack_from(contents, start)
        found.append(_Extension(_until_nul(name), revision, contents[start + ENTRY_HEADER_SIZE : start + size]))
        start += size
    return found


def _until_nul(name: bytes) -> bytes:
    """The C string in a field. The bytes after its NUL are arbitrary."""
    return name.partition(b"\0")[0]


def _same(found: _Extension, desired: bytes, usersize: int) -> bool:
    _size, name, revision = _EXTENSION_HEADER.unpack_from(desired)
    users = usersize - ENTRY_HEADER_SIZE
    same_module = (found.name, found.revision) == (_until_nul(name), revision)
    return same_module and found.contents[:users] == desired[ENTRY_HEADER_SIZE:usersize]
