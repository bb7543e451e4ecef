"""Processes of the host in the place of a machine, for a control plane: a busy host slows them down less."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.lab.namespaces import Namespace
from tests.lab.places import cache
from tests.lab.vm.machine import MachineError


class Beside:
    """A process tree in namespaces of its own (network, mounts, processes), on the bridge `wire`. Used like a Machine.

    Its files over those of the host are in memory, and end with it, as it does with the process that has started it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.shared = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache() / "run"))
        self._network = Namespace.nameless()
        self._console = self.shared / "console"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, argv: list[str], *, environment: dict[str, str], words: tuple[str, ...] = ()) -> None:
        """Run `argv`, in the network that this thread is in; `words` are for the kernel of a Machine."""
        del words
        peer = f"peer name vec0 netns /proc/{os.getpid()}/fd/{self._network.fd}"
        name = self._name
        for change in (f"del {name}", f"add {name} type veth {peer}", f"set {name} master wire up"):
            subprocess.run(["ip", "link", *change.split()], check=True)
        entering = ("unshare", "--mount", "--uts", "--pid", "--mount-proc", "--fork", "--kill-child", "--")
        with self._network.inside(), self._console.open("wb") as console:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *entering, *argv],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "LAB_RUN": str(self.shared), "BESIDE": "yes", **environment},
            )

    def check(self) -> None:
        """Raise MachineError if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise MachineError(f"the processes of {self._name} have ended\n{self.last_lines()}")

    def last_lines(self, count: int = 40) -> str:
        """The end of what it wrote."""
        return "\n".join(self._console.read_text(errors="replace").splitlines()[-count:])

    def close(self) -> None:
        """End it at once, and remove the shared directory."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.shared, ignore_errors=True)
