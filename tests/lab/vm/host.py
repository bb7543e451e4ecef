"""What a machine asks of this host: a place for its memory."""

import os
import shutil
from pathlib import Path

from tests.lab.places import cache


class HostError(Exception):
    """This host cannot carry a machine of the lab; the text says what it lacks and what to do."""


def memory_directory(mib: int) -> Path:
    """Return a directory with room for `mib` MiB: a tmpfs if possible, since a disk would write the memory out.

    Raises:
        HostError: there is none.
    """
    candidates = (Path("/dev/shm"), cache())
    for directory in candidates:
        if directory.is_dir() and not _is_noexec(directory) and shutil.disk_usage(directory).free >= mib << 20:
            return directory
    free = ", ".join(
        f"{directory} has {shutil.disk_usage(directory).free >> 20}" for directory in candidates if directory.is_dir()
    )
    raise HostError(
        f"no room for the memory of a lab machine: it needs {mib} MiB, {free}; make room, or enlarge /dev/shm"
    )


def _is_noexec(directory: Path) -> bool:
    """Whether nothing there may be executed; the machine's programs lie in its memory."""
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)
