"""Transactions of nfnetlink: the messages between BATCH_BEGIN and BATCH_END take effect together, or none does.

The kernel tries every message, also after one that it refuses, and handles the whole batch before send() returns. If
BATCH_END is missing it checks all messages and takes everything back (net/netfilter/nfnetlink.c).
"""

import errno
import time
from collections.abc import Sequence
from typing import NamedTuple

from kroute.kernel.errors import KernelError, describe_errno
from kroute.kernel.netlink.message import (
    NFNETLINK_HEADER,
    NLM_F_ACK,
    NLMSG_ERROR,
    attribute,
    iterate_messages,
    message,
    to_i32,
)
from kroute.kernel.netlink.netlink_socket import FLAGS_OFFSET, NetlinkSocket

NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 0x10, 0x11
NFNL_BATCH_GENID = 1
NLM_F_ECHO = 0x8


class BatchOutcome(NamedTuple):
    """What became of a batch.

    `refused` are the refused messages as {index: errno}; if it has any, nothing has changed. `echoes` are the events
    that the first message and the commit caused, as (type, payload). `seconds` is how long the event loop stood still.
    """

    refused: dict[int, int]
    echoes: list[tuple[int, bytes]]
    seconds: float


class BatchSocket(NetlinkSocket):
    """A netlink socket that can also send batches, of `send_buffer` bytes at most."""

    async def batch(
        self, subsystem: int, messages: Sequence[bytes], *, commit: bool = True, generation: int = 0
    ) -> BatchOutcome:
        """Send the messages as one transaction. Without `commit` the kernel checks them, and changes nothing.

        Raises KernelError: the kernel's errno when it refuses the batch as a whole (ERESTART if `generation` is given,
        and the kernel has another one), and when its answers are lost, so that the outcome is unknown.
        """
        marker = NFNETLINK_HEADER.pack(0, 0, subsystem)
        valid_at = attribute(NFNL_BATCH_GENID, generation.to_bytes(4, "big")) if generation else b""
        end = [message(NFNL_MSG_BATCH_END, 0, marker)] if commit else []
        body = list(messages)
        body[-1] = _flagged(body[-1], NLM_F_ACK)
        body[0] = _flagged(body[0], NLM_F_ECHO if commit else 0)
        async with self.busy:
            began = time.monotonic()
            sequence = await self.send_messages([message(NFNL_MSG_BATCH_BEGIN, 0, marker + valid_at), *body, *end], 0)
            ended = time.monotonic()
            if commit:
                self.count_transaction(began, ended)
            return self._outcome(sequence + 1, len(body), ended - began)

    def _outcome(self, first: int, count: int, seconds: float) -> BatchOutcome:
        refused: dict[int, int] = {}
        echoes: list[tuple[int, bytes]] = []
        is_complete = False
        while (datagram := self.receive_now()) is not None:
            for kind, _flags, sequence, payload in iterate_messages(datagram):
                index = (sequence - first + 1 & 0xFFFFFFFF) - 1
                if index >= count:
                    continue
                if kind != NLMSG_ERROR:
                    echoes.append((kind, payload))
                    continue
                number = -to_i32(payload)
                if index < 0:
                    raise KernelError(f"the kernel refused a transaction: {describe_errno(number)}", errno=number)
                if number:
                    refused[index] = number
                is_complete = is_complete or index == count - 1
        if not is_complete and not refused:
            raise KernelError("the kernel did not answer a transaction; reading the state again", errno=errno.EBADMSG)
        return BatchOutcome(refused, echoes, seconds)


def _flagged(piece: bytes, flags: int) -> bytes:
    flagged = bytearray(piece)
    flagged[FLAGS_OFFSET] |= flags
    return bytes(flagged)
