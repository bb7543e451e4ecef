"""`python -m tests.machine.panic`: have the kernel of the machine panic in which this runs.

No kernel outlives its first process, and that one can be ended by nobody but itself: so its stack is overwritten, and
it is woken by the end of what it waits for.
"""

import os
import signal
from pathlib import Path


def panic() -> None:
    """Make the first process fault; does not return. The caller has to be the machine's command itself."""
    [stack] = (line for line in Path("/proc/1/maps").read_text().splitlines() if line.endswith("[stack]"))
    first, end = (int(address, 16) for address in stack.split()[0].split("-"))
    with Path("/proc/1/mem").open("r+b", buffering=0) as memory:
        memory.seek(first)
        memory.write(b"\xff" * (end - first))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    panic()
