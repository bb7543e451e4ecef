"""Events of nf_tables which say that another program has changed a table."""

import asyncio
import socket
import struct
import sys
from collections.abc import Collection
from functools import partial

from kroute.kernel.netlink.client import NetlinkClient
from kroute.kernel.netlink.message import NFNETLINK_HEADER, iterate_messages, text
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER
from kroute.kernel.netlink.socket_filter import (
    ADD,
    ADD_X,
    AND,
    COPY_TO_X,
    EVERYTHING,
    JUMP_IF_EQUAL,
    LOAD_BYTE_AT_X,
    LOAD_HALF_AT_X,
    LOAD_STORED,
    LOAD_WORD,
    LOAD_WORD_AT_X,
    PORT_AT,
    RETURN,
    SHIFT_LEFT,
    STORE,
    TYPE_AT,
    Instruction,
)
from kroute.kernel.nftables.messages import (
    NFNL_SUBSYS_NFTABLES,
    NFNLGRP_NFTABLES,
    TABLE_NAME,
    Message,
    parse_generation,
    type_of,
)
from kroute.kernel.nftables.objects import Table

DATAGRAMS_A_TURN = 100
"""How many datagrams, of up to 4 KiB, are looked through before other tasks run."""
NAME_AT = 20
"""Where a message has the attribute with the name of its table."""
EVENTS_LOOKED_AT = 150
"""More than a datagram of 4 KiB has; one with more is taken whatever it has. The kernel allows 4,096 instructions."""
PAUSE = 0.1
"""Seconds until more events are read after those of other tables: programs that often write these cost little."""
UNKNOWN = "a program whose events were lost"


class TableMonitor(NetlinkClient):
    """Changes of some tables by other sockets than the one with this port, from `open` on.

    The kernel drops the events of that socket before they wake kroute: adding thousands of elements makes as many
    events.
    """

    protocol = NETLINK_NETFILTER
    receive_buffer = 4 * 1024 * 1024

    def __init__(self, tables: Collection[Table], port: int) -> None:
        self._tables = {(table.family, text(TABLE_NAME, table.name)) for table in tables}
        self._names = {name for _family, name in self._tables}
        self._is_changed = False
        super().__init__([NFNLGRP_NFTABLES], [*except_of(port), *only_about(self._names)])

    async def next(self) -> str:
        """Wait until another program has changed a table; returns which, in words. One call may stand for many.

        It also returns when events were lost. Raises KernelError when the socket fails.
        """
        while True:
            programs: list[str] = []
            taken = await self.netlink.follow(DATAGRAMS_A_TURN, "nf_tables", partial(self._read, programs))
            if taken is None:
                self._is_changed = False
                return UNKNOWN
            if programs:
                return programs[-1]
            await asyncio.sleep(0 if taken == DATAGRAMS_A_TURN else PAUSE)

    def _read(self, programs: list[str], datagram: bytes) -> None:
        """Note the programs that have changed one of the tables by transactions that end in this datagram."""
        if not self._is_changed and not any(name in datagram for name in self._names):
            return
        for kind, _flags, _sequence, payload in iterate_messages(datagram):
            if type_of(kind) == Message.NEWGEN:
                if self._is_changed:
                    programs.append(parse_generation(payload)[1])
                self._is_changed = False
            elif not self._is_changed:
                self._is_changed = self._is_about_ours(payload)

    def _is_about_ours(self, payload: bytes) -> bool:
        """Whether an event is about one of the tables: its name is the first attribute of every event."""
        start = NFNETLINK_HEADER.size
        length = int.from_bytes(payload[start : start + 2], sys.byteorder)
        padded = (length + 3) & ~3
        return (payload[0], payload[start : start + padded]) in self._tables


def except_of(port: int) -> list[Instruction]:
    """The filter that drops the events that the socket with this port causes. A filter reads words as big-endian."""
    return [
        Instruction(LOAD_WORD, 0, 0, PORT_AT),
        Instruction(JUMP_IF_EQUAL, 0, 1, socket.htonl(port)),
        Instruction(RETURN, 0, 0, 0),
    ]


def only_about(names: Collection[bytes]) -> list[Instruction]:
    """The filter that drops a datagram with nothing but events of other tables than those with these names.

    The kernel puts as many events of a transaction into a datagram as fit in, so the filter looks at each. Large
    tables that other programs rewrite would otherwise overflow the receive buffer, and kroute would read its own again.
    """
    take = Instruction(RETURN, 0, 0, EVERYTHING)
    if sys.byteorder == "big":
        return [take]  # the lengths of messages are in the host's byte order
    [generation] = struct.unpack("!H", struct.pack("=H", NFNL_SUBSYS_NFTABLES << 8 | Message.NEWGEN))
    one = [Instruction(LOAD_HALF_AT_X, 0, 0, TYPE_AT), Instruction(JUMP_IF_EQUAL, 0, 1, generation), take]
    for name in sorted(names):
        words = struct.unpack(f"!{len(name) // 4}I", name)
        for number, word in enumerate(words):
            one.append(Instruction(LOAD_WORD_AT_X, 0, 0, NAME_AT + 4 * number))
            one.append(Instruction(JUMP_IF_EQUAL, 0, 2 * (len(words) - number) - 1, word))
        one.append(take)
    start = [Instruction(LOAD_WORD, 0, 0, 0), Instruction(AND, 0, 0, 0), Instruction(COPY_TO_X, 0, 0, 0)]
    return [*start, *(one + _NEXT) * EVENTS_LOOKED_AT, take]


_NEXT = [
    Instruction(LOAD_BYTE_AT_X, 0, 0, 1),
    Instruction(SHIFT_LEFT, 0, 0, 8),
    Instruction(STORE, 0, 0, 0),
    Instruction(LOAD_BYTE_AT_X, 0, 0, 0),
    Instruction(ADD, 0, 0, 3),
    Instruction(AND, 0, 0, 0x1FC),
    Instruction(ADD_X, 0, 0, 0),
    Instruction(COPY_TO_X, 0, 0, 0),
    Instruction(LOAD_STORED, 0, 0, 0),
    Instruction(ADD_X, 0, 0, 0),
    Instruction(COPY_TO_X, 0, 0, 0),
]
"""Let X point to the next message: add the length of this one, a little-endian number, rounded up to four bytes."""
