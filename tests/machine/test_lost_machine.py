"""A test that ends its machine fails with the machine's last output; later tests run in another machine."""

import os
import re
import subprocess
import sys

import pytest

from tests.lab.places import PROJECT

pytestmark = pytest.mark.machine


def test_a_machine_that_ends_in_a_test_costs_that_test_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "tests/machine/victims.py"],
        cwd=PROJECT,
        env={**os.environ, "KROUTE_LAB": "vm", "KROUTE_LAB_MACHINES": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "1 failed, 3 passed" in done.stdout
    assert re.search(r"FAILED .*test_in_which_the_kernel_panics", done.stdout)
    assert "Kernel panic - not syncing: Attempted to kill init!" in done.stdout
    assert re.search(r"lab: Linux \d+\.\d+\S* \(\w+\), \w+tables, fed by manifests: 4 tests", done.stdout)
