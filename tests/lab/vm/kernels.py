"""The kernels that the lab's machines boot: which there are, where they lie, and which one is meant.

| name | what it is |
|---|---|
| built | a kernel of today, made here from Debian's `linux-source` and the options in kernel/options |
| packaged | Debian 12's own User Mode Linux 6.1, unpacked: there in seconds, and the second kernel of the matrix |

Each lies in the cache, in a directory named after the recipe that it was made by: another recipe is another kernel.
`python -m tests.lab.vm.provide` makes them. Imports nothing but the standard library, as the set-up needs that.
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
    """One kernel of the lab. `words` goes on its command line; `ingredients` are the files of RECIPE that make it."""

    name: str
    words: tuple[str, ...]
    ingredients: tuple[str, ...]

    @property
    def directory(self) -> Path:
        """Where it lies, once it has been made."""
        recipe = b"".join((RECIPE / name).read_bytes() for name in self.ingredients)
        return cache() / "kernels" / f"{self.name}-{hashlib.sha256(recipe).hexdigest()[:16]}"

    @property
    def is_there(self) -> bool:
        """Whether it has been made."""
        return self.binary.exists()

    @property
    def binary(self) -> Path:
        """The program that is the kernel."""
        return self.directory / "linux"

    @property
    def modules(self) -> Path:
        """What the machine finds in /lib/modules: a directory for the kernel's release."""
        return self.directory / "modules"

    @property
    def preloaded(self) -> Path:
        """The library that has it run where the XSAVE area is larger than it knows (kernel/xsave_area.c)."""
        return self.directory / "xsave_area.so"

    @property
    def title(self) -> str:
        """What a person should know of it: its `uname -r`, and its name."""
        releases = [directory.name for directory in self.modules.iterdir()] if self.is_there else ["that is not there"]
        return f"Linux {' '.join(releases)} ({self.name})"


BUILT = Kernel("built", ("seccomp=auto",), ("suites", "options", "xsave_area.c"))
PACKAGED = Kernel("packaged", (), ("suites", "xsave_area.c"))
KERNELS = {kernel.name: kernel for kernel in (BUILT, PACKAGED)}


def wanted() -> list[Kernel]:
    """Return the kernels that `KROUTE_KERNEL` allows: the one that it names, or all with the kernel of today first.

    Raises:
        ValueError: it names none.
    """
    wish = os.environ.get("KROUTE_KERNEL") or "auto"
    if wish == "auto":
        return list(KERNELS.values())
    if wish not in KERNELS:
        raise ValueError(f"KROUTE_KERNEL={wish}: use auto, {' or '.join(KERNELS)}")
    return [KERNELS[wish]]


def usable() -> list[Kernel]:
    """Return those of the wanted kernels that are there; if none is, the last, which is made the quickest."""
    kernels = wanted()
    return [kernel for kernel in kernels if kernel.is_there] or kernels[-1:]


def default() -> Kernel:
    """Return the kernel for a machine of which nothing is said: the first that is usable."""
    return usable()[0]
