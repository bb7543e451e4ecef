"""Whether the libraries for the legacy tables are installed. Loads none of them."""

import importlib.util
import re
import sysconfig
from pathlib import Path

from kroute.kernel.errors import KernelError

LIBRARY_DIRECTORIES = ("usr/lib/*-linux-*", "usr/lib64", "usr/lib", "usr/local/lib", "lib/*-linux-*", "lib64", "lib")


def find_python_iptables() -> Path:
    """The directory in which the package is. Raises KernelError if it is not installed."""
    found = importlib.util.find_spec("iptc")
    if found is None or found.origin is None:
        raise KernelError("the Python package python-iptables is not installed; install kroute[iptables]")
    return Path(found.origin).parents[1]


def find_libxtables() -> tuple[Path, str]:
    """The directory of libxtables and its extensions, and its version. Raises KernelError if it is not installed."""
    multiarch = sysconfig.get_config_var("MULTIARCH")
    patterns = ([f"usr/lib/{multiarch}"] if multiarch else []) + list(LIBRARY_DIRECTORIES)
    for pattern in patterns:
        for path in sorted(Path("/").glob(f"{pattern}/libxtables.so.*")):
            found = re.search(r"\.so\.(\d+)$", path.name)
            if found and (path.parent / "xtables").is_dir():
                return path.parent, found[1]
    raise KernelError("cannot find libxtables and its extensions; install the package iptables")


def missing_libraries() -> list[str]:
    """One sentence for each library that is missing; it ends in `; ` and the next step."""
    missing = []
    for find in (find_python_iptables, find_libxtables):
        try:
            find()
        except KernelError as error:
            missing.append(str(error))
    return missing
