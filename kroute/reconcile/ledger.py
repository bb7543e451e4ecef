"""The ledger: what kroute made on this node, recorded before it is made.

The ledger is an append-only file of JSON lines in the state directory. That directory is on a tmpfs, so the file lives
exactly as long as the kernel's state. It names every virtual server that kroute made, the dummy link if kroute made it,
the addresses and synchronization daemons of a director, the first value of each sysctl and of the IPVS timeouts that
kroute changed, and the proxies whose take-over is unfinished. A line is written before the kernel is changed. The line
that revokes it is written after the change was undone. So the ledger may name an object that does not exist, but never
misses one that does. When the last line has no newline, kroute or the machine stopped while writing it, and its change
never began.

With a whole ledger, exactly the objects that it names are ours. Without a ledger (at a first start, or when somebody
removed or emptied it), the caller decides from what the kernel has. With a ledger that lacks lines, the caller decides
from both. The caller records the decision with `adopt`. `ledger_file` knows the format of the file. `Exclusion` says
where the ledger alone decides.

An intact line that cannot be decoded is the entry of another version of kroute. It stays in the file, so that the other
version finds what it made when it comes back (docs/upgrade.md).
"""

import os
from collections.abc import Iterable, KeysView
from errno import ENOSPC
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Self

import msgspec
import structlog

from kroute.model.plan import VirtualServerKey
from kroute.reconcile import ledger_file

log = structlog.get_logger(__name__)

_SLACK = 1024
"""How many stale lines the file may have, in addition to one for each entry that holds, before it is rewritten."""
_MOST_WARNINGS = 5
"""How many undecodable lines the log names."""
_SENSELESS = (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError)
"""The exceptions that decoding raises, for any bytes."""


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


class TakeOverBegun(msgspec.Struct, frozen=True, tag_field="event", tag="take-over-begun"):
    """kroute is about to adopt what this proxy serves; the rest of the proxy's objects is to be removed."""

    proxy: str


class TakeOverDone(msgspec.Struct, frozen=True, tag_field="event", tag="take-over-done"):
    """Nothing of this proxy's is left."""

    proxy: str


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
    | TakeOverBegun
    | TakeOverDone
)


class LedgerError(Exception):
    """The ledger cannot be written; nothing may be made in the kernel until it can."""


