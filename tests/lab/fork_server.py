"""A process that has kroute imported and forks real kroute processes on request.

Each child has its own session and network namespace, writes to its own log, and ends with the exit code or the signal
of a newly started `kroute`. Only the seconds of importing are saved.

`python -m tests.lab.fork_server FD` serves the socket FD until its other end is closed. A request is one packet. It has
JSON with `argv`, `environment`, `fresh` (replace the child by a new `python -m kroute`) and `under` (the words of a
program that starts that one), and three descriptors: the namespace, the log, and a pipe. The child's pid is written to
the pipe on a line. When the child has ended, its exit code follows on another line (minus the signal's number, if it
was killed).
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import NoReturn

from kroute.cli.main import COMMANDS
from tests.lab.namespaces import enter

_PRELOADED = (
    *(f"kroute.cli.{entry.module or name}" for name, entry in COMMANDS.items()),
    "kroute.watchers.kubernetes.api",
    "kroute.watchers.kubernetes.watcher",
    "kroute.telemetry.health",
    "kroute.telemetry.metrics_port",
    "kroute.firewall.nftables.firewall",
    "kroute.firewall.iptables.firewall",
    "kroute.kernel.nftables.client",
    "kroute.kernel.iptables.xtables",
)


@dataclass(frozen=True)
class Request:
    """The command of a child, and its surroundings."""

    argv: list[str]
    environment: dict[str, str]
    fresh: bool
    under: list[str]
    namespace: int
    log: int
    report: int


def serve(channel: socket.socket) -> Request | None:
    """Fork for each request. Returns a request in the child that must run it, and None in the server at the end."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    reports: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([channel.fileno(), wake_read], [], [])
        if wake_read in readable:
            os.read(wake_read, 4096)
            _reap(reports)
        if channel.fileno() not in readable:
            continue
        request = _receive(channel)
        if request is None:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (channel.detach(), wake_read, wake_write, request.report, *reports.values()):
                os.close(descriptor)
            return request
        os.write(request.report, f"{pid}\n".encode())
        reports[pid] = request.report
        os.close(request.namespace)
        os.close(request.log)


def become(request: Request) -> NoReturn:
    """Turn this process into the kroute that `request` describes."""
    os.setsid()
    enter(request.namespace)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(request.log, 1)
    os.dup2(request.log, 2)
    os.environ.update(request.environment)
    if request.fresh:
        words = [*request.under, sys.executable, "-m", "kroute", *request.argv]
        os.execvp(words[0], words)
    sys.argv = ["kroute", *request.argv]
    try:
        code = importlib.import_module("kroute.cli.main").main(request.argv)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - whatever ends kroute ends this process in the same way
        traceback.print_exc()
        code = 1
    _leave(code)


def _leave(code: object) -> NoReturn:
    """End as the interpreter does, but without freeing objects, which would first copy all shared memory."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _receive(channel: socket.socket) -> Request | None:
    message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 3)
    if not message:
        return None
    namespace, log, report = descriptors
    return Request(**json.loads(message), namespace=namespace, log=log, report=report)


def _reap(reports: dict[int, int]) -> None:
    """Report every child that has ended."""
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        report = reports.pop(pid)
        os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(report)


def preload() -> None:
    """Import what kroute imports, and keep the garbage collector from copying it in every child.

    A command that finds variables in its environment asks every command which of them it knows.
    """
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):  # the child that needs it logs the failure
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve requests, or, in a child, run kroute."""
    preload()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        become(request)


if __name__ == "__main__":
    main()
