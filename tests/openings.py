"""Makes this process fail where it opens something: a file, a directory, a socket, a library, a process, a name.

Python announces each of these to its audit hooks (PEP 578), and an exception of a hook ends the attempt, as an error of
the system call would. So the errors come exactly where the real ones come, wherever that is in the code.
"""

import errno
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

EVENTS = {
    "open": (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO),
    "os.listdir": (errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    "os.scandir": (errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    "socket.__new__": (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
    "socket.getaddrinfo": (errno.EMFILE, errno.ENOMEM),
    "socket.bind": (errno.ENOMEM, errno.ENOBUFS),
    "socket.connect": (errno.ENOMEM, errno.ENOBUFS),
    "subprocess.Popen": (errno.EAGAIN, errno.ENOMEM, errno.EMFILE),
    "ctypes.dlopen": (errno.EMFILE, errno.ENOMEM),
    "tempfile.mkstemp": (errno.EMFILE, errno.EIO),
}
"""What is opened, and the errors that it may fail with for lack of something."""


class Openings:
    """The openings of a context (a task, its children, and their `to_thread`), of which each fails a number of times.

    Two attempts are of the same opening if the same line of this repository's code, or of a library that it calls,
    opens the same thing.
    """

    def __init__(self, number: int, *, times: int = 1, only: Mapping[str, str] | None = None) -> None:
        """Fail with the `number`-th of an event's errors, counted round.

        `only`: a part of the name of what is opened, by event; events that it does not have do not fail.
        """
        self.failed: dict[tuple[str, str, str], int] = {}
        self._number = number
        self._times = times
        self._only = only

    @contextmanager
    def failing(self) -> Iterator["Openings"]:
        """Let them fail within the block."""
        _install()
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    def take(self, event: str, arguments: tuple[object, ...]) -> None:
        """Raise the error of an opening that has not failed often enough."""
        name = _name(event, arguments)
        if self._only is not None and (event not in self._only or self._only[event] not in name):
            return
        what = (event, name, _line())
        if self.failed.get(what, 0) >= self._times:
            return
        self.failed[what] = self.failed.get(what, 0) + 1
        numbers = EVENTS[event]
        number = numbers[self._number % len(numbers)]
        raise OSError(number, os.strerror(number))


_current: ContextVar[Openings | None] = ContextVar("openings", default=None)
_installed: list[bool] = []


def _install() -> None:
    if not _installed:
        sys.addaudithook(_hook)
        _installed.append(True)


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event in EVENTS and arguments[0] is not None and (openings := _current.get()) is not None:  # None: dlopen(NULL)
        token = _current.set(None)  # what the look at the stack opens is nobody's
        try:
            openings.take(event, arguments)
        finally:
            _current.reset(token)


def _name(event: str, arguments: tuple[object, ...]) -> str:
    if event == "socket.__new__":
        return ", ".join(map(str, arguments[1:]))
    if event in {"socket.bind", "socket.connect"}:
        return str(arguments[1])
    return str(arguments[0])


def _line() -> str:
    """The innermost line that is not of the standard library."""
    for frame, line in traceback.walk_stack(sys._getframe(3)):
        path = frame.f_code.co_filename
        if "site-packages" in path or "/kroute/" in path:
            return f"{path.rpartition('/site-packages/')[2]}:{line}"
    return ""
