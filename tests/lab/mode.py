"""Where the lab runs: on this host's own kernel, or in a virtual machine (`KROUTE_LAB=vm|host|auto`).

Run as `python -m tests.lab.mode` it prints the answer, by which the set-up decides which parts are needed. Imports only
the standard library, because the set-up runs it before anything is installed.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

Mode = Literal["vm", "host"]

NEEDED_MODULES = ("ip_vs", "dummy", "ip_set", "veth", "bridge")
"""The modules that a host's kernel must have for the lab to run on it directly."""


def lab_mode() -> Mode:
    """Return `vm` or `host` as the environment says. `auto`, the default, means the host if it has what is needed.

    Raises:
        ValueError: `KROUTE_LAB` is none of vm, host, auto.
    """
    wish = os.environ.get("KROUTE_LAB", "auto")
    if wish == "vm":
        return "vm"
    if wish == "host":
        return "host"
    if wish != "auto":
        raise ValueError(f"KROUTE_LAB={wish}: use vm, host or auto")
    return "host" if os.geteuid() == 0 and all(map(kernel_offers, NEEDED_MODULES)) else "vm"


def kernel_offers(module: str) -> bool:
    """Whether the running kernel has `module`: loaded, built in, or loadable."""
    if Path("/sys/module", module).is_dir():
        return True
    modprobe = shutil.which("modprobe", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if modprobe is None:
        return False
    return subprocess.run([modprobe, "--dry-run", "--quiet", module], check=False).returncode == 0


if __name__ == "__main__":
    print(lab_mode())
