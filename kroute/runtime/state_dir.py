"""The state directory: which process may use it, and whether the agent in it is ready."""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Self

import structlog

from kroute.base.backoff import hindrance, retry_when_exhausted
from kroute.kernel.mounts import VOLATILE, file_system_of
from kroute.runtime import namespace_lock
from kroute.runtime.namespace_lock import LockRole, NamespaceInUseError

log = structlog.get_logger(__name__)

_LOCK = "lock"
_READY = "ready"
_SOCKET = "agent.sock"
"""The agent's (`kroute/inspect/agent_socket.py`), which one that was killed leaves."""
IDENTITY = "identity"
"""The file that tells a director from others of its name."""


def warn_if_persistent(path: Path) -> None:
    """Log a warning if a reboot does not empty the directory: the ledger must be lost with the kernel's state."""
    kind = file_system_of(path)
    if kind and kind not in VOLATILE:
        log.warning(
            "state_dir.survives_reboot",
            path=str(path),
            file_system=kind,
            consequence="after a reboot the ledger names what the kernel has lost: use a tmpfs, such as /run",
        )


class StateDirectoryError(Exception):
    """The state directory cannot be used, or another process uses it."""


class AnotherKrouteError(StateDirectoryError):
    """Another kroute of this role runs in the network namespace."""


class StateDirectoryInUseError(AnotherKrouteError):
    """Another kroute uses the state directory."""


class StateDirectory:
    """A state directory that this process alone uses, as the only kroute of its role in the network namespace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextmanager
    def claim(cls, path: Path, role: LockRole = LockRole.AGENT) -> Iterator[Self]:
        """Hold the locks of the directory and of the network namespace; the kernel releases them when the process ends.

        Raises:
            StateDirectoryInUseError: another kroute holds the directory's.
            AnotherKrouteError: another kroute holds the namespace's.
            StateDirectoryError: the directory cannot be made.
        """
        with ExitStack() as stack:
            try:
                descriptor = _lock(path)
                stack.callback(os.close, descriptor)
                stack.enter_context(namespace_lock.hold(role))
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                (path / _READY).unlink(missing_ok=True)
            except NamespaceInUseError as error:
                raise AnotherKrouteError(str(error)) from None
            except OSError as error:
                raise StateDirectoryError(f"cannot use the state directory {path}: {error.strerror}") from error
            warn_if_persistent(path)
            yield cls(path)

    async def mark_ready(self) -> None:
        """Create the file `ready`: everything listed at the start is in the kernel.

        While that fails, as in a full or read-only file system, it is tried again: all is served without the file.
        """
        touch = partial(asyncio.to_thread, (self.path / _READY).touch)
        await retry_when_exhausted("creating the file that says ready", touch, hindrance)

    def empty(self) -> None:
        """Remove kroute's own files here, for cleanup."""
        for name in (_LOCK, _READY, _SOCKET, IDENTITY):
            (self.path / name).unlink(missing_ok=True)


def is_agent_ready(path: Path) -> bool:
    """Whether the agent of this state directory is ready. For callers that do not hold the lock."""
    return (path / _READY).exists()


def _lock(path: Path) -> int:
    """A descriptor that holds the lock of the directory, which is created if need be. Raises OSError."""
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise StateDirectoryInUseError(
            f"kroute is already running with the state directory {path} (process {holder}): stop it first"
        ) from None
    return descriptor
