"""Kernel modules and the kernel's version."""

import os
import re
from collections.abc import Iterable, Set
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from kroute.base import program

MODULES = Path("/sys/module")
BUILTIN = Path("/lib/modules")
LONGEST = 60.0
"""Seconds after which modprobe is ended."""


def kernel_version() -> tuple[int, int]:
    """The running kernel's major and minor version."""
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return int(major), int(minor)


async def load(names: Iterable[str]) -> list[str]:
    """Load the modules; return those that are not built in and could not be loaded."""
    present = _builtin()
    wanted = [name for name in names if name not in present and not _is_loaded(name)]
    if wanted:
        with suppress(FileNotFoundError, PermissionError, TimeoutError):  # this image may have no modprobe that can run
            await program.run(["modprobe", "-a", *wanted], seconds=LONGEST, most=1 << 20)
    return [name for name in wanted if not _is_loaded(name)]


def is_present(name: str) -> bool:
    """Whether the module is loaded or part of the kernel image."""
    return _is_loaded(name) or name in _builtin()


def _is_loaded(name: str) -> bool:
    return (MODULES / name).is_dir()


def _builtin() -> Set[str]:
    """The modules that are part of the kernel image, by modules.builtin; none where that file is not installed."""
    return _listed_in(BUILTIN / os.uname().release / "modules.builtin")


@lru_cache(maxsize=1)
def _listed_in(path: Path) -> Set[str]:
    """What the file lists, some hundred modules. An agent asks every 5 s, and the file is the running kernel's."""
    try:
        lines = path.read_text().splitlines()
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return frozenset()
    return {Path(line).name.removesuffix(".ko").replace("-", "_") for line in lines}
