"""kroute as a real process in a node of the lab."""

# ruff: noqa: ASYNC109 - how long a call is given is part of what a test says

import asyncio
import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.lab.namespaces import Namespace

STARTS_WITHIN = 600.0
"""Seconds in which kroute must be ready, or end: in the slowest machine, too, only one that hangs takes so long."""


class KrouteEndedError(Exception):
    """kroute has ended too early. The message holds its exit code and the end of its log."""


class ForkServer:
    """The process from which kroute processes are forked. One serves a whole test run."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.lab.fork_server", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
        atexit.register(self.close)

    @classmethod
    @functools.cache
    def shared(cls) -> Self:
        """Return the server of this test run."""
        return cls()

    def launch(self, request: Mapping[str, object], descriptors: list[int]) -> None:
        """Have a process forked. `tests.lab.fork_server` describes the request."""
        socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)

    def close(self) -> None:
        """End the server. Processes that it has forked continue."""
        self._channel.close()
        self._process.wait()


class KrouteProcess:
    """One `kroute ARGV...`. `log` is the file with its stdout and stderr, `pid` its process id."""

    def __init__(self, argv: list[str], *, state_dir: Path, log: Path, report: int) -> None:
        """Represent a process on which the fork server reports through the pipe `report`."""
        self.argv = argv
        self.log = log
        self._ready_file = state_dir / "ready"
        self._report = os.fdopen(report)
        self._exit_code: int | None = None
        self.pid = int(self._next_report())
        self._pidfd = os.pidfd_open(self.pid)

    @classmethod
    async def start(
        cls,
        argv: list[str],
        *,
        namespace: Namespace,
        state_dir: Path,
        log: Path,
        environment: Mapping[str, str],
        fork: bool = True,
        under: tuple[str, ...] = (),
    ) -> Self:
        """Start kroute in `namespace`. Without `fork` it is a new interpreter, which the program `under` starts."""
        if argv[0] in {"run", "director"}:  # the other commands may need to know whether the agent is ready
            (state_dir / "ready").unlink(missing_ok=True)
        server = ForkServer.shared()
        read, write = os.pipe()
        with log.open("ab") as output:
            request = {"argv": argv, "environment": dict(environment), "fresh": not fork, "under": under}
            server.launch(request, [namespace.fd, output.fileno(), write])
        os.close(write)
        return await asyncio.to_thread(cls, argv, state_dir=state_dir, log=log, report=read)

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._exit_code is None and not select.select([self._pidfd], [], [], 0)[0]

    async def ready(self, timeout: float = STARTS_WITHIN) -> None:
        """Wait for the file `ready` in the state directory: kroute has then applied its first full plan.

        Raises:
            KrouteEndedError: the process ended before.
            TimeoutError: it is not ready after `timeout` seconds.
        """
        async with asyncio.timeout(timeout):
            while not self._ready_file.exists():
                if not self.running:
                    raise KrouteEndedError(f"kroute ended with {self._collect()} before it was ready:\n{self.tail()}")
                await asyncio.sleep(0.02)

    async def wait(self, timeout: float = STARTS_WITHIN) -> int:
        """Wait for the end. Returns the exit code, or minus the number of the signal. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            if self.running:
                await _readable(self._pidfd)
        return self._collect()

    async def terminate(self, timeout: float = STARTS_WITHIN) -> int:
        """Send SIGTERM and return the exit code. Raises TimeoutError if it does not end."""
        self.signal(signal.SIGTERM)
        return await self.wait(timeout)

    async def kill(self) -> int:
        """Send SIGKILL and return the exit code, which is -9."""
        self.signal(signal.SIGKILL)
        return await self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.running:
            signal.pidfd_send_signal(self._pidfd, number)

    def rss(self) -> int:
        """Return the resident memory in bytes. A forked process shares much of it with its parent."""
        return rss(self.pid)

    def tail(self, count: int = 40) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def close(self) -> None:
        """Kill the process if it still runs, and wait for its end."""
        self.signal(signal.SIGKILL)
        self._collect()

    def _collect(self) -> int:
        """Return the exit code, waiting for it if need be, and close the descriptors."""
        if self._exit_code is None:
            self._exit_code = int(self._next_report())
            self._report.close()
            os.close(self._pidfd)
        return self._exit_code

    def _next_report(self) -> str:
        line = self._report.readline()
        if not line:
            raise KrouteEndedError(f"the fork server that kroute came from has died; kroute's log:\n{self.tail()}")
        return line


def rss(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kib) * 1024


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor is readable; a pidfd is when its process has ended."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
