"""Announce an address to a link's neighbours: gratuitous ARP and unsolicited neighbour advertisements.

The sources are RFC 5227 (an ARP announcement is a request for one's own address) and RFC 4861, 7.2.6. Some switches and
hosts learn only from ARP replies, so both a request and a reply are sent. Nothing is sent on links that are not
Ethernet: they have no neighbours to learn from it.
"""

import asyncio
import socket
import struct
from collections.abc import Iterable

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.message import pack_address

ETH_P_ARP, ETH_P_IPV6 = 0x0806, 0x86DD
ARPHRD_ETHER = 1
ARP_REQUEST, ARP_REPLY = 1, 2
BROADCAST = b"\xff" * 6
ALL_NODES = pack_address("ff02::1")
ALL_NODES_MAC = bytes.fromhex("333300000001")
ICMPV6, NEIGHBOUR_ADVERTISEMENT = 58, 136
OVERRIDE = 0x20000000
"""The flag that makes neighbours replace the entry that they have."""
TARGET_LINK_LAYER_ADDRESS = 2

_ARP = struct.Struct("!HHBBH6s4s6s4s")
_IPV6 = struct.Struct("!IHBB16s16s")


class Announcer:
    """Sends announcements from the network namespace of the calling thread."""

    async def announce(self, interface: str, addresses: Iterable[str]) -> None:
        """Announce the addresses on the interface. Raises KernelError if it is missing or down."""
        frames = list(addresses)
        if frames:
            await asyncio.to_thread(_send, interface, frames)


def _send(interface: str, addresses: list[str]) -> None:
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
            link.bind((interface, 0))
            _, _, _, hardware_type, mac = link.getsockname()
            if hardware_type != ARPHRD_ETHER:
                return
            for address in addresses:
                for frame in announcements(address, mac):
                    link.send(frame)
    except OSError as error:
        sentence = f"cannot announce addresses on {interface}: {error.strerror}; trying later"
        raise KernelError(sentence, errno=error.errno) from error


def announcements(address: str, mac: bytes) -> list[bytes]:
    """The frames that say that the address is at this MAC address."""
    if ":" in address:
        return [neighbour_advertisement(address, mac)]
    return [gratuitous_arp(address, mac, operation) for operation in (ARP_REQUEST, ARP_REPLY)]


def gratuitous_arp(address: str, mac: bytes, operation: int) -> bytes:
    """A broadcast frame with an ARP packet whose sender and target are the address itself."""
    own = pack_address(address)
    target_mac = bytes(6) if operation == ARP_REQUEST else mac
    packet = _ARP.pack(ARPHRD_ETHER, 0x0800, 6, 4, operation, mac, own, target_mac, own)
    return _ethernet(BROADCAST, mac, ETH_P_ARP) + packet


def neighbour_advertisement(address: str, mac: bytes) -> bytes:
    """An unsolicited neighbour advertisement to all nodes of the link."""
    own = pack_address(address)
    option = struct.pack("!BB6s", TARGET_LINK_LAYER_ADDRESS, 1, mac)
    body = struct.pack("!I16s", OVERRIDE, own) + option
    length = 4 + len(body)
    pseudo_header = own + ALL_NODES + struct.pack("!II", length, ICMPV6)
    checksum = _checksum(pseudo_header + struct.pack("!BBH", NEIGHBOUR_ADVERTISEMENT, 0, 0) + body)
    message = struct.pack("!BBH", NEIGHBOUR_ADVERTISEMENT, 0, checksum) + body
    header = _IPV6.pack(6 << 28, length, ICMPV6, 255, own, ALL_NODES)
    return _ethernet(ALL_NODES_MAC, mac, ETH_P_IPV6) + header + message


def _ethernet(destination: bytes, source: bytes, kind: int) -> bytes:
    return destination + source + struct.pack("!H", kind)


def _checksum(payload: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(payload) // 2}H", payload))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
