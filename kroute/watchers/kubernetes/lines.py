"""Split a stream into lines."""

from kroute.watchers.kubernetes.decoding import LONGEST_OBJECT

LONGEST_LINE = LONGEST_OBJECT + (64 << 10)
"""Bytes of a line that are kept: enough to find whose object it is, and that the object is too long."""


class LineBuffer:
    """Holds the beginning of a line that has not ended yet, at most LONGEST_LINE bytes."""

    def __init__(self) -> None:
        self._unfinished = bytearray()

    @property
    def is_within_line(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._unfinished)

    def take(self, piece: bytes) -> list[bytes]:
        """Add the bytes that have arrived. Returns the lines that they complete."""
        *lines, rest = piece.split(b"\n")
        if lines:
            self._keep(lines[0])
            lines[0] = bytes(self._unfinished)
            self._unfinished = bytearray()
        self._keep(rest)
        return lines

    def _keep(self, piece: bytes) -> None:
        self._unfinished += piece[: LONGEST_LINE - len(self._unfinished)]
