"""Packets that rules of the firewall have logged for this program, by nfnetlink_log: the beginning of each.

See include/uapi/linux/netfilter/nfnetlink_log.h. Whoever sends a packet chooses its bytes; the kernel has looked at the
IP header, and at nothing behind it.
"""

import struct
from functools import partial
from typing import NamedTuple

from kroute.kernel.errors import raise_refusal
from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import (
    NFNETLINK_HEADER,
    attribute,
    attributes,
    iterate_messages,
    message,
    to_text,
    unpack_address,
)
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER

NFNL_SUBSYS_ULOG = 4
NFULNL_MSG_PACKET, NFULNL_MSG_CONFIG = 0, 1
NFULA_PAYLOAD, NFULA_PREFIX = 9, 10
NFULA_CFG_CMD, NFULA_CFG_MODE = 1, 2
NFULNL_CFG_CMD_BIND = 1
NFULNL_COPY_PACKET = 2
_MODE = struct.Struct("!IBx")
"""`struct nfulnl_msg_config_mode`: how many bytes, and what is copied."""

COPIED = 128
"""Bytes of each packet: the longest header of IPv4 has 60, that of IPv6 40 and some dozens of extensions.

The kernel copies whole packets until it has been told.
"""
DATAGRAMS_A_TURN = 8
"""How many datagrams, of up to 8 KiB, are read before other tasks run."""

_PORTS = struct.Struct("!HH")
_HAVE_PORTS = frozenset({6, 17, 33, 132, 136})
"""TCP, UDP, DCCP, SCTP and UDP-Lite begin with the two ports."""
_FRAGMENT, _AUTHENTICATION = 44, 51
_EXTENSIONS = frozenset({0, 43, 60, 135, 139, 140, _FRAGMENT, _AUTHENTICATION})
"""The headers of IPv6 that say which one follows."""


class LoggedPacket(NamedTuple):
    """A packet, with the prefix of the rule that has logged it.

    Ports are None in protocols without, in all fragments but the first, and where they are behind what is copied. So
    may be the protocol of IPv6: then its number is that of an extension header.
    """

    prefix: str
    protocol: int
    source: str
    destination: str
    source_port: int | None = None
    destination_port: int | None = None


class PacketLog(NetlinkClient):
    """The packets that are logged to one group, from `open` on. No other socket has the group meanwhile."""

    protocol = NETLINK_NETFILTER

    def __init__(self, group: int) -> None:
        super().__init__()
        self._group = group

    async def open(self) -> None:
        """Ask for the group's packets. Raises KernelError, EPERM if another socket has the group."""
        await super().open()
        try:
            bind = attribute(NFULA_CFG_CMD, bytes([NFULNL_CFG_CMD_BIND]))
            mode = attribute(NFULA_CFG_MODE, _MODE.pack(COPIED, NFULNL_COPY_PACKET))
            refused = await self.netlink.transact([self._configure(bind), self._configure(mode)])
            what = f"read the packets that are logged to group {self._group} of nfnetlink_log"
            raise_refusal(refused, what, "trying again")
        except BaseException:
            await self.close()
            raise

    async def next(self) -> list[LoggedPacket]:
        """Wait for packets, and return those that wait, without those that the kernel had to drop.

        Raises KernelError when the socket fails.
        """
        packets: list[LoggedPacket] = []
        await self.netlink.follow(DATAGRAMS_A_TURN, "logged packets", partial(_read, packets))
        return packets

    def _configure(self, what: bytes) -> bytes:
        head = NFNETLINK_HEADER.pack(0, 0, self._group)
        return message(NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG, 0, head + what)


def parse_packet(payload: bytes) -> LoggedPacket | None:
    """The packet of a message; None if its IP header is incomplete, or none."""
    found = attributes(payload, NFNETLINK_HEADER.size)
    packet = found.get(NFULA_PAYLOAD, b"")[:COPIED]
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        protocol, at, ends = packet[9], _behind_ipv4(packet), (packet[12:16], packet[16:20])
    elif version == 6 and len(packet) >= 40:
        (protocol, at), ends = _behind_ipv6(packet), (packet[8:24], packet[24:40])
    else:
        return None
    source_port = destination_port = None
    if protocol in _HAVE_PORTS and at is not None and at + _PORTS.size <= len(packet):
        source_port, destination_port = _PORTS.unpack_from(packet, at)
    prefix = to_text(found.get(NFULA_PREFIX, b""))
    source, destination = map(unpack_address, ends)
    return LoggedPacket(prefix, protocol, source, destination, source_port, destination_port)


def _read(packets: list[LoggedPacket], datagram: bytes) -> None:
    """Add the packets of a datagram."""
    for kind, _flags, _sequence, payload in iterate_messages(datagram):
        if kind == NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET and (packet := parse_packet(payload)) is not None:
            packets.append(packet)


def _behind_ipv4(packet: bytes) -> int | None:
    """Where the next header begins; None in a fragment that is not the first."""
    is_later = int.from_bytes(packet[6:8], "big") & 0x1FFF
    return None if is_later else (packet[0] & 0xF) * 4


def _behind_ipv6(packet: bytes) -> tuple[int, int | None]:
    """The protocol, and where its header begins; None in a fragment that is not the first."""
    protocol, at = packet[6], 40
    while protocol in _EXTENSIONS and at + 8 <= len(packet):
        size = {_FRAGMENT: 8, _AUTHENTICATION: (packet[at + 1] + 2) * 4}.get(protocol, (packet[at + 1] + 1) * 8)
        if protocol == _FRAGMENT and int.from_bytes(packet[at + 2 : at + 4], "big") >> 3:
            return packet[at], None
        protocol, at = packet[at], at + size
    return protocol, at
