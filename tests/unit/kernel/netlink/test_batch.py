"""How the answers to a batch are understood."""

import errno
import struct
from typing import Any

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.batch import NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NLM_F_ECHO, BatchSocket
from kroute.kernel.netlink.message import HEADER, NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR, iterate_messages, message

SUBSYSTEM = 10
NEW, NEWGEN = SUBSYSTEM << 8, SUBSYSTEM << 8 | 15
FIRST = 1
"""The sequence number of BATCH_BEGIN; those of the messages follow."""


class Kernel(BatchSocket):
    """A socket to a kernel that answers every send with these datagrams, or errors."""

    def __init__(self, *answers: bytes | KernelError) -> None:
        super().__init__(12, receive_buffer=0, send_buffer=0)
        self.answers = list(answers)
        self.sent: list[tuple[int, int, int, bytes]] = []

    def _opened(self) -> Any:
        return self

    def send(self, buffer: bytearray) -> None:
        self.sent = list(iterate_messages(bytes(buffer)))

    def receive_now(self) -> bytes | None:
        if not self.answers:
            return None
        answer = self.answers.pop(0)
        if isinstance(answer, KernelError):
            raise answer
        return answer


def said(sequence: int, number: int = 0) -> bytes:
    """The kernel's acknowledgement, or refusal, of the message with a sequence number."""
    payload = struct.pack("=i", -number) + bytes(HEADER.size)
    return HEADER.pack(HEADER.size + len(payload), NLMSG_ERROR, 0, sequence, 0) + payload


def echo(sequence: int, payload: bytes) -> bytes:
    return HEADER.pack(HEADER.size + len(payload), NEWGEN, 0, sequence, 0) + payload


MESSAGES = [message(NEW, 0, name) for name in (b"one.", b"two.", b"last")]


async def test_a_batch_has_a_begin_and_an_end_an_echo_and_one_acknowledgement() -> None:
    kernel = Kernel(echo(FIRST + 1, b"gen."), said(FIRST + 3))
    outcome = await kernel.batch(SUBSYSTEM, MESSAGES)
    kinds_and_flags = [(kind, flags & ~NLM_F_REQUEST) for kind, flags, _, _ in kernel.sent]
    assert kinds_and_flags == [
        (NFNL_MSG_BATCH_BEGIN, 0),
        (NEW, NLM_F_ECHO),
        (NEW, 0),
        (NEW, NLM_F_ACK),
        (NFNL_MSG_BATCH_END, 0),
    ]
    assert [sequence for _, _, sequence, _ in kernel.sent] == [FIRST, 2, 3, 4, 5]
    assert (outcome.refused, outcome.echoes) == ({}, [(NEWGEN, b"gen.")])


async def test_a_check_has_no_end_and_no_echo() -> None:
    kernel = Kernel(said(FIRST + 3))
    assert (await kernel.batch(SUBSYSTEM, MESSAGES, commit=False)).refused == {}
    assert [flags & NLM_F_ECHO for _, flags, _, _ in kernel.sent] == [0, 0, 0, 0]
    assert NFNL_MSG_BATCH_END not in {kind for kind, *_ in kernel.sent}


async def test_every_refused_message_is_told() -> None:
    kernel = Kernel(said(FIRST + 1, errno.EEXIST) + said(FIRST + 3, errno.ENOENT))
    assert (await kernel.batch(SUBSYSTEM, MESSAGES)).refused == {0: errno.EEXIST, 2: errno.ENOENT}


async def test_answers_of_earlier_requests_are_skipped() -> None:
    kernel = Kernel(said(0xFFFFFFF0, errno.EIO), said(0, errno.EIO), said(FIRST + 3))
    assert (await kernel.batch(SUBSYSTEM, MESSAGES)).refused == {}


async def test_a_batch_that_is_refused_as_a_whole_is_an_error() -> None:
    with pytest.raises(KernelError) as refused:
        await Kernel(said(FIRST, errno.EPERM)).batch(SUBSYSTEM, MESSAGES)
    assert refused.value.errno == errno.EPERM


@pytest.mark.parametrize(
    ("answers", "number"),
    [((), errno.EBADMSG), ((KernelError("lost", errno=errno.ENOBUFS), said(FIRST + 3)), errno.ENOBUFS)],
    ids=["none", "lost"],
)
async def test_without_the_kernels_answers_the_outcome_is_unknown(
    answers: tuple[bytes | KernelError, ...], number: int
) -> None:
    with pytest.raises(KernelError) as unknown:
        await Kernel(*answers).batch(SUBSYSTEM, MESSAGES)
    assert unknown.value.errno == number


async def test_a_message_alone_is_first_and_last() -> None:
    kernel = Kernel(said(FIRST + 1))
    await kernel.batch(SUBSYSTEM, MESSAGES[:1])
    assert kernel.sent[1][1] & (NLM_F_ECHO | NLM_F_ACK) == NLM_F_ECHO | NLM_F_ACK
