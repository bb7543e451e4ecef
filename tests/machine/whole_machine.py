"""Runs a module of this folder in a machine of its own, with the kernel that has modules: Debian's 6.1."""

import sys

from tests.lab.run import environment
from tests.lab.vm.kernels import PACKAGED
from tests.lab.vm.machine import Machine


def run_alone(module: str, within: float, **variables: str) -> int:
    """Run `tests.machine.MODULE`, print the machine's console, even if the machine hangs, and return the exit code.

    `within` is in seconds; `variables` are added to its environment.
    """
    with Machine(module.replace("_", "-"), kernel=PACKAGED) as machine:
        machine.start([sys.executable, "-m", f"tests.machine.{module}"], environment={**environment(), **variables})
        try:
            return machine.wait(within)
        finally:
            print(machine.console.read_text(errors="replace"))
