"""What a machine needs of this host: a directory for its memory."""

import os
import shutil
from pathlib import Path

from tests.lab.places import cache


class HostError(Exception):
    """This host cannot run a machine of the lab. The message says what is missing and what to do."""


def memory_directory(mib: int) -> Path:
    """Return a directory with room for `mib` MiB, if possible a tmpfs: the memory would be written out to a disk.

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
    """Whether no file there may be executed. The machine's programs are in its memory, so they must be executable."""
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)
