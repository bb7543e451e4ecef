"""The kernels that the lab's machines boot: which exist, where they are stored, and which are to be used.

| name | what it is |
|---|---|
| built | a current kernel, built here from Debian's `linux-source` and the options in kernel/options |
| packaged | Debian 12's own User Mode Linux 6.1, unpacked: available in seconds, and the second kernel of the matrix |

Each is in the cache, in a directory named after its recipe: another recipe is another kernel. `python -m
tests.lab.vm.provide` makes them. Imports only the standard library, as the set-up requires.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from tests.lab.places import cache

RECIPE = Path(__file__).with_name("kernel")
"""The files that kernels are made from."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of the lab.

    `words` are added to its command line. `ingredients` are the files of RECIPE that make it.
    """

    name: str
    words: tuple[str, ...]
    ingredients: tuple[str, ...]

    @property
    def directory(self) -> Path:
        """Where it is stored, once it has been made."""
        recipe = b"".join((RECIPE / name).read_bytes() for name in self.ingredients)
        return cache() / "kernels" / f"{self.name}-{hashlib.sha256(recipe).hexdigest()[:16]}"

    @property
    def is_there(self) -> bool:
        return self.binary.exists()

    @property
    def binary(self) -> Path:
        """The program that is the kernel."""
        return self.directory / "linux"

    @property
    def modules(self) -> Path:
        """The machine's /lib/modules: it has a directory for the kernel's release."""
        return self.directory / "modules"

    @property
    def preloaded(self) -> Path:
        """The library that lets it run on processors whose XSAVE area is larger than it knows (kernel/xsave_area.c)."""
        return self.directory / "xsave_area.so"

    @property
    def title(self) -> str:
        """Its description for people: its `uname -r`, and its name."""
        releases = [directory.name for directory in self.modules.iterdir()] if self.is_there else ["that is not there"]
        return f"Linux {' '.join(releases)} ({self.name})"


BUILT = Kernel("built", ("seccomp=auto",), ("suites", "options", "xsave_area.c"))
PACKAGED = Kernel("packaged", (), ("suites", "xsave_area.c"))
KERNELS = {kernel.name: kernel for kernel in (BUILT, PACKAGED)}


def wanted() -> list[Kernel]:
    """Return the kernels that `KROUTE_KERNEL` allows: the named one, or all, the current kernel first.

    Raises:
        ValueError: it names no kernel.
    """
    wish = os.environ.get("KROUTE_KERNEL") or "auto"
    if wish == "auto":
        return list(KERNELS.values())
    if wish not in KERNELS:
        raise ValueError(f"KROUTE_KERNEL={wish}: use auto, {' or '.join(KERNELS)}")
    return [KERNELS[wish]]


def usable() -> list[Kernel]:
    """Return the wanted kernels that exist, or, if none does, the last one, which is made the fastest."""
    kernels = wanted()
    return [kernel for kernel in kernels if kernel.is_there] or kernels[-1:]


def default() -> Kernel:
    """Return the kernel for a machine without a chosen one: the first that is usable."""
    return usable()[0]
