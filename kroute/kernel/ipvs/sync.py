"""Netlink messages for the daemons that copy connections between directors (net/netfilter/ipvs/ip_vs_sync.c).

A master sends the state of its connections to a multicast group (224.0.0.81, port 8848) on one interface. A backup
accepts what masters with its synchronization id send. A network namespace has at most one daemon of each role.
"""

from enum import IntEnum
from typing import NamedTuple

from kroute.kernel.netlink.generic import GENERIC_HEADER, generic_message
from kroute.kernel.netlink.message import NLM_F_DUMP, attributes, nested, text, to_text, to_u32, u32

CMD_NEW_DAEMON, CMD_DEL_DAEMON, CMD_GET_DAEMON = 9, 10, 11
ATTR_DAEMON = 3
DAEMON_STATE, DAEMON_INTERFACE, DAEMON_SYNC_ID = 1, 2, 3


class SyncRole(IntEnum):
    """IP_VS_STATE_MASTER and IP_VS_STATE_BACKUP of include/uapi/linux/ip_vs.h."""

    MASTER = 1
    BACKUP = 2


class SyncDaemon(NamedTuple):
    """A daemon. `sync_id` is 1 to 255, and the same on all machines that share connections."""

    role: SyncRole
    interface: str
    sync_id: int

    def __str__(self) -> str:
        return f"IPVS {self.role.name.lower()} synchronization daemon on {self.interface}"


def encode_start_daemon(family: int, daemon: SyncDaemon) -> bytes:
    """The message that starts a daemon; `family` is the number of the IPVS family."""
    return generic_message(family, 0, CMD_NEW_DAEMON, _encode(daemon))


def encode_stop_daemon(family: int, daemon: SyncDaemon) -> bytes:
    """The message that stops the daemon of this role."""
    return generic_message(family, 0, CMD_DEL_DAEMON, _encode(daemon))


def encode_daemon_dump(family: int) -> bytes:
    return generic_message(family, NLM_F_DUMP, CMD_GET_DAEMON)


def parse_daemon(payload: bytes) -> SyncDaemon:
    """One answer to `encode_daemon_dump`."""
    found = attributes(attributes(payload, GENERIC_HEADER.size)[ATTR_DAEMON])
    return SyncDaemon(
        SyncRole(to_u32(found[DAEMON_STATE])), to_text(found[DAEMON_INTERFACE]), to_u32(found[DAEMON_SYNC_ID])
    )


def _encode(daemon: SyncDaemon) -> bytes:
    return nested(
        ATTR_DAEMON,
        u32(DAEMON_STATE, daemon.role),
        text(DAEMON_INTERFACE, daemon.interface),
        u32(DAEMON_SYNC_ID, daemon.sync_id),
    )
