"""One table that was read from the kernel: compares it with the desired rules, and changes it.

Rules are compared as the kernel holds them, not as text: the entry's header byte for byte, and the part of each match
and target that libxtables declares as the user's. Import this module in the xtables thread only.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Any, NamedTuple

from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.library import ENTRY_HEADER_SIZE, build_rule, iptc, open_table
from kroute.kernel.iptables.rule import parse_rule

INSISTS = "cali-"
"""The chains of Calico's Felix. It puts its jumps back to the first place whenever they are not there
(`ChainInsertMode`), so ours come behind them: otherwise both programs would write the table again and again."""

STANDARD_TARGETS = frozenset({"ACCEPT", "DROP", "RETURN", "QUEUE"})

_EXTENSION_HEADER = struct.Struct("=H29sB")
"""struct xt_entry_match and xt_entry_target: size, name, revision."""


class _Extension(NamedTuple):
    name: bytes
    revision: int
    contents: bytes


class TableChangedError(KernelError):
    """Another program changed the table after it was read and before it was committed."""


class OpenTable:
    """A table that was read and not yet committed."""

    def __init__(self, family: int, name: str) -> None:
        self._family = family
        self._table = open_table(family, name)

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

    def accepts(self, rule: str) -> bool:
        """Whether libxtables supports every option of the rule."""
        try:
            self._build([rule])
        except iptc.XTablesError:
            return False
        return True

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
            self._drop_equal(chain, rule)
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

    def _drop_equal(self, chain: str, rule: Any) -> None:
        self._drop(chain, [at for at, entry in enumerate(self._entries(chain)) if self._equals(entry, rule)])

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
