"""Changes of the kernel's state, and how its refusals are reported: an exception, failures, and errors in words."""

import os
import struct
from collections.abc import Awaitable, Container, Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec

Answer = TypeVar("Answer")
Made = TypeVar("Made")

IPSET_ERRORS = {
    4097: "the kernel speaks another ipset protocol version",
    4098: "the kernel does not know this set type",
    4099: "too many sets",
    4100: "the set is in use",
    4101: "a set of that name exists",
    4102: "the set is of another type",
    4103: "the element is there already",
    4104: "the prefix length is not valid",
    4105: "the netmask is not valid",
    4106: "the address family does not fit the set",
    4107: "the set has no timeouts",
    4108: "another set refers to it",
    4109: "the element is not an IPv4 address",
    4110: "the element is not an IPv6 address",
    4352: "the set is full",
    4353: "the element is out of the set's range",
    4354: "the element lacks a protocol",
    4355: "the protocol is not valid",
}
"""Private error numbers of ip_set (include/uapi/linux/netfilter/ipset/ip_set.h, from IPSET_ERR_PRIVATE = 4096)."""


UNINTELLIGIBLE = (LookupError, ValueError, struct.error)
"""The exceptions that parsing raises for an answer that is incomplete or malformed."""


def describe_errno(errno: int) -> str:
    """The error number in words, also for ip_set's private numbers."""
    return IPSET_ERRORS.get(errno) or os.strerror(errno)


class KernelError(Exception):
    """The kernel refused or cannot be reached, in one sentence with the next step. `errno` is its number or None."""

    def __init__(self, sentence: str, *, errno: int | None = None) -> None:
        super().__init__(sentence)
        self.errno = errno


async def none_if_refused(request: Awaitable[Answer], *numbers: int) -> Answer | None:
    """What the request returns; None if the kernel refuses it with one of these error numbers."""
    try:
        return await request
    except KernelError as error:
        if error.errno not in numbers:
            raise
        return None


def raise_refusal(refused: Mapping[int, int], what: str, next_step: str, tolerated: Container[int] = ()) -> None:
    """Raise KernelError if the kernel has refused one of the messages with another errno than the tolerated ones."""
    for number in refused.values():
        if number not in tolerated:
            raise KernelError(f"cannot {what}: {describe_errno(number)}; {next_step}", errno=number)


class Change(msgspec.Struct, frozen=True, gc=False):
    """A change of the kernel's state. `words` says what is done, as part of a sentence, by the change's attributes."""

    words: ClassVar[str]

    def __str__(self) -> str:
        return self.words.format(change=self)


class Failure(msgspec.Struct, Generic[Made], frozen=True):
    """One change of a batch that the kernel refused; the refusal did not stop the others."""

    change: Made
    errno: int

    def __str__(self) -> str:
        return f"cannot {self.change}: {describe_errno(self.errno)}"
