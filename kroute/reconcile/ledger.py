"""The ledger: what kroute made on this node, recorded before it is made.

The ledger is an append-only file of JSON lines in the state directory. That directory is on a tmpfs, so the file lives
exactly as long as the kernel's state. It names every virtual server that kroute made, the dummy link if kroute made it,
the addresses and synchronization daemons of a director, and the first value of each sysctl and of the IPVS timeouts
that kroute changed. A line is written before the kernel is changed. The line that revokes it is written after the
change was undone. So the ledger may name an object that does not exist, but never misses one that does. When the last
line has no newline, kroute or the machine stopped while writing it, and its change never began.

With a ledger, exactly the objects that it names are ours. Without one (at a first start, or when somebody removed it)
the caller decides from what the kernel has, and records that with `adopt`.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec
import structlog

from kroute.model.plan import VirtualServerKey

log = structlog.get_logger(__name__)

_SLACK = 1024
"""How many stale lines the file may have, beside one for each entry that holds, before it is rewritten."""


class LedgerError(Exception):
    """The ledger cannot be written; nothing may be made in the kernel until it can."""


class VirtualServerMade(msgspec.Struct, frozen=True, tag_field="event", tag="virtual-server-made"):
    """kroute is about to make this virtual server."""

    key: VirtualServerKey


class VirtualServerDeleted(msgspec.Struct, frozen=True, tag_field="event", tag="virtual-server-deleted"):
    """This virtual server was deleted, or was never ours."""

    key: VirtualServerKey


class LinkMade(msgspec.Struct, frozen=True, tag_field="event", tag="link-made"):
    """kroute is about to make this link."""

    name: str


class SysctlChanged(msgspec.Struct, frozen=True, tag_field="event", tag="sysctl-changed"):
    """kroute is about to change this sysctl, or the kernel changed it when kroute changed another."""

    name: str
    old: str
    new: str


class TimeoutsChanged(msgspec.Struct, frozen=True, tag_field="event", tag="ipvs-timeouts-changed"):
    """kroute is about to change the IPVS timeouts (tcp, tcpfin, udp; seconds)."""

    old: tuple[int, int, int]
    new: tuple[int, int, int]


class AddressMade(msgspec.Struct, frozen=True, tag_field="event", tag="address-made"):
    """A director is about to bind this address to an interface that it did not make."""

    interface: str
    address: str


class AddressDeleted(msgspec.Struct, frozen=True, tag_field="event", tag="address-deleted"):
    """This address was deleted, or was never ours."""

    interface: str
    address: str


class SyncDaemonStarted(msgspec.Struct, frozen=True, tag_field="event", tag="sync-daemon-started"):
    """A director is about to start the connection synchronization daemon of this role (`ip_vs.h`)."""

    role: int
    interface: str
    sync_id: int


class SyncDaemonStopped(msgspec.Struct, frozen=True, tag_field="event", tag="sync-daemon-stopped"):
    """The daemon of this role was stopped, or was never ours."""

    role: int


Entry = (
    VirtualServerMade
    | VirtualServerDeleted
    | LinkMade
    | SysctlChanged
    | TimeoutsChanged
    | AddressMade
    | AddressDeleted
    | SyncDaemonStarted
    | SyncDaemonStopped
)


class Ledger:
    """The ledger of one state directory. All calls block, but briefly: the file is small and on a tmpfs."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "ledger"
        self.exists = False
        self.taken_over = 0
        self.virtual_servers: set[VirtualServerKey] = set()
        self.links: set[str] = set()
        self.addresses: set[tuple[str, str]] = set()
        self.sync_daemons: dict[int, SyncDaemonStarted] = {}
        self.sysctls: dict[str, SysctlChanged] = {}
        self.timeouts: TimeoutsChanged | None = None
        self._encoder = msgspec.json.Encoder()
        self._descriptor: int | None = None
        self._lines = 0

    @classmethod
    def open(cls, state_dir: Path) -> Self:
        """Read the file, if it exists. A line that cannot be decoded is skipped with a warning. Raises LedgerError."""
        ledger = cls(state_dir)
        try:
            ledger._read(ledger.path.read_bytes())
        except FileNotFoundError:
            return ledger
        except OSError as error:
            raise LedgerError(f"cannot read {ledger.path}: {error.strerror} (check its owner and mode)") from error
        ledger.exists = True
        return ledger

    def adopt(self, virtual_servers: Iterable[VirtualServerKey], links: Iterable[str]) -> None:
        """Replace the virtual servers and links that the ledger names, and rewrite the file."""
        self.virtual_servers = set(virtual_servers)
        self.links = set(links)
        self.taken_over = 0 if self.exists else len(self.virtual_servers)
        self._rewrite()

    def record(self, entries: Iterable[Entry]) -> None:
        """Append these entries in one write. When it raises LedgerError, the caller must make none of the changes."""
        entries = list(entries)
        if not entries:
            return
        descriptor = self._descriptor
        if descriptor is None or self._lines > 2 * self._live() + _SLACK:
            descriptor = self._rewrite()
        self._append(descriptor, entries)
        for entry in entries:
            self._apply(entry)

    def restore(self) -> bool:
        """Rewrite the file if somebody has removed or replaced it; returns whether somebody had."""
        if self._descriptor is None:
            return False
        try:
            ours, present = os.fstat(self._descriptor), self.path.stat()
            intact = (ours.st_dev, ours.st_ino) == (present.st_dev, present.st_ino)
        except OSError:
            intact = False
        if not intact:
            self._rewrite()
        return not intact

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> bool:
        """Delete the file; returns whether it existed."""
        self.close()
        self.exists = False
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LedgerError(f"cannot remove {self.path}: {error.strerror} (remove it by hand)") from error
        return True

    def _read(self, text: bytes) -> None:
        decoder = msgspec.json.Decoder(Entry)
        whole = text[: text.rfind(b"\n") + 1]
        try:
            entries = decoder.decode_lines(whole)
        except msgspec.DecodeError:
            self._read_one_by_one(whole.splitlines(), decoder)
            return
        for entry in entries:
            self._apply(entry)

    def _read_one_by_one(self, lines: Iterable[bytes], decoder: "msgspec.json.Decoder[Entry]") -> None:
        for number, line in enumerate(lines, 1):
            try:
                self._apply(decoder.decode(line))
            except msgspec.DecodeError as error:
                log.warning("ledger.line_skipped", path=str(self.path), line=number, error=str(error))

    def _apply(self, entry: Entry) -> None:
        match entry:
            case VirtualServerMade(key):
                self.virtual_servers.add(key)
            case VirtualServerDeleted(key):
                self.virtual_servers.discard(key)
            case LinkMade(name):
                self.links.add(name)
            case AddressMade(interface, address):
                self.addresses.add((interface, address))
            case AddressDeleted(interface, address):
                self.addresses.discard((interface, address))
            case SyncDaemonStarted(role):
                self.sync_daemons[role] = entry
            case SyncDaemonStopped(role):
                self.sync_daemons.pop(role, None)
            case SysctlChanged(name, old, new):
                first = self.sysctls.get(name)
                self.sysctls[name] = SysctlChanged(name, first.old if first else old, new)
            case TimeoutsChanged(old, new):
                self.timeouts = TimeoutsChanged(self.timeouts.old if self.timeouts else old, new)

    def _live(self) -> int:
        made = len(self.virtual_servers) + len(self.links) + len(self.addresses) + len(self.sync_daemons)
        return made + len(self.sysctls) + (self.timeouts is not None)

    def _append(self, descriptor: int, entries: Iterable[Entry]) -> None:
        entries = list(entries)
        text = self._encoder.encode_lines(entries)
        try:
            written = os.write(descriptor, text)
        except OSError as error:
            self.close()  # the next write rewrites the file, so that a torn line is never followed by another
            raise LedgerError(f"cannot write {self.path}: {error.strerror} (make room on its file system)") from error
        if written != len(text):
            self.close()
            raise LedgerError(f"cannot write all of {self.path} (make room on its file system)")
        self._lines += len(entries)

    def _rewrite(self) -> int:
        """Write a new file with the entries that hold now, and rename it over the old one."""
        self.close()
        entries: list[Entry] = [VirtualServerMade(key) for key in self.virtual_servers]
        entries += [LinkMade(name) for name in sorted(self.links)]
        entries += [AddressMade(*pair) for pair in sorted(self.addresses)]
        entries += self.sync_daemons.values()
        entries += self.sysctls.values()
        if self.timeouts is not None:
            entries.append(self.timeouts)
        fresh = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._descriptor = descriptor
            self._lines = 0
            self._append(descriptor, entries)
            fresh.replace(self.path)
        except OSError as error:
            self.close()
            raise LedgerError(f"cannot write {fresh}: {error.strerror} (check the state directory)") from error
        self.exists = True
        return descriptor
