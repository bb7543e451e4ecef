"""Which file system a path is on (proc_pid_mountinfo(5))."""

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
VOLATILE = frozenset({"tmpfs", "ramfs", "rootfs"})
"""File systems that a reboot empties."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system that a path is on, or will be if it does not exist yet. Empty if it is not known."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    target, found = path.resolve(), (-1, "")
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), before.split()[4]))
        if target.is_relative_to(point) and len(point.parts) >= found[0]:  # of two at one place, the later one covers
            found = len(point.parts), after.split()[0]
    return found[1]
