"""A machine that does not start, or ends too early, is reported at once, with the likely cause and what to do."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.places import PROJECT, cache
from tests.lab.run import environment
from tests.lab.vm import machine as machine_module
from tests.lab.vm.kernels import PACKAGED, usable
from tests.lab.vm.machine import Machine, MachineError

pytestmark = pytest.mark.machine

TOLD_WITHIN = 600.0
"""Seconds within which a machine that does nothing must be reported, on the slowest host, too."""


@pytest.fixture(params=usable(), ids=lambda kernel: kernel.name)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with Machine("failing", kernel=request.param) as made:
        yield made


def start(machine: Machine, *argv: str, words: tuple[str, ...] = ()) -> None:
    machine.start(list(argv), environment=environment(), words=words)


def wait_until_up(machine: Machine) -> None:
    while not machine.is_up:
        machine.check()
        time.sleep(0.05)


def processes_below(pid: int) -> list[int]:
    """The children of a process and theirs. On 6.1 each process of the machine is one here, which may end meanwhile."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*children, *(below for child in children for below in processes_below(child))]


def executes(pid: int, program: Path) -> bool:
    """Whether the process exists and executes this program."""
    try:
        return Path(f"/proc/{pid}/exe").readlink() == program
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_ends_is_told_by_its_exit_code(machine: Machine) -> None:
    start(machine, "sh", "-c", "exit 7")
    assert machine.wait() == 7


def test_a_kernel_that_panics_before_its_first_process(machine: Machine) -> None:
    start(machine, "true", words=("init=/nowhere",))
    with pytest.raises(MachineError, match=r"did not come up: .*first process, /nowhere") as caught:
        machine.wait(TOLD_WITHIN)
    assert "Kernel panic - not syncing" in str(caught.value)


def test_a_kernel_that_hangs_before_its_first_process(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    start(machine, "true", words=("root=/dev/nowhere", "rootfstype=ext4", "rootwait"))
    while "Waiting for root device" not in machine.last_lines():  # what it says last, after a silence or not
        machine.check()
        time.sleep(0.05)
    monkeypatch.setattr(machine_module, "BOOT_SILENCE", 1.0)
    with pytest.raises(MachineError, match=r"did not come up: .*without a word.*root file system is not there"):
        machine.wait(TOLD_WITHIN)
    assert not machine.running


def test_a_kernel_that_panics_in_the_middle(machine: Machine) -> None:
    start(machine, sys.executable, "-m", "tests.machine.panic")
    with pytest.raises(MachineError, match="ended before its command did: the machine's first process ended"):
        machine.wait(TOLD_WITHIN)


def test_a_machine_that_is_killed_in_the_middle(machine: Machine) -> None:
    start(machine, "sleep", "infinity")
    wait_until_up(machine)
    kernel = machine.kernel.binary.resolve()
    victims = [pid for pid in processes_below(machine.pid) if executes(pid, kernel)]
    os.kill(victims[0], signal.SIGKILL)
    with pytest.raises(MachineError, match="ended before its command did: it was killed from outside"):
        machine.wait(TOLD_WITHIN)


@pytest.fixture(scope="module")
def other_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a library that denies a program, when preloaded, what other hosts deny."""
    library = tmp_path_factory.mktemp("other-host") / "refuse_ptrace.so"
    source = Path(__file__).with_name("refuse_ptrace.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def boot_packaged(monkeypatch: pytest.MonkeyPatch, *preloaded: Path, **pretended: str) -> int:
    """Boot Debian's 6.1, which needs ptrace, with these libraries preloaded."""
    for name, value in pretended.items():
        monkeypatch.setenv(name, value)
    with Machine("other-host", kernel=PACKAGED) as made:
        made.preloaded = preloaded
        made.start(["true"], environment=environment())
        return made.wait(TOLD_WITHIN)


AMX = {"LAB_XSAVE_AREA": "11008"}


@pytest.mark.skipif(PACKAGED not in usable(), reason="KROUTE_KERNEL asks for another kernel")
class TestAnotherHost:
    def test_with_amx_the_old_kernel_boots(self, other_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert boot_packaged(monkeypatch, PACKAGED.preloaded, other_host, **AMX) == 0

    def test_with_amx_and_without_help_the_old_kernel_panics(
        self, other_host: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(MachineError, match=r"XSAVE area is larger than this kernel knows.*KROUTE_KERNEL=built"):
            boot_packaged(monkeypatch, other_host, **AMX)

    def test_without_ptrace_the_old_kernel_says_what_to_allow(
        self, other_host: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(MachineError, match=r"does not let one process trace another.*SYS_PTRACE"):
            boot_packaged(monkeypatch, PACKAGED.preloaded, other_host, LAB_NO_PTRACE="1")


def test_a_host_without_room_for_its_memory_is_distinguished(tmp_path: Path) -> None:
    script = (
        "mount -t tmpfs -o size=16m small /dev/shm && mkdir /dev/shm/cache && "
        f"ln -s {cache()}/kernels /dev/shm/cache/kernels && "
        f"KROUTE_CACHE=/dev/shm/cache exec {sys.executable} -m tests.lab.run true"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        cwd=PROJECT,
        env={**os.environ, "KROUTE_LAB": "vm"},
        capture_output=True,
        text=True,
        timeout=TOLD_WITHIN,
        check=False,
    )
    assert done.returncode == 1
    assert "no room for the memory of a lab machine: it needs" in done.stderr
    assert "enlarge /dev/shm" in done.stderr
