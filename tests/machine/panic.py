"""`python -m tests.machine.panic`: make the kernel of the machine panic in which this runs.

A kernel panics when its first process dies, and no signal can kill that process. So its stack is overwritten, and it
is woken by the end of the child that it waits for.
"""

import os
import signal
from pathlib import Path


def panic() -> None:
    """Make the first process fault; does not return. The caller must be the machine's command itself."""
    [stack] = (line for line in Path("/proc/1/maps").read_text().splitlines() if line.endswith("[stack]"))
    first, end = (int(address, 16) for address in stack.split()[0].split("-"))
    with Path("/proc/1/mem").open("r+b", buffering=0) as memory:
        memory.seek(first)
        memory.write(b"\xff" * (end - first))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    panic()
