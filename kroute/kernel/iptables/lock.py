"""The lock that every program takes to change iptables rules."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kroute.kernel.errors import KernelError

POLL_INTERVAL = 0.02
"""Seconds between two attempts. flock has no timeout, so the xtables thread polls."""


@contextmanager
def xtables_lock(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock. Raises KernelError EAGAIN when another program holds it for longer than `timeout` seconds."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        sentence = f"cannot open the xtables lock {path}: {error.strerror}; mount the host's file there"
        raise KernelError(sentence, errno=error.errno) from error
    try:
        _acquire(descriptor, path, timeout)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                sentence = f"another program holds the xtables lock {path} for more than {timeout:g} s; trying later"
                raise KernelError(sentence, errno=errno.EAGAIN) from None
            time.sleep(POLL_INTERVAL)
        else:
            return
