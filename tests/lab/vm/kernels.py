"""The kernels that the lab's machines boot: which exist, where they are stored, and which are to be used.

| name | what it is |
|---|---|
| built | a current kernel, built here from Debian's `linux-source` and the options in kernel/options |
| bare | the same binary, booted without the legacy tables of iptables and without ip_set: a node with nf_tables alone |
| packaged | Debian 12's own User Mode Linux 6.1, unpacked: available in seconds, and the second kernel of the matrix |

Each is in the cache, in a directory named after its recipe: another recipe is another kernel. `python -m
tests.lab.vm.provide` makes them. Imports only the standard library, as the set-up requires.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from tests.lab.places import cache

RECIPE = Path(__file__).with_name("kernel")
"""The files that kernels are made from."""
NEEDS = frozenset({"legacy", "nftables"})
"""Markers of tests: they need the legacy tables of iptables and ipset, or nf_tables of the families ip and ip6."""
LEGACY = (
    *("ip_set", "ip_set_bitmap_port", "ip_set_list_set", "xt_set"),
    *(f"ip_set_hash_{kind}" for kind in ("ip", "ipport", "ipportip", "ipportnet", "net", "netnet", "netport")),
    *("ip_tables", "iptable_filter", "iptable_mangle", "iptable_nat", "iptable_raw"),
    *("ip6_tables", "ip6table_filter", "ip6table_mangle", "ip6table_nat", "ip6table_raw"),
)
"""The modules of kernel/options without which a kernel has no legacy table and no set of ipset."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of the lab.

    `words` are added to its command line. `ingredients` are the files of RECIPE that make it, and `recipe` is the name
    of the way: kernels of one recipe are one binary. `firewall` is the backend that kroute uses on it, unless
    `KROUTE_FIREWALL` names another. `lacks` are modules of the binary that it boots without. `misses` are those of
    NEEDS that it does not have.
    """

    name: str
    words: tuple[str, ...]
    ingredients: tuple[str, ...]
    recipe: str
    firewall: str = "iptables"
    lacks: tuple[str, ...] = ()
    misses: frozenset[str] = frozenset()

    @property
    def directory(self) -> Path:
        """Where it is stored, once it has been made."""
        recipe = b"".join((RECIPE / name).read_bytes() for name in self.ingredients)
        return cache() / "kernels" / f"{self.recipe}-{hashlib.sha256(recipe).hexdigest()[:16]}"

    @property
    def command_line(self) -> tuple[str, ...]:
        """The words of its command line that make it this kernel. `guest-init` hides what `LAB_LACKS` names."""
        if not self.lacks:
            return self.words
        initcalls = [f"{module.removeprefix('ip_set_')}_init" for module in self.lacks]
        return (*self.words, f"initcall_blacklist={','.join(initcalls)}", f"LAB_LACKS={','.join(self.lacks)}")

    def can(self, needs: frozenset[str]) -> bool:
        """Whether it has what tests with these of the markers NEEDS need."""
        return not needs & self.misses

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


BUILT = Kernel("built", ("seccomp=auto",), ("suites", "options", "xsave_area.c"), "built")
BARE = replace(BUILT, name="bare", firewall="nftables", lacks=LEGACY, misses=frozenset({"legacy"}))
PACKAGED = Kernel("packaged", (), ("suites", "xsave_area.c"), "packaged", misses=frozenset({"nftables"}))
KERNELS = {kernel.name: kernel for kernel in (BARE, BUILT, PACKAGED)}


def wanted() -> list[Kernel]:
    """Return the kernels that `KROUTE_KERNEL` allows: the named one, or all, the kernel of most tests first.

    Raises:
        ValueError: it names no kernel.
    """
    wish = os.environ.get("KROUTE_KERNEL") or "auto"
    if wish == "auto":
        return list(KERNELS.values())
    if wish not in KERNELS:
        raise ValueError(f"KROUTE_KERNEL={wish}: use auto, {', '.join(KERNELS)}")
    return [KERNELS[wish]]


def usable() -> list[Kernel]:
    """Return the wanted kernels that exist, or, if none does, the last one, which is made the fastest."""
    kernels = wanted()
    return [kernel for kernel in kernels if kernel.is_there] or kernels[-1:]


def default() -> Kernel:
    """Return the kernel for a machine without a chosen one: of the usable ones the first that has legacy tables."""
    return next((kernel for kernel in usable() if "legacy" not in kernel.misses), usable()[0])
