"""The format of the ledger's file, in which damaged lines are recognised.

Every line of JSON ends with a checksum of itself. The first line, the head, says how many lines follow. It is
overwritten in its place after they were written, so it never counts a line that does not exist. So a file that was
emptied, cut short or edited is recognised as damaged. A file whose last batch was interrupted is not: the batch's
change never began.

An older version of kroute skips the head and ignores checksums. The file of an older version has neither, and all its
lines are accepted.
"""

import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 64 << 20
"""The most bytes that are read of a ledger: ten times what 100,000 virtual servers take."""

_SEAL = b',"check":"'
_SEAL_LENGTH = len(_SEAL) + len(b'89abcdef"}')
_VERSION = 1
_COUNT_DIGITS = 10


class NumberedLine(NamedTuple):
    """A line, and its number in the file, from 1."""

    number: int
    text: bytes


class Contents(NamedTuple):
    """The contents of a file: its intact `lines`, its `damaged` ones. `is_whole`: no line is missing."""

    lines: list[NumberedLine]
    damaged: list[NumberedLine]
    is_whole: bool
    has_head: bool


def read(path: Path) -> bytes:
    """Read the file, at most MOST_BYTES of it. Raises OSError, also if `path` is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "it is not a file; remove it")
        return file.read(MOST_BYTES)


def sealed(line: bytes) -> bytes:
    """A JSON object as a line with its checksum."""
    return b'%s%s%08x"}\n' % (line[:-1], _SEAL, zlib.crc32(line))


def head(lines: int) -> bytes:
    """The head for a file of so many lines. It always has the same length."""
    return sealed(b'{"event":"ledger","version":%d,"lines":"%0*d"}' % (_VERSION, _COUNT_DIGITS, lines))


def contents(text: bytes) -> Contents:
    """Separate intact lines from damaged ones. A last line without newline was being written, and is left out."""
    whole = text[: text.rfind(b"\n") + 1]
    numbered = [NumberedLine(number, line) for number, line in enumerate(whole.split(b"\n")[:-1], 1)]
    if b'"check"' not in whole:
        return Contents(numbered, [], is_whole=bool(numbered), has_head=False)
    count = _count(numbered[0].text)
    entries = numbered if count is None else numbered[1:]
    intact = [line for line in entries if _is_sealed(line.text)]
    return Contents(
        intact,
        _without(entries, intact),
        is_whole=count is not None and len(intact) >= count,
        has_head=count is not None,
    )


def _without(lines: Iterable[NumberedLine], intact: list[NumberedLine]) -> list[NumberedLine]:
    numbers = {line.number for line in intact}
    return [line for line in lines if line.number not in numbers]


def _is_sealed(line: bytes) -> bool:
    return line + b"\n" == sealed(line[:-_SEAL_LENGTH] + b"}")


def _count(line: bytes) -> int | None:
    """How many lines follow `line`; None if it is no head."""
    before, _, after = line.partition(b'"lines":"')
    digits = after[:_COUNT_DIGITS]
    if not (before.startswith(b'{"event":"ledger",') and digits.isdigit() and _is_sealed(line)):
        return None
    return int(digits)
