"""The lab's virtual machine: a Linux kernel that runs as a process of the host (User Mode Linux).

It needs neither KVM nor an emulator. The machine's programs run natively, so Python in it is many times faster than
under emulation of each instruction, and a boot takes about two seconds. The host's files are its root, read-only.
`tests/lab/vm/kernels.py` lists the kernels.
"""

import compileall
import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Self

from tests.lab.places import PROJECT, cache, leftovers
from tests.lab.vm import kernels
from tests.lab.vm.diagnosis import likely_cause
from tests.lab.vm.host import HostError, memory_directory
from tests.lab.vm.kernels import Kernel

MEMORY_MIB = 3072
"""The memory that the machine sees. The host provides a page only when it is used."""
BOOT_SILENCE = 60.0
"""Seconds without output on the console after which a booting machine counts as failed.

Boots write every second or so, but a host that is busy may give a machine a thirtieth of a processor.
"""
LINES_OF_AN_END = 500
"""How many last lines of the console are searched for the cause of an end: registers and stacks follow a panic."""
_POLL = 0.05


class MachineError(Exception):
    """The machine could not start, or ended without its command's exit code. The message holds its last lines."""


class Machine:
    """One boot of a lab kernel (by default `kernels.default()`) that runs one command, then switches itself off.

    `number` tells machines apart that run at the same time: each keeps to one processor, they share those there are.
    The command's output goes to `output`, the kernel's own messages to the console log. `shared` is a directory that
    the machine and the host both write; it is removed with `close`. The console log stays in the clone, as NAME.log.
    `memory` is what it sees, in MiB.
    """

    def __init__(self, name: str, number: int = 0, kernel: Kernel | None = None, memory: int = MEMORY_MIB) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self._cpu = cpus[number % len(cpus)]
        self._memory = memory
        self.kernel = kernel or kernels.default()
        self.preloaded = (self.kernel.preloaded,)
        """The libraries that are loaded into the kernel before its own."""
        runs = cache() / "run"
        runs.mkdir(parents=True, exist_ok=True)
        self.shared = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=runs))
        self.console = self.shared / "console"
        self._kept_console = leftovers() / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._last_word = (0, 0.0)  # the console's size when it last grew, and when that was

    def start(
        self,
        argv: list[str],
        *,
        environment: dict[str, str],
        output: IO[bytes] | None = None,
        terminal: bool = False,
        words: tuple[str, ...] = (),
    ) -> None:
        """Boot, and run `argv` in the project's directory with `environment` added to the machine's own.

        kroute uses the kernel's firewall in it, unless `environment` names another in `KROUTE_FIREWALL`.
        Without `output` the command writes to the console log as well. With `terminal` it talks to this process's
        terminal, for a person to type at. `words` are put at the end of the kernel's command line.

        Raises:
            MachineError: the lab kernel is not there (`scripts/setup lab` makes it), or has no room for its memory.
        """
        if not self.kernel.is_there:
            raise MachineError(f"no {self.kernel.name} kernel in {self.kernel.directory}: run scripts/setup lab")
        _compile_sources()
        whole = {"KROUTE_FIREWALL": self.kernel.firewall, **environment}
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in whole.items())
        (self.shared / "command").write_text(f"{exports}exec {shlex.join(argv)}\n")
        with self.console.open("wb") as console, contextlib.ExitStack() as stack:
            screen = os.dup((output or console).fileno())  # a separate descriptor: 1 and 2 are the console's
            stack.callback(os.close, screen)
            self._process = subprocess.Popen(
                [*self._host_command(), *self._kernel_command(console.fileno(), screen, terminal=terminal), *words],
                stdin=None if terminal else subprocess.DEVNULL,
                stdout=None if terminal else console,
                stderr=console,
                pass_fds=(console.fileno(), screen),
                env=self._host_environment(),
                start_new_session=True,  # a kernel that panics kills its whole process group
            )
        self._last_word = (0, time.monotonic())

    @property
    def pid(self) -> int:
        """The process whose descendants are the machine and everything in it."""
        assert self._process is not None, "start() comes first"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the machine is switched on."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_up(self) -> bool:
        """Whether it has booted, so that the command runs, or ran."""
        return (self.shared / "up").exists()

    def check(self) -> None:
        """Supervise the machine. To be called often, until it has ended.

        Raises:
            MachineError: it fell silent while booting, and is off now; or it ended before its command did.
        """
        assert self._process is not None, "start() comes first"
        if self.running:
            if not self.is_up and self._is_silent():
                self._switch_off()
                raise MachineError(
                    self._obituary(f"did not come up: {BOOT_SILENCE:.0f} s without a word on its console")
                )
        elif not (self.shared / "exit-code").exists():
            raise MachineError(self._obituary("ended before its command did" if self.is_up else "did not come up"))

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the machine is off. Returns its command's exit code.

        Raises:
            TimeoutError: it still runs after `timeout` seconds.
            MachineError: as in `check`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.running:
            self.check()
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"the lab machine still runs after {timeout} s")
            time.sleep(_POLL)
        self.check()
        return int((self.shared / "exit-code").read_text())

    def last_lines(self, count: int = 40) -> str:
        """Return the end of the console log."""
        if not self.console.exists():
            return "(it never wrote to its console)"
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-count:])

    def close(self) -> None:
        """Switch the machine off at once, if it still runs, and remove the shared directory."""
        self._switch_off()
        if self.console.exists():
            shutil.move(self.console, self._kept_console)
        shutil.rmtree(self.shared, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _host_command(self) -> list[str]:
        """Return the host's command that starts the kernel, and ends everything of it when its starter ends."""
        return [
            # Its processes take turns, so on one processor each hands over to the next without waking another.
            *("taskset", "--cpu-list", str(self._cpu)),
            *("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--"),
            # The first process of a pid namespace ignores its own SIGABRT: a kernel in its place would panic endlessly.
            *("sh", "-c", '"$@"; exit $?', "sh"),
        ]

    def _kernel_command(self, console: int, screen: int, *, terminal: bool) -> list[str]:
        second = "fd:0,fd:1" if terminal else f"null,fd:{screen}"
        return [
            *(
                str(self.kernel.binary),
                f"mem={self._memory}M",
                "root=/dev/root",
                "rootfstype=hostfs",
                "rootflags=/",
                "ro",
            ),
            *("con=null", f"con0=null,fd:{console}", f"con1={second}", "hostname=lab"),
            *(f"LAB_RUN={self.shared}", f"LAB_PROJECT={PROJECT}", f"LAB_MODULES={self.kernel.modules}"),
            f"LAB_INTERACTIVE={'yes' if terminal else 'no'}",
            f"init={Path(__file__).with_name('guest-init')}",
            *self.kernel.command_line,
        ]

    def _host_environment(self) -> dict[str, str]:
        try:
            memory = memory_directory(self._memory)
        except HostError as error:
            raise MachineError(str(error)) from error
        return {**os.environ, "TMPDIR": str(memory), "LD_PRELOAD": " ".join(map(str, self.preloaded))}

    def _is_silent(self) -> bool:
        length, since = self._last_word
        now = time.monotonic()
        if self.console.stat().st_size != length:
            self._last_word = (self.console.stat().st_size, now)
            return False
        return now - since > BOOT_SILENCE

    def _obituary(self, what: str) -> str:
        """Return the event, its likely cause, and the end of the console."""
        assert self._process is not None
        cause = likely_cause(self.last_lines(LINES_OF_AN_END))
        if not cause and (code := self._process.poll()) in {-signal.SIGKILL, 128 + signal.SIGKILL}:
            cause = f"it was killed from outside (exit code {code}); is this host out of memory?"
        said = f"{what}: {cause}" if cause else what
        return f"the lab machine ({self.kernel.name} kernel) {said}\nits console ended with\n{self.last_lines()}"

    def _switch_off(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@functools.cache
def _compile_sources() -> None:
    """Write the byte code that machines need: they cannot write it themselves, and would start slowly."""
    for package in ("kroute", "tests", "bench"):
        compileall.compile_dir(PROJECT / package, quiet=2)
