"""The lock of a network namespace: it lets one agent, and beside it one director, change the kernel's state.

The state directory's lock is not enough, since a kroute with another state directory has another lock. The name of an
abstract Unix socket belongs to the network namespace, and the kernel frees it when its process ends. But any user may
bind such a name. So there are several names. A name that is bound by neither root nor this user is skipped, and the
next one is taken. A claim is refused if kroute holds any of them (unix(7), SO_PEERCRED).
"""

import asyncio
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

import structlog

log = structlog.get_logger(__name__)

PREFIX = "kroute"
"""The prefix of the sockets' names."""
NAMES = 8
"""The number of names for each role."""

_QUEUE = 128
"""How many connections may wait. Further ones cannot find out which process holds the name."""
_EMPTY_EVERY = 1.0
"""Seconds between two times that the waiting connections are closed."""
_LISTENS_WITHIN = (0.01, 0.05)
"""Seconds until a name that was just bound is tried again: its holder listens in a moment."""
_CREDENTIALS = struct.Struct("iII")


class LockRole(StrEnum):
    """The roles, each with its own lock."""

    AGENT = "agent"
    DIRECTOR = "director"


class NamespaceInUseError(Exception):
    """Another kroute of this role runs in this network namespace."""


@contextmanager
def hold(role: LockRole) -> Iterator[None]:
    """Hold the lock of the role. The kernel releases it when the process ends. Raises NamespaceInUseError or OSError.

    If others hold every name, kroute works without the lock and logs a warning, so that nobody can prevent its start.
    """
    held: socket.socket | None = None
    try:
        for number in range(NAMES):
            name = f"\0{PREFIX}-{role}-{number}"
            if held is None and (held := _bound(name)) is not None:
                continue
            process, user = _holder(name) or (0, None)
            if user in {0, os.geteuid()}:
                raise NamespaceInUseError(_sentence(role, process))
        if held is None:
            log.warning(
                "namespace_lock.unavailable",
                consequence=f"a second {role} in this network namespace is not refused",
                next_step="`ss -xlp` shows which processes hold the names that begin with @kroute",
            )
        else:
            _follow(held)
        yield
    finally:
        if held is not None:
            _release(held)


def _bound(name: str) -> socket.socket | None:
    """A socket that holds the name, or None if another one does."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        lock.bind(name)
        lock.listen(_QUEUE)
    except OSError as error:
        lock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return lock


def _holder(name: str) -> tuple[int, int] | None:
    """The process that holds a name, and its user; None if there is none or it cannot be found out.

    The process is 0 if its process namespace is not visible from here.
    """
    for pause in (*_LISTENS_WITHIN, 0.0):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as question:
            try:
                question.connect(name)
            except ConnectionRefusedError:
                if not _is_taken(name):
                    return None
                time.sleep(pause)
                continue
            except BlockingIOError:
                return None
            process, user, _ = _CREDENTIALS.unpack(
                question.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            return process, user
    return None


def _is_taken(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(name)
        except OSError:
            return True
    return False


def _sentence(role: LockRole, process: int) -> str:
    holder = f"process {process}" if process else "a process that is not visible from here"
    return (
        f"kroute's {role} is already running in this network namespace ({holder}), with another state directory: "
        "stop it first, or give its --state-dir"
    )


def _follow(lock: socket.socket) -> None:
    """Close connections as they arrive, so that there is room for new ones, but not more often than _EMPTY_EVERY.

    Only with a running event loop, which sleeps while nobody connects.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if lock.fileno() >= 0:
        loop.add_reader(lock, _empty_queue, loop, lock)


def _empty_queue(loop: asyncio.AbstractEventLoop, lock: socket.socket) -> None:
    loop.remove_reader(lock)
    for _ in range(_QUEUE):
        try:
            lock.accept()[0].close()
        except OSError:  # nothing waits, or no file descriptor is free: next time
            break
    loop.call_later(_EMPTY_EVERY, _follow, lock)


def _release(lock: socket.socket) -> None:
    with suppress(RuntimeError):  # no event loop runs
        asyncio.get_running_loop().remove_reader(lock)
    lock.close()
