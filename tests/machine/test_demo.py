"""`make demo` in a pipe: what it shows, on a screen of 80 columns, and how it ends."""

import re
import subprocess
import sys

import pytest

from tests.demo.rolling_update import REPLICAS
from tests.demo.screen import WIDTH
from tests.lab.places import PROJECT

pytestmark = pytest.mark.machine

LONGEST = 600.0
"""Seconds that only a demo that hangs takes."""


def test_the_demo_shows_a_rolling_update_explain_and_healing_without_a_failed_call() -> None:
    command = [sys.executable, "-m", "tests.lab.run", sys.executable, "-m", "tests.demo"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=LONGEST, check=False)
    shown = done.stdout
    assert done.returncode == 0, shown + done.stderr
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []
    assert "\x1b" not in shown
    calls, failed = re.findall(r"^(\d+) calls in .*, (\d+) failed\.$", shown, re.MULTILINE)[0]
    assert int(calls) >= 2 * REPLICAS
    assert failed == "0"
    for part in ("$ kroute status", "$ kroute explain", "$ kroute show -w", "$ ip link delete kube-ipvs0"):
        assert part in shown
    assert len(re.findall(r"addresses are back after \d+ ms; web-v2-\d answers", shown)) == 2
    assert shown.count("as it was before kroute came") == 3
    assert re.search(r"^Done: no call failed, and nothing is left, after \d+ s$", shown, re.MULTILINE)
