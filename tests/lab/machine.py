"""The lab's virtual machine: a Linux kernel that runs as a process of the host (User Mode Linux).

It needs neither KVM nor an emulator: the machine's programs run natively, which makes Python in it many times faster
than under instruction-by-instruction emulation, and a boot takes about two seconds. Its kernel is Debian's, with IPVS,
netfilter and network namespaces as every Debian kernel has them. The host's files are its root, read-only.
"""

import compileall
import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Self

PROJECT = Path(__file__).resolve().parents[2]
MEMORY_MIB = 3072
"""What the machine believes to have; the host gives a page only when it is used."""


def cache() -> Path:
    """Return the directory for what the lab keeps between runs: `KROUTE_CACHE`, or `.cache` in the project."""
    return Path(os.environ.get("KROUTE_CACHE", PROJECT / ".cache")).resolve() / "lab"


class MachineError(Exception):
    """The machine could not start, or ended without the exit code of its command; the text holds its last lines."""


class Machine:
    """One boot of the lab's kernel that runs one command, then switches itself off.

    `number` tells machines apart that run at the same time: each has a processor of its own, as long as there are some.
    The command's output goes to `output`, the kernel's own messages to the console log. `shared` is a directory that
    the machine and the host both write; it is removed with `close`. The console log stays in the cache, as NAME.log.
    """

    def __init__(self, name: str, number: int = 0) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self._cpu = cpus[number % len(cpus)]
        runs = cache() / "run"
        runs.mkdir(parents=True, exist_ok=True)
        self.shared = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=runs))
        self.console = self.shared / "console"
        self._kept_console = cache() / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        argv: list[str],
        *,
        environment: dict[str, str],
        output: IO[bytes] | None = None,
        terminal: bool = False,
        devices: tuple[str, ...] = (),
    ) -> None:
        """Boot, and run `argv` in the project's directory with `environment` added to the machine's own.

        Without `output` the command writes to the console log as well. With `terminal` it talks to this process's
        terminal, for a person to type at. `devices` are further words of the kernel's command line.

        Raises:
            MachineError: the lab kernel is not there; `make lab` or `scripts/setup lab` fetches it.
        """
        kernel = cache() / "kernel"
        binary = kernel / "usr/bin/linux.uml"
        if not binary.exists():
            raise MachineError(f"no lab kernel in {kernel}: run scripts/setup lab")
        for package in ("kroute", "tests", "bench"):
            compileall.compile_dir(PROJECT / package, quiet=2)  # the machine, which cannot write it, would start slowly
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
        (self.shared / "command").write_text(f"{exports}exec {shlex.join(argv)}\n")
        with self.console.open("wb") as console, contextlib.ExitStack() as stack:
            screen = os.dup((output or console).fileno())  # a number of its own: 1 and 2 are the console's
            stack.callback(os.close, screen)
            second = "fd:0,fd:1" if terminal else f"null,fd:{screen}"
            self._process = subprocess.Popen(
                [
                    # Nothing of a machine outlives who started it: its processes have a pid namespace of their own.
                    # Its processes take turns, so on one processor each hands over to the next without waking another.
                    *("taskset", "--cpu-list", str(self._cpu)),
                    *("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--"),
                    *(str(binary), f"mem={MEMORY_MIB}M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"),
                    *("con=null", f"con0=null,fd:{console.fileno()}", f"con1={second}", "hostname=lab", "quiet"),
                    *(f"LAB_RUN={self.shared}", f"LAB_PROJECT={PROJECT}", f"LAB_KERNEL={kernel}"),
                    f"LAB_INTERACTIVE={'yes' if terminal else 'no'}",
                    *devices,
                    f"init={PROJECT / 'tests/lab/guest-init'}",
                ],
                stdin=None if terminal else subprocess.DEVNULL,
                stdout=None if terminal else console,
                stderr=console,
                pass_fds=(console.fileno(), screen),
                env={**os.environ, "TMPDIR": str(_memory_directory())},
                start_new_session=not terminal,
            )

    @property
    def pid(self) -> int:
        """The process that the machine, and all in it, is below."""
        assert self._process is not None, "start() comes first"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the machine is up."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the machine is off; return its command's exit code.

        Raises:
            TimeoutError: it still runs after `timeout` seconds.
            MachineError: it ended before its command did.
        """
        assert self._process is not None, "start() comes first"
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"the lab machine still runs after {timeout} s") from error
        try:
            return int((self.shared / "exit-code").read_text())
        except (FileNotFoundError, ValueError) as error:
            raise MachineError(f"the lab machine died; its console ended with\n{self.last_lines()}") from error

    def last_lines(self, count: int = 40) -> str:
        """Return the end of the console log."""
        if not self.console.exists():
            return "(it never wrote to its console)"
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-count:])

    def close(self) -> None:
        """Switch the machine off at once, if it still runs, and remove the shared directory."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self.console.exists():
            self.console.replace(self._kept_console)
        shutil.rmtree(self.shared, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _memory_directory() -> Path:
    """Where the machine's memory lies: a file in a tmpfs when one is large enough, since a disk would write it out."""
    shm = Path("/dev/shm")
    if shm.is_dir() and shutil.disk_usage(shm).free > MEMORY_MIB << 20:
        return shm
    return cache()