class Ledger:
    """The ledger of one state directory. All calls block, but briefly: the file is small and on a tmpfs.

    `exists`: a file was found with a head or an intact line. `is_whole`: none of its lines is missing.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "ledger"
        self.exists = False
        self.is_whole = False
        self.taken_over = 0
        self._virtual_servers: dict[VirtualServerKey, None] = {}
        self.links: set[str] = set()
        self.addresses: set[tuple[str, str]] = set()
        self.sync_daemons: dict[int, SyncDaemonStarted] = {}
        self.sysctls: dict[str, SysctlChanged] = {}
        self.timeouts: TimeoutsChanged | None = None
        self.take_overs: set[str] = set()
        """The proxies that kroute has begun to take over from, and of which something may be left."""
        self.unknown: list[bytes] = []
        """The lines of another version of kroute, each with its checksum."""
        self._descriptors: list[int] = []
        """Of the open file: one that appends lines, and one that overwrites the head."""
        self._lines = 0
        self._size = 0

    @classmethod
    def open(cls, state_dir: Path) -> Self:
        """Read the file, if it exists. A line that cannot be decoded is skipped with a warning. Raises LedgerError."""
        ledger = cls(state_dir)
        try:
            ledger._read(ledger_file.read(ledger.path))
        except FileNotFoundError:
            return ledger
        except OSError as error:
            raise LedgerError(f"cannot read {ledger.path}: {error.strerror} (check its owner and mode)") from error
        return ledger

    @property
    def virtual_servers(self) -> KeysView[VirtualServerKey]:
        """The virtual servers that kroute made, in the order in which it made them."""
        return self._virtual_servers.keys()

    def adopt(self, virtual_servers: Iterable[VirtualServerKey], links: Iterable[str]) -> None:
        """Replace the virtual servers and links that the ledger names, and rewrite the file."""
        named = self.virtual_servers
        self._virtual_servers = dict.fromkeys(virtual_servers)
        self.links = set(links)
        self.taken_over = 0 if self.is_whole else len(self.virtual_servers - named)
        self._rewrite()

    def record(self, entries: Iterable[Entry]) -> None:
        """Append these entries in one write. When it raises LedgerError, the caller must make none of the changes."""
        entries = list(entries)
        if not entries:
            return
        if not self._descriptors or self._lines > 2 * self._live() + _SLACK:
            self._rewrite()
        try:
            self._append(map(_sealed, entries))
        except OSError as error:
            self.close()  # the next write rewrites the file, so that a torn line is never followed by another
            raise LedgerError(f"cannot write {self.path}: {error.strerror} (make room on its file system)") from error
        for entry in entries:
            self._apply(entry)

    def restore(self) -> bool:
        """Rewrite the file if it was removed, replaced or shortened; returns whether it was."""
        if not self._descriptors:
            return False
        try:
            ours, present = os.fstat(self._descriptors[0]), self.path.stat()
            is_same = (ours.st_dev, ours.st_ino) == (present.st_dev, present.st_ino)
            intact = is_same and present.st_size >= self._size
        except OSError:
            intact = False
        if not intact:
            self._rewrite()
        return not intact

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def remove(self) -> bool:
        """Delete the file; returns whether it existed."""
        self.close()
        self.exists = self.is_whole = False
        self.unknown.clear()
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LedgerError(f"cannot remove {self.path}: {error.strerror} (remove it by hand)") from error
        return True

    def _read(self, text: bytes) -> None:
        decoder = msgspec.json.Decoder(Entry)
        contents = ledger_file.contents(text)
        for line in contents.lines:
            try:
                self._apply(decoder.decode(line))
            except _SENSELESS:
                self.unknown.append(line + b"\n")
        self.exists = contents.has_head or len(contents.lines) > 0
        self.is_whole = contents.is_whole
        self._warn(contents.damaged, is_newer=contents.is_newer)

    def _warn(self, damaged: list[int], *, is_newer: bool) -> None:
        path = str(self.path)
        if self.unknown:
            log.info(
                "ledger.lines_kept", path=path, lines=len(self.unknown), reason="another version of kroute wrote them"
            )
        for number in damaged[:_MOST_WARNINGS]:
            log.warning("ledger.line_skipped", path=path, line=number, error="its checksum is wrong")
        if not self.is_whole:
            event = "ledger.newer" if is_newer else "ledger.damaged"
            consequence = "what is on the dummy interface is taken for kroute's, as without a ledger"
            log.warning(event, path=path, skipped=len(damaged), consequence=consequence)

    def _apply(self, entry: Entry) -> None:
        match entry:
            case VirtualServerMade(key):
                self._virtual_servers[key] = None
            case VirtualServerDeleted(key):
                self._virtual_servers.pop(key, None)
            case LinkMade(name):
                self.links.add(name)
            case AddressMade(interface, address) | AddressDeleted(interface, address):
                change = self.addresses.add if isinstance(entry, AddressMade) else self.addresses.discard
                change((interface, address))
            case SyncDaemonStarted(role):
                self.sync_daemons[role] = entry
            case SyncDaemonStopped(role):
                self.sync_daemons.pop(role, None)
            case SysctlChanged(name, old, new):
                first = self.sysctls.get(name)
                self.sysctls[name] = SysctlChanged(name, first.old if first else old, new)
            case TimeoutsChanged(old, new):
                self.timeouts = TimeoutsChanged(self.timeouts.old if self.timeouts else old, new)
            case TakeOverBegun(proxy) | TakeOverDone(proxy):
                (self.take_overs.add if isinstance(entry, TakeOverBegun) else self.take_overs.discard)(proxy)

    def _live(self) -> int:
        made = len(self.virtual_servers) + len(self.links) + len(self.addresses) + len(self.sync_daemons)
        return made + len(self.sysctls) + (self.timeouts is not None) + len(self.take_overs) + len(self.unknown)

    def _append(self, lines: Iterable[bytes], first: bytes = b"") -> None:
        """Write the lines, after `first`, then the head that counts them. Raises OSError, and then the file is torn."""
        file, start = self._descriptors
        lines = list(lines)
        text, head = first + b"".join(lines), ledger_file.head(self._lines + len(lines))
        if os.write(file, text) != len(text) or os.pwrite(start, head, 0) != len(head):
            raise OSError(ENOSPC, "not all of it was written")
        self._lines += len(lines)
        self._size += len(text)

    def _entries(self) -> list[Entry]:
        """The entries that hold now."""
        entries: list[Entry] = [VirtualServerMade(key) for key in self.virtual_servers]
        entries += [LinkMade(name) for name in sorted(self.links)]
        entries += [AddressMade(*pair) for pair in sorted(self.addresses)]
        entries += self.sync_daemons.values()
        entries += self.sysctls.values()
        if self.timeouts is not None:
            entries.append(self.timeouts)
        entries += [TakeOverBegun(proxy) for proxy in sorted(self.take_overs)]
        return entries

    def _rewrite(self) -> None:
        """Write a new file with the entries that hold now, and rename it over the old one."""
        self.close()
        fresh = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._descriptors.append(os.open(fresh, flags, 0o600))
            # O_APPEND would put the head behind the lines.
            self._descriptors.append(os.open(fresh, os.O_WRONLY | os.O_CLOEXEC))
            self._lines = self._size = 0
            self._append([*self.unknown, *map(_sealed, self._entries())], first=ledger_file.head(0))
            fresh.replace(self.path)
        except OSError as error:
            self.close()
            raise LedgerError(f"cannot write {fresh}: {error.strerror} (check the state directory)") from error
        self.exists = self.is_whole = True


def _sealed(entry: Entry) -> bytes:
    """The entry's line."""
    return ledger_file.sealed(msgspec.json.encode(entry))


class Exclusion:
    """Networks whose virtual servers kroute does not clean up (`--exclude-cidrs`).

    They have the meaning of kube-proxy's `excludeCIDRs` and kube-router's `--excluded-cidrs`. Services are served there
    as everywhere. A virtual server there that the ledger does not name is foreign, even if the ledger lacks lines and
    the address is on the dummy interface: kroute neither changes nor deletes it.
    """

    def __init__(self, cidrs: Iterable[str]) -> None:
        self._networks = [ip_network(cidr) for cidr in cidrs]

    def covers(self, address: str) -> bool:
        """Whether the address is in an excluded network."""
        return any(ip_address(address) in network for network in self._networks)
