"""When to try again what failed: after growing delays."""

import asyncio
import errno
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec
import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Backoff:
    """Exponential backoff of one operation. All times are seconds.

    The first delay is `first`; each later one is twice as long, up to `limit`. With `rng`, each delay is multiplied by
    a random factor from 1 to 2, so that the agents of a cluster do not all come back at the same moment.
    """

    def __init__(self, first: float, limit: float, rng: random.Random | None = None) -> None:
        self._first = first
        self._limit = limit
        self._rng = rng
        self._next = first

    def delay(self) -> float:
        """How long to wait now."""
        base = self._next
        self._next = min(self._next * 2, self._limit)
        return base if self._rng is None else base * (1.0 + self._rng.random())

    def reset(self) -> None:
        """Let the next delay be the first one again; call this after a success."""
        self._next = self._first


_NEXT_STEPS = {
    errno.EMFILE: "raise the process's limit of open files (LimitNOFILE, ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (sysctl fs.file-max)",
    errno.ENOMEM: "free memory, or raise the memory limit of the process",
    errno.ENOBUFS: "free memory: the kernel has none for this socket",
    errno.EIO: "see the kernel's log (dmesg)",
    socket.EAI_MEMORY: "free memory: names cannot be resolved without",
}
_TOO_MANY_TASKS = "raise the limit of processes and threads (TasksMax, ulimit -u, the pod's pids limit)"
_NO_THREAD = "can't start new thread"
_OF_A_LIBRARY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""What keeps a shared library from being loaded: its ImportError has the error in words only."""
_FIRST_RETRY, _LAST_RETRY = 0.5, 30.0
"""Seconds between attempts at what needs a resource that has run out."""


def exhaustion(error: BaseException) -> str | None:
    """The next step if this, or what caused it, says that the system has run out of something; else None.

    Such an error says nothing about what was attempted: the same attempt succeeds later. BlockingIOError (EAGAIN) is
    what fork(2) fails with; sockets and locks that would block are none of this function's callers' business.
    """
    if isinstance(error, BaseExceptionGroup):
        steps = [exhaustion(inner) for inner in error.exceptions]
        return steps[0] if all(steps) else None
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return _NEXT_STEPS[errno.ENOMEM]
        if isinstance(cause, BlockingIOError) or (isinstance(cause, RuntimeError) and _NO_THREAD in str(cause)):
            return _TOO_MANY_TASKS
        if (step := _NEXT_STEPS.get(_number(cause))) is not None:
            return step
        cause = cause.__cause__
    return None


_OF_FILES = {
    errno.ENOSPC: "free space in the file system",
    errno.EDQUOT: "raise the quota, or free space in the file system",
    errno.EROFS: "mount the file system for writing",
}


def hindrance(error: BaseException) -> str | None:
    """The next step if a file cannot be made now; None if the error is of another kind.

    For files without which kroute serves, whatever has become of their directory.
    """
    if (step := exhaustion(error)) is not None or not isinstance(error, OSError):
        return step
    return _OF_FILES.get(error.errno or 0, "see what has become of the directory")


def _number(error: BaseException) -> int:
    if isinstance(error, ImportError):
        return next((number for number in _OF_A_LIBRARY if os.strerror(number) in str(error)), 0)
    return getattr(error, "errno", None) or 0


async def retry_when_exhausted(
    what: str, attempt: Callable[[], Awaitable[T]], waits_for: Callable[[BaseException], str | None] = exhaustion
) -> T:
    """The result of an attempt that is made again, later and later, while the system has run out of something.

    `waits_for` says for which errors that is so, by a next step. That is logged once, and so is the end of it. Every
    other error is raised.
    """
    backoff = Backoff(_FIRST_RETRY, _LAST_RETRY)
    said = False
    while True:
        began = time.monotonic()
        try:
            result = await attempt()
        except Exception as error:
            next_step = waits_for(error)
            if next_step is None:
                raise
            if time.monotonic() - began > _LAST_RETRY:  # it worked for a while: this is another time
                backoff.reset()
                said = False
            if not said:
                log.warning("resources.exhausted", what=what, error=str(error), next_step=f"{next_step}; trying again")
            said = True
        else:
            if said:
                log.info("resources.available", what=what)
            return result
        await asyncio.sleep(backoff.delay())


TURN = 5.0
"""Seconds in which what fell due has its turn, though it has to wait for another controller first."""


class _Due(msgspec.Struct, frozen=True):
    """When the key is due; or, once it was, since when it has had its turn."""

    backoff: Backoff
    due: float


class Retries(Generic[K]):
    """A backoff for each key alone. All times are seconds, on the caller's clock.

    Keys that fail for long come due together, every half of `limit`: a caller may read much before it tries again.
    """

    def __init__(self, first: float = 0.5, limit: float = 30.0) -> None:
        self._first = first
        self._limit = limit
        self._waits: dict[K, _Due] = {}
        self._tried: dict[K, _Due] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def __contains__(self, key: object) -> bool:
        return key in self._waits

    def failed(self, key: K, now: float) -> bool:
        """Note a failure; the wait before the next attempt doubles. Returns whether it is the key's first in a row."""
        before = self._waits.get(key) or self._tried.pop(key, None)
        backoff = before.backoff if before else Backoff(self._first, self._limit)
        delay = backoff.delay()
        due = now + delay
        if delay >= self._limit:
            due -= due % (self._limit / 2)
        self._waits[key] = _Due(backoff, due)
        return before is None

    def succeeded(self, key: K) -> None:
        """Forget the key's failures. Call this also when the key is no longer desired."""
        self._waits.pop(key, None)
        self._tried.pop(key, None)

    def expire(self, now: float) -> None:
        """Forget the keys that were due by `now` and did not fail again: they succeeded, or are no longer desired.

        Or what they need was not ready yet. So a key that fails within the next TURN seconds goes on where it was.
        """
        if not (self._waits or self._tried):
            return
        self._tried = {key: wait for key, wait in self._tried.items() if now < wait.due + TURN}
        for key in [key for key, wait in self._waits.items() if wait.due <= now]:
            self._tried[key] = _Due(self._waits.pop(key).backoff, now)

    def clear(self) -> None:
        """Forget all failures; call this when their cause has ended."""
        self._waits.clear()
        self._tried.clear()

    def waiting(self, now: float) -> set[K]:
        """All keys that have failed and are not due yet."""
        return {key for key, wait in self._waits.items() if now < wait.due}

    def next_due(self) -> float | None:
        """When the next attempt is due; None if no key waits."""
        return min((wait.due for wait in self._waits.values()), default=None)
