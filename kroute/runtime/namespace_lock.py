"""Who may change the kernel's state of this network namespace: one agent, and one director beside it.

The state directory's lock cannot say so, since another directory has another one. The name of an abstract unix socket
belongs to the network namespace, and is free again when its process ends. But anybody may hold a name. So there are
several: one that is held by neither root nor this user is passed over and the next one is taken, and a claim is refused
for any of the names that kroute holds (unix(7), SO_PEERCRED).
"""

import asyncio
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

import structlog

log = structlog.get_logger(__name__)

PREFIX = "kroute"
"""What the sockets' names begin with."""
NAMES = 8
"""How many names there are for each role."""

_QUEUE = 128
"""How many that ask for the holder may wait; more of them learn nothing."""
_EMPTY_EVERY = 1.0
"""Seconds after which the queue is emptied."""
_LISTENS_WITHIN = (0.01, 0.05)
"""Seconds until a name that has just been taken is looked at again: its holder listens in a moment."""
_CREDENTIALS = struct.Struct("iII")


class Role(StrEnum):
    """What has a lock of its own."""

    AGENT = "agent"
    DIRECTOR = "director"


class NamespaceInUseError(Exception):
    """Another kroute of this role works in this network namespace."""


class _Holder(NamedTuple):
    process: int  # 0 if it is in a process namespace that cannot be seen from here
    user: int


@contextmanager
def hold(role: Role) -> Iterator[None]:
    """Hold the lock of the role; the kernel releases it when the process ends. Raises NamespaceInUseError or OSError.

    Where others hold every name, kroute works without the lock, with a warning: nobody can keep it from starting.
    """
    held: socket.socket | None = None
    try:
        for number in range(NAMES):
            name = f"\0{PREFIX}-{role}-{number}"
            if held is None and (held := _bound(name)) is not None:
                continue
            holder = _holder(name)
            if holder is not None and holder.user in {0, os.geteuid()}:
                raise NamespaceInUseError(_sentence(role, holder))
        if held is None:
            log.warning(
                "namespace_lock.unavailable",
                consequence=f"a second {role} in this network namespace is not refused",
                next_step="`ss -xlp` shows who holds the names that begin with @kroute",
            )
        else:
            _empty_queue(held)
        yield
    finally:
        if held is not None:
            held.close()


def _bound(name: str) -> socket.socket | None:
    """A socket that holds the name; None if another one does."""
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


def _holder(name: str) -> _Holder | None:
    """Who holds a name; None if nobody does, or it does not say who it is."""
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
            return _Holder(process, user)
    return None


def _is_taken(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(name)
        except OSError:
            return True
    return False


def _sentence(role: Role, holder: _Holder) -> str:
    process = f"process {holder.process}" if holder.process else "a process that is not visible from here"
    return (
        f"kroute's {role} runs already in this network namespace ({process}), with another state directory: "
        "stop it first, or give its --state-dir"
    )


def _empty_queue(lock: socket.socket) -> None:
    """Forget who has asked, now and then, so that there is room for the next; only where an event loop runs."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if lock.fileno() < 0:
        return
    for _ in range(_QUEUE):
        try:
            lock.accept()[0].close()
        except OSError:  # nobody is left, or no file descriptor is: the next time
            break
    loop.call_later(_EMPTY_EVERY, _empty_queue, lock)
