"""Only tests import pyroute2: every agent that loaded it would pay for it."""

import subprocess
import sys


def test_no_module_of_kroute_loads_the_witness() -> None:
    program = """
import importlib, pkgutil, sys
import kroute
names = [each.name for each in pkgutil.walk_packages(kroute.__path__, "kroute.") if each.name != "kroute.__main__"]
for name in names:
    importlib.import_module(name)
assert {"kroute.agent.wiring", "kroute.cli.main", "kroute.kernel.netlink.client", "kroute.watchers.node"} <= set(names)
print([name for name in sys.modules if name.partition(".")[0] == "pyroute2"])
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
