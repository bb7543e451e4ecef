"""The form of the ledger's file: what is in it is told from damage, line by line.

Every line of JSON ends with a checksum of itself. The first line, the head, says how many lines follow; it is written
after them, in its place, and so never counts a line that is not there. So a file that was emptied, cut short or edited
is known as damaged, and a batch whose writing was interrupted is not: its change never began.

A version that knows no head or checksums skips the first and passes over the second. A file of such a version has
neither, and is taken as it is.
"""

import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 64 << 20
"""What is read of a ledger at most: ten times what 100,000 virtual servers take."""

_SEAL = b',"check":"'
_SEAL_LENGTH = len(_SEAL) + len(b'89abcdef"}')
_VERSION = 1
_COUNT_DIGITS = 10


class NumberedLine(NamedTuple):
    """A line, and its number in the file from 1 on."""

    number: int
    text: bytes


class Contents(NamedTuple):
    """What a file holds: the lines that may be believed, those that may not, and whether no line is missing."""

    lines: list[NumberedLine]
    damaged: list[NumberedLine]
    is_whole: bool
    has_head: bool


def read(path: Path) -> bytes:
    """The file, MOST_BYTES of it at most. Raises OSError, also for what is no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "it is not a file; remove it")
        return file.read(MOST_BYTES)


def sealed(line: bytes) -> bytes:
    """A JSON object as a line with its checksum."""
    return b'%s%s%08x"}\n' % (line[:-1], _SEAL, zlib.crc32(line))


def head(lines: int) -> bytes:
    """The first line, which always has the same length."""
    return sealed(b'{"event":"ledger","version":%d,"lines":"%0*d"}' % (_VERSION, _COUNT_DIGITS, lines))


def contents(text: bytes) -> Contents:
    """Tell what may be believed from what may not. A last line without its end was being written, and is neither."""
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
    """How many lines follow this first one; None if it is no head."""
    before, _, after = line.partition(b'"lines":"')
    digits = after[:_COUNT_DIGITS]
    if not (before.startswith(b'{"event":"ledger",') and digits.isdigit() and _is_sealed(line)):
        return None
    return int(digits)
