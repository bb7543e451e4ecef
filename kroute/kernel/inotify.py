"""Changes in one directory, from inotify(7), for asyncio.

Python's standard library has no inotify, so libc's functions are called with ctypes.
"""

import asyncio
import ctypes
import os
import stat
import struct
from pathlib import Path
from typing import Self

IN_CLOSE_WRITE = 0x008
IN_MOVED_FROM = 0x040
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_Q_OVERFLOW = 0x4000
IN_ONLYDIR = 0x01000000

_EVENTS = IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF
_HEADER = struct.Struct("=iIII")
_BUFFER = 64 * 1024


class DirectoryChanges:
    """Reports which names in a directory changed. It is an async context manager; entering it may raise OSError.

    A new or changed file is reported once its writer has closed it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = -1

    async def __aenter__(self) -> Self:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        path = os.fsencode(self._directory)
        if self._descriptor < 0 or libc.inotify_add_watch(self._descriptor, path, _EVENTS | IN_ONLYDIR) < 0:
            number = ctypes.get_errno()
            if self._descriptor >= 0:
                os.close(self._descriptor)
            raise OSError(number, os.strerror(number), str(self._directory))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        os.close(self._descriptor)

    async def next(self) -> set[str] | None:
        """Wait for changes; return the names that changed, or None if any name may have.

        No change is lost when the wait is cancelled.
        """
        while True:
            await self._readable()
            try:
                names = self._parse(os.read(self._descriptor, _BUFFER))
            except BlockingIOError:
                continue
            if names is None or names:
                return names

    async def _readable(self) -> None:
        """Wait until there are changes. Only then does the loop look for them: it would spin until they are read."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, arrived.set)
        try:
            await arrived.wait()
        finally:
            loop.remove_reader(self._descriptor)

    def _parse(self, events: bytes) -> set[str] | None:
        names: set[str] = set()
        position = 0
        while position + _HEADER.size <= len(events):
            _, mask, _, length = _HEADER.unpack_from(events, position)
            position += _HEADER.size + length
            name = os.fsdecode(events[position - length : position].rstrip(b"\0"))
            if mask & IN_Q_OVERFLOW or not name:
                return None
            if mask != IN_CREATE or self._is_link(name):
                names.add(name)
        return names

    def _is_link(self, name: str) -> bool:
        """Whether a new name is a symbolic or hard link: complete at once, while a new file is complete when closed."""
        try:
            status = (self._directory / name).lstat()
        except (OSError, ValueError):  # mostly because it was deleted already
            return False
        return stat.S_ISLNK(status.st_mode) or status.st_nlink > 1
