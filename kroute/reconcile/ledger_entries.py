"""The entries of the ledger: what kroute is about to make or change on this node, and what it has undone."""

from ipaddress import ip_address

import msgspec

from kroute.model.plan import VirtualServerKey


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


def check_address(entry: Entry) -> None:
    """Raise ValueError if the entry's address is malformed. A line without checksum may be damaged."""
    if isinstance(entry, (VirtualServerMade, VirtualServerDeleted)):
        ip_address(entry.key.address)
    elif isinstance(entry, (AddressMade, AddressDeleted)):
        ip_address(entry.address.partition("/")[0])
