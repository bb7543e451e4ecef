"""The user of this node that has made a connection, and the ports on which this node listens, by sock_diag(7)."""

import os
import socket
import struct

from kroute.kernel.netlink.message import (
    HEADER,
    HEADER_SIZE,
    NLM_F_DUMP,
    NLMSG_DONE,
    NLMSG_ERROR,
    address_family,
    iterate_messages,
    message,
    pack_address,
)

NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_ESTABLISHED, _LISTEN = 1, 10
_QUESTION = struct.Struct("=BBBBI")  # struct inet_diag_req_v2, up to its id
_ID = struct.Struct(">HH16s16s")  # struct inet_diag_sockid, up to the interface
_ID_REST = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # of any interface; INET_DIAG_NOCOOKIE
_ANSWER = struct.Struct("=BBBB48sIIIII")  # struct inet_diag_msg
_MAPPED = "::ffff:"
_RECEIVED_AT_ONCE = 32 << 10
"""Bytes: the kernel's dumps come in such parts at most."""


def owner_of(connection: socket.socket) -> int | None:
    """The user id of the other end of an accepted TCP connection; None if that is no socket of this network namespace.

    None for a socket that was closed, too: the kernel says root of any such socket (`sock_i_uid`). None if the kernel
    cannot say (no `tcp_diag`).
    """
    try:
        peer, own = connection.getpeername(), connection.getsockname()
        host = _plain(peer[0])
        addresses = [pack_address(address).ljust(16, b"\0") for address in (host, _plain(own[0]))]
        sought = peer[1], own[1], *addresses
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as netlink:
            netlink.setblocking(False)  # the answer is there when the request has been sent
            question = _QUESTION.pack(address_family(host), socket.IPPROTO_TCP, 0, 0, 1 << _ESTABLISHED)
            netlink.send(message(_SOCK_DIAG_BY_FAMILY, 0, question + _ID.pack(*sought) + _ID_REST))
            answer = netlink.recv(os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        return None
    if len(answer) < HEADER_SIZE + _ANSWER.size or HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    _, state, _, _, found, _, _, _, user, inode = _ANSWER.unpack_from(answer, HEADER_SIZE)
    # where no connection is found, the kernel answers with a socket that listens on the port
    is_it = state == _ESTABLISHED and inode and _ID.unpack_from(found) == sought
    return int(user) if is_it else None


def listening_ports() -> frozenset[int] | None:
    """The TCP ports on which a socket of this network namespace listens, on whatever address; None: as at `owner_of`.

    Two system calls for each family and some 100 sockets, where a connection to each port would be packets.
    """
    found: set[int] = set()
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as netlink:
            netlink.setblocking(False)
            netlink.bind((0, 0))  # until a socket has a number, a tracer cannot tell of which protocol it is
            for family in (socket.AF_INET, socket.AF_INET6):
                question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN)
                netlink.send(message(_SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, question + bytes(_ID.size + len(_ID_REST))))
                if not _take_ports(netlink, found):
                    return None
    except OSError:
        return None
    return frozenset(found)


def _take_ports(netlink: socket.socket, found: set[int]) -> bool:
    """Add the ports of a dump; returns whether the kernel has dumped all."""
    while True:
        for kind, _flags, _sequence, payload in iterate_messages(netlink.recv(_RECEIVED_AT_ONCE)):
            if kind in {NLMSG_DONE, NLMSG_ERROR}:  # the end of a dump has an error number, too: without tcp_diag ENOENT
                return kind == NLMSG_DONE and not any(payload[:4])
            found.add(int(_ID.unpack_from(_ANSWER.unpack_from(payload)[4])[0]))


def _plain(address: str) -> str:
    """Without the interface; an IPv4 address that is written as IPv6 as IPv4."""
    return address.partition("%")[0].removeprefix(_MAPPED)
