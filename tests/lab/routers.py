"""BIRD 2 in a host of the lab: beside kroute on a node, or as a router outside that nobody here has made for it."""

import signal
import subprocess
from pathlib import Path
from typing import Self

from tests.lab.hosts import Host
from tests.lab.namespaces import CommandError

ENDS_WITHIN = 60.0
"""Seconds that only a BIRD that hangs takes to end."""


class BirdProcess:
    """A BIRD in the foreground. `log` has what it says."""

    def __init__(self, host: Host, directory: Path, configuration: Path) -> None:
        self._host = host
        self._directory = directory
        self._configuration = configuration
        self._process: subprocess.Popen[bytes] | None = None
        self.log = directory / "bird.log"

    @classmethod
    def router(cls, host: Host, directory: Path, text: str) -> Self:
        """A router with this configuration, which runs."""
        directory.mkdir(parents=True)
        configuration = directory / "router.conf"
        configuration.write_text(text)
        made = cls(host, directory, configuration)
        made.start()
        return made

    def start(self) -> None:
        """Start it as docs/routing.md says."""
        command = ["bird", "-f", "-R", "-c", str(self._configuration), "-s", str(self._directory / "bird.ctl")]
        with self.log.open("ab") as log, self._host.namespace.inside():
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it by a signal, and wait for its end."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(ENDS_WITHIN)
            self._process = None

    def pause(self) -> None:
        """Stop it without its end: it hangs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def ask(self, *command: str) -> str:
        """What it answers to a command of birdc."""
        return self._host.run("birdc", "-r", "-s", str(self._directory / "bird.ctl"), *command)

    def next_hops(self, address: str) -> set[str]:
        """By whom it reaches an address: all next hops that it knows."""
        try:
            lines = self.ask("show", "route", "for", address, "all").splitlines()
        except CommandError as error:
            if "not found" not in str(error):
                raise
            return set()
        return {line.split()[1] for line in lines if line.split()[:1] == ["via"]}
