"""The lock of the programs that write iptables rules, in the hands of another one."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

XTABLES_LOCK = Path("/run/xtables.lock")


@contextmanager
def held(lock: Path = XTABLES_LOCK) -> Iterator[None]:
    """Another program is at the rules, and does not come to an end."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)
