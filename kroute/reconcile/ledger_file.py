"""The format of the ledger's file, in which damaged lines are recognised.

Every line of JSON ends with a checksum of itself. The first line, the head, says how many lines follow. It is
overwritten in its place after they were written, so it never counts a line that does not exist. So a file that was
emptied, cut short or edited is recognised as damaged. A file whose last batch was interrupted is not: the batch's
change never began.

docs/upgrade.md says what versions owe each other: new entries are new lines, which an older version keeps and does not
read. The version in the head grows only if the form of the lines itself changes.
"""

import os
import re
import stat
import zlib
from pathlib import Path

import msgspec

MOST_BYTES = 64 << 20
"""The most bytes that are read of a ledger: ten times what 100,000 virtual servers take."""

_SEAL = b',"check":"'
_SEAL_LENGTH = len(_SEAL) + len(b'89abcdef"}')
_VERSION = 1
"""The form of the lines, as the head says it."""
_COUNT_DIGITS = 10
_HEAD = re.compile(rb'\{"event":"ledger","version":(\d{1,9}),"lines":"(\d{10})"')


class Contents(msgspec.Struct, frozen=True):
    """The contents of a file: its intact `lines`, the numbers of its `damaged` ones. `is_whole`: no line is missing.

    `is_newer`: the lines may have a form that this version of kroute cannot read, so they are not whole for it.
    """

    lines: list[bytes]
    damaged: list[int]
    is_whole: bool
    has_head: bool
    is_newer: bool


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
    whole = text.split(b"\n")[:-1]
    first = _head(whole[0]) if whole else None
    intact: list[bytes] = []
    damaged: list[int] = []
    for number, line in enumerate(whole, 1):
        if not _is_sealed(line):
            damaged.append(number)
        elif number > 1 or first is None:
            intact.append(line)
    version, lines = first or (0, 0)
    is_newer = version > _VERSION
    return Contents(
        intact,
        damaged,
        is_whole=first is not None and not is_newer and len(intact) >= lines,
        has_head=first is not None,
        is_newer=is_newer,
    )


def _is_sealed(line: bytes) -> bool:
    return line + b"\n" == sealed(line[:-_SEAL_LENGTH] + b"}")


def _head(line: bytes) -> tuple[int, int] | None:
    """The version of the format, and how many lines follow, if the line is a head; else None."""
    found = _HEAD.match(line)
    return (int(found[1]), int(found[2])) if found is not None and _is_sealed(line) else None
