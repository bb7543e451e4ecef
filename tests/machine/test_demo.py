"""`make demo` in a pipe: what it shows, on a screen of 80 columns, and how it ends."""

import re
import subprocess
import sys
import threading
import time
from typing import Self

import pytest

from tests.demo.screen import WIDTH
from tests.lab.places import PROJECT

pytestmark = pytest.mark.machine

LONGEST = 600.0
OWN_SECONDS = 30 * 3
"""The demo's own part takes at most 30 s; other tests run at the same time."""
USUAL_DELAY = 2.0
"""How often they let a program wait for a processor as long as it works: `OWN_SECONDS` allow for that."""


class Control(threading.Thread):
    """Works for a moment each second, during a `with`, and measures how much longer than alone that takes here."""

    WORK, PAUSE = 0.05, 1.0
    """Seconds of processor time, and between two such moments."""

    def __init__(self) -> None:
        super().__init__(name="control", daemon=True)
        self._ends = threading.Event()
        self._worked = self._took = 0.0

    def run(self) -> None:
        while not self._ends.wait(self.PAUSE):
            began, used = time.monotonic(), time.thread_time()
            while time.thread_time() - used < self.WORK:
                pass
            self._worked += time.thread_time() - used
            self._took += time.monotonic() - began

    @property
    def slowness(self) -> float:
        """The time that its work has taken, as a multiple of the processor time."""
        return self._took / self._worked

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self.join()


def test_the_demo_shows_a_rolling_update_explain_and_healing_without_a_failed_call() -> None:
    command = [sys.executable, "-m", "tests.lab.run", sys.executable, "-m", "tests.demo"]
    with Control() as control:
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=LONGEST, check=False)
    shown = done.stdout
    assert done.returncode == 0, shown + done.stderr
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []
    assert "\x1b" not in shown
    calls, failed = re.findall(r"^(\d+) calls in .*, (\d+) failed\.$", shown, re.MULTILINE)[0]
    assert int(calls) > 100
    assert failed == "0"
    for part in ("$ kroute status", "$ kroute explain", "$ kroute show -w", "$ ip link delete kube-ipvs0"):
        assert part in shown
    assert len(re.findall(r"addresses are back after \d+ ms; web-v2-\d answers", shown)) == 2
    assert shown.count("as it was before kroute came") == 3
    seconds = re.search(r"^Done: no call failed, and nothing is left, after (\d+) s$", shown, re.MULTILINE)
    assert seconds is not None
    assert int(seconds[1]) < OWN_SECONDS * max(1.0, control.slowness / USUAL_DELAY)
