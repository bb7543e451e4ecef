"""A cluster ends with the process that has started it, however that ends."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.machines import missing
from tests.lab.places import PROJECT

STARTS_MACHINES = """
import time
from tests.cluster.machines import Cluster
cluster = Cluster()
for host in cluster.hosts:
    host.switch_on()
print(*(host.log("x").parent for host in cluster.hosts), cluster.directory, flush=True)
time.sleep(600)
"""


def processes_of(places: list[str]) -> list[str]:
    """The command lines of all processes that have one of these directories in theirs."""
    lines = [_command_line(process) for process in Path("/proc").glob("[0-9]*")]
    return [line for line in lines if any(place in line for place in places)]


def test_it_ends_with_its_process_that_is_killed() -> None:
    if said := missing():
        pytest.skip(said)
    starter = subprocess.Popen([sys.executable, "-c", STARTS_MACHINES], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    with starter:
        assert starter.stdout is not None
        places = starter.stdout.readline().split()
        assert len(processes_of(places)) >= 3
        starter.kill()
    end = time.monotonic() + 60
    while processes_of(places) and time.monotonic() < end:
        time.sleep(0.2)
    assert processes_of(places) == []
    for place in places:
        shutil.rmtree(place)


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
