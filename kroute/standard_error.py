"""Standard error for a program that must not stand still because the reader of its log does.

A pipe holds 64 KiB, and a write to a full one waits until somebody reads: a container runtime or a journal that stands
still would stop the event loop, and the node with it. So this stream never waits. What cannot be written at once is
kept, up to a limit, and written as soon as there is room. Then new lines are dropped and counted, until all that is
kept was written; so the log shows how the trouble began, and where lines are missing.

The descriptor's own flags stay as they are, since other processes may share them. So a pipe or a terminal is opened a
second time (proc(5), /proc/self/fd), and a socket is written with MSG_DONTWAIT. Where a pipe cannot be opened again, a
write of PIPE_BUF bytes follows a poll that says there is room for as many (pipe(7)). A file is left alone: it never
makes a program wait for a reader.
"""

import asyncio
import atexit
import contextlib
import io
import os
import select
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

KEPT_BYTES = 1 << 20
"""How much is kept while the reader stands still: as much as Docker's non-blocking mode keeps (`max-buffer-size`)."""
_AT_EXIT = 1.0
"""Seconds that a program waits at its end for a reader that takes nothing."""


class NonBlockingStream(io.TextIOBase):
    """Text for one pipe, socket or terminal, which is written without ever waiting.

    `tell` is called with the number of writes that were dropped, once there is room to say it. `dropped` counts all of
    them. Threads may write; the event loop of whoever writes goes on with what is kept.
    """

    def __init__(self, descriptor: int, tell: Callable[[int], None] = lambda _: None) -> None:
        self.dropped = 0
        self._tell = tell
        self._untold = 0
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._lock = threading.RLock()
        self._follower: asyncio.AbstractEventLoop | None = None
        self._original = descriptor
        self._socket: socket.socket | None = None
        self._poll: select.poll | None = None
        self._descriptor = self._open(descriptor)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    def fileno(self) -> int:
        return self._original

    def isatty(self) -> bool:
        return os.isatty(self._original)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Write all of the text, now or later, or drop all of it. Never waits and never raises OSError."""
        line = text.encode(self.encoding, self.errors)
        with self._lock:
            if self.closed:
                return len(text)
            self._write_kept()
            if self._untold or self._kept_bytes + len(line) > KEPT_BYTES:
                self.dropped += 1
                self._untold += 1
            elif line:
                self._kept.append(line)
                self._kept_bytes += len(line)
                self._write_kept()
            self._follow()
        return len(text)

    def flush(self) -> None:
        """Write what can be written now."""
        with self._lock:
            self._write_kept()

    def close(self) -> None:
        """Close what was opened here, and forget what is kept."""
        if not self.closed:
            self._kept.clear()
            self._untold = 0
            super().close()
            if self._socket is not None:
                self._socket.close()
            elif self._poll is None:
                os.close(self._descriptor)

    def finish(self, within: float) -> None:
        """Write all that is kept, but wait no longer than this for the reader, in seconds; then close."""
        ends = time.monotonic() + within
        room = select.poll()
        room.register(self._descriptor, select.POLLOUT)
        with self._lock:
            self._write_kept()
            while self._kept and (left := ends - time.monotonic()) > 0:
                room.poll(left * 1000)
                self._write_kept()
            self.close()

    def _open(self, descriptor: int) -> int:
        """The descriptor to write to, which belongs to this object."""
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            self._socket = socket.socket(fileno=os.dup(descriptor))
            return self._socket.fileno()
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            return os.open(f"/proc/self/fd/{descriptor}", flags)
        except OSError:  # no procfs, or the pipe belongs to another user
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLOUT)
            return descriptor

    def _write_kept(self) -> None:
        """Write what is kept, as far as there is room. If the reader is gone, nothing is kept any more."""
        while self._kept:
            line = self._kept.popleft()
            try:
                written = self._write_now(line)
            except BlockingIOError:
                written = 0
            except OSError:
                self.dropped += 1 + len(self._kept)
                self._kept.clear()
                self._kept_bytes = 0
                break
            self._kept_bytes -= written
            if written < len(line):
                self._kept.appendleft(line[written:])
                if not written:
                    return
        untold, self._untold = self._untold, 0
        if untold:
            self._tell(untold)

    def _write_now(self, line: bytes) -> int:
        """The number of bytes that were written. Raises BlockingIOError if there is no room."""
        if self._socket is not None:
            return self._socket.send(line, socket.MSG_DONTWAIT)
        if self._poll is not None:
            if not self._poll.poll(0):
                raise BlockingIOError
            line = line[: select.PIPE_BUF]
        return os.write(self._descriptor, line)

    def _follow(self) -> None:
        """Let the event loop write what is kept as soon as there is room; without one the next line does."""
        if not self._kept or (self._follower is not None and not self._follower.is_closed()):
            return
        with contextlib.suppress(RuntimeError):  # no event loop runs in this thread
            loop = asyncio.get_running_loop()
            loop.add_writer(self._descriptor, self._there_is_room, loop)
            self._follower = loop

    def _there_is_room(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._write_kept()
            if not self._kept:
                loop.remove_writer(self._descriptor)
                self._follower = None


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
        stream = NonBlockingStream(descriptor, tell)
        sys.stderr = stream
        atexit.register(stream.finish, _AT_EXIT)


def dropped_lines() -> int:
    """How many lines of standard error this process has dropped because nobody read them."""
    return sys.stderr.dropped if isinstance(sys.stderr, NonBlockingStream) else 0
