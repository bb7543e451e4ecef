"""The lines of a stream, put together from the pieces in which they arrive."""

from kroute.watchers.kubernetes.decoding import LONGEST_OBJECT

LONGEST_LINE = LONGEST_OBJECT + (64 << 10)
"""Bytes of a line that are kept. Who reads it finds that its object is too long, and whose it is."""


class LineBuffer:
    """Holds the beginning of the line that has not ended yet, of a longer one no more than LONGEST_LINE bytes."""

    def __init__(self) -> None:
        self._unfinished = bytearray()

    @property
    def is_within_line(self) -> bool:
        """Whether the stream, if it ended now, would end within a line."""
        return bool(self._unfinished)

    def take(self, piece: bytes) -> list[bytes]:
        """Add what has arrived; returns the lines that it ends."""
        *lines, rest = piece.split(b"\n")
        if lines:
            self._keep(lines[0])
            lines[0] = bytes(self._unfinished)
            self._unfinished = bytearray()
        self._keep(rest)
        return lines

    def _keep(self, piece: bytes) -> None:
        self._unfinished += piece[: LONGEST_LINE - len(self._unfinished)]
