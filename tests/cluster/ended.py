"""`python -m tests.cluster.ended`: end the cluster of this clone, if one runs. Imports only the standard library."""

import os
import signal
import time
from pathlib import Path

from tests.lab.places import PROJECT

RUNNING = PROJECT / ".lab" / "cluster.pid"
"""Has the number of the process whose end is the end of the cluster."""


def end() -> None:
    """End it, and wait until it has ended."""
    if not RUNNING.exists():
        return
    process = Path("/proc", RUNNING.read_text().strip())
    if _is_cluster(process):
        os.kill(int(process.name), signal.SIGTERM)
    while _is_cluster(process):
        time.sleep(0.1)


def _is_cluster(process: Path) -> bool:
    """Whether it still runs, and is no other one that has got its number."""
    try:
        return b"tests.cluster" in (process / "cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    end()
