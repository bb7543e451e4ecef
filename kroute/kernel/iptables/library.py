"""Imports python-iptables, with changes for a long-running agent. Import this module in the xtables thread only.

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
import importlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.installed import find_libxtables, find_python_iptables
from kroute.kernel.iptables.rule import Extension, ParsedRule


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


def open_table(family: int, name: str) -> Any:
    """Read a table; changes take effect with its `commit()`. Raises iptc.IPTCError if the kernel has no such table."""
    table = (_Table6 if family == socket.AF_INET6 else _Table)(name, autocommit=False)
    table.refresh()
    return table


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
