"""Standard error for a program that must not stand still because the reader of its log does.

A pipe holds 64 KiB, and a write to a full one waits until somebody reads: a container runtime or a journal that stands
still would stop the event loop, and the node with it. So what is written here is only kept, up to a limit, and a thread
writes it to the descriptor, however long that takes. Beyond the limit new lines are dropped and counted, until all that
is kept was written; so the log shows how the trouble began, and where lines are missing.

A file is left alone: it never makes a program wait for a reader.
"""

import atexit
import io
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

KEPT_BYTES = 1 << 20
"""How much is kept while the reader stands still: as much as Docker's non-blocking mode keeps (`max-buffer-size`)."""
_AT_ONCE = 1 << 16
"""Bytes of a write: what a pipe holds."""
_AT_EXIT = 1.0
"""Seconds that a program waits at its end for a reader that takes nothing."""


class NonBlockingStream(io.TextIOBase):
    """Text for one descriptor, which is written by a thread: a caller never waits.

    `tell` is called with the number of lines that were dropped, once there is room to say it. `dropped` counts all of
    them.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, descriptor: int, tell: Callable[[int], None] = lambda _: None) -> None:
        """Raises RuntimeError if no thread can be started."""
        self.dropped = 0
        self._descriptor = descriptor
        self._tell = tell
        self._untold = 0
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write_what_is_kept, name="standard error", daemon=True).start()

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        """Have all of the text written, or drop all of it. Never waits and never raises OSError."""
        line = text.encode(self.encoding, self.errors)
        with self._changed:
            if self._untold or self._kept_bytes + len(line) > KEPT_BYTES:
                lines = _lines_in(line)
                self.dropped += lines
                self._untold += lines
            else:
                self._kept.append(line)
                self._kept_bytes += len(line)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Nothing: the thread writes as soon as it can. Programs flush at their end, when this may be closed."""

    def close(self) -> None:
        """End the thread, and forget what is kept."""
        with self._changed:
            super().close()
            self._kept.clear()
            self._changed.notify_all()

    def finish(self, within: float) -> None:
        """Wait until all that is kept is written, but no longer than this, in seconds; then close."""
        with self._changed:
            self._changed.wait_for(lambda: not self._kept_bytes and not self._untold, within)
        self.close()

    def _write_what_is_kept(self) -> None:
        while not self.closed:
            with self._changed:
                self._changed.wait_for(lambda: self._kept or self._untold or self.closed)
                lines = list(self._kept)  # all at once: a busy event loop leaves a thread few turns
                self._kept.clear()
                if not lines and self._untold:
                    untold, self._untold = self._untold, 0
                    self._tell(untold)
            self._write_now(lines)

    def _write_now(self, lines: list[bytes]) -> None:
        """Write these lines, however long the reader takes. If it is gone, they are lost."""
        batch = b"".join(lines)
        while batch and not self.closed:
            try:
                written = os.write(self._descriptor, batch[:_AT_ONCE])
            except BlockingIOError:  # another process has made the pipe a non-blocking one
                select.select((), (self._descriptor,), ())
                continue
            except OSError:
                written = len(batch)
                self.dropped += _lines_in(batch)
            batch = batch[written:]
            with self._changed:
                self._kept_bytes -= written
                self._changed.notify_all()


def _lines_in(text: bytes) -> int:
    """How many lines begin in a text that is not empty."""
    return max(1, text.count(b"\n"))


def never_wait(tell: Callable[[int], None]) -> None:
    """Put a NonBlockingStream in the place of this process's standard error, if that may make a program wait.

    Whatever writes there then never waits: log lines, asyncio's own reports, tracebacks. `tell` says in the log how
    many lines were dropped. At the process's end what is kept is written within a second.
    """
    try:
        descriptor = sys.stderr.fileno()
        kind = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):
        return  # none, or not a descriptor's
    if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor):
        sys.stderr.flush()
        with suppress(RuntimeError):  # no thread can be started: rather a log that may wait than none
            sys.stderr = stream = NonBlockingStream(descriptor, tell)
            atexit.register(stream.finish, _AT_EXIT)


def dropped_lines() -> int:
    """How many lines of standard error this process has dropped because nobody read them."""
    return sys.stderr.dropped if isinstance(sys.stderr, NonBlockingStream) else 0
