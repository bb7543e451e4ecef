"""Kernel modules and the kernel's version."""

import asyncio
import os
import re
from collections.abc import Iterable
from pathlib import Path

MODULES = Path("/sys/module")
BUILTIN = Path("/lib/modules")


def kernel_version() -> tuple[int, int]:
    """The running kernel's major and minor version."""
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return int(major), int(minor)


async def load(names: Iterable[str]) -> list[str]:
    """Load the modules; return those that are not built in and could not be loaded."""
    present = _builtin()
    wanted = [name for name in names if name not in present and not _is_loaded(name)]
    if wanted:
        await _modprobe(wanted)
    return [name for name in wanted if not _is_loaded(name)]


def is_present(name: str) -> bool:
    """Whether the module is loaded or part of the kernel image."""
    return _is_loaded(name) or name in _builtin()


def _is_loaded(name: str) -> bool:
    return (MODULES / name).is_dir()


def _builtin() -> set[str]:
    """The modules that are part of the kernel image, by modules.builtin; none where that file is not installed."""
    path = BUILTIN / os.uname().release / "modules.builtin"
    try:
        lines = path.read_text().splitlines()
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return set()
    return {Path(line).name.removesuffix(".ko").replace("-", "_") for line in lines}


async def _modprobe(names: list[str]) -> None:
    """Call modprobe for all names. Its failures are ignored; the caller checks what is loaded afterwards."""
    try:
        process = await asyncio.create_subprocess_exec(
            "modprobe", "-a", *names, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
    except (FileNotFoundError, PermissionError):
        return  # this image has no modprobe that could be run: the caller finds the modules missing
    await process.wait()
