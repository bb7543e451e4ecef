"""A real kube-apiserver with etcd, on the loopback interface of a network namespace of their own.

Both end with this process, however that ends: they are in a PID namespace whose first process waits for the end of its
input, which is a pipe from here.
"""

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.lab import control_plane
from tests.lab.kubernetes import missing, required

MISSING = missing("kube-apiserver", "kubectl", "etcd")
"""Why there is none here."""
LONGEST_START = 180
"""Seconds that only a server needs which never starts; usually it takes three."""

_AS_ROOT = os.geteuid() == 0
_SERVERS = """\
set -eu
read -r pid rest < /proc/self/stat && echo "$pid" > pid
ip link set lo up
eval "$1" > etcd.log 2>&1 &
eval "$2" > kube-apiserver.log 2>&1 &
read -r end || true
"""


class ApiServer:
    """A running API server. `pid` is a process in its namespaces, `kubectl` the program."""

    def __init__(self, pid: int, kubectl: Path, directory: Path) -> None:
        self._enter = [
            "nsenter",
            f"--target={pid}",
            "--net",
            *([] if _AS_ROOT else ["--user", "--preserve-credentials"]),
        ]
        self._kubectl = [str(kubectl), "--server=https://127.0.0.1:6443", "--token=admin", "--insecure-skip-tls-verify"]
        self._home = directory

    def kubectl(self, *arguments: str, content: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl with this content as its standard input."""
        return self.run(*self._kubectl, *arguments, content=content)

    def run(self, *words: str, content: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program where the API server can be reached."""
        return subprocess.run(
            [*self._enter, *words],
            input=content,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_START,
            env={**os.environ, "HOME": str(self._home)},
        )


@contextmanager
def running(directory: Path) -> Iterator[ApiServer]:
    """Start etcd and kube-apiserver with their files in this directory, and end both."""
    server, kubectl, etcd = map(required, ("kube-apiserver", "kubectl", "etcd"))
    flags = ("--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--cert-dir=certificates")
    api_server = control_plane.api_server(
        server,
        *(*flags, "--authorization-mode=RBAC"),
        services="10.96.0.0/16",
        signing_key="key",
        tokens="tokens.csv",
    )
    (directory / "tokens.csv").write_text('admin,admin,1,"system:masters"\n')
    subprocess.run(["openssl", "genrsa", "-out", "key", "2048"], cwd=directory, check=True, capture_output=True)
    namespaces = ["unshare", "--net", "--pid", "--fork", *([] if _AS_ROOT else ["--map-root-user"])]
    servers = subprocess.Popen(
        [*namespaces, "sh", "-c", _SERVERS, "sh", *map(shlex.join, (control_plane.etcd(etcd, "etcd"), api_server))],
        cwd=directory,
        stdin=subprocess.PIPE,
    )
    assert servers.stdin is not None
    try:
        yield _when_ready(servers, directory, kubectl)
    finally:
        servers.stdin.close()
        servers.wait(60)


def _when_ready(servers: "subprocess.Popen[bytes]", directory: Path, kubectl: Path) -> ApiServer:
    end = time.monotonic() + LONGEST_START
    while time.monotonic() < end and servers.poll() is None:
        if (pid := _number(directory / "pid")) is not None:
            server = ApiServer(pid, kubectl, directory)
            if server.kubectl("get", "namespace", "default").returncode == 0:
                return server
        time.sleep(0.3)
    logs = "\n".join(_end_of(directory / f"{name}.log") for name in ("etcd", "kube-apiserver"))
    raise AssertionError(f"the API server does not start:\n{logs}")


def _number(file: Path) -> int | None:
    return int(text) if file.exists() and (text := file.read_text().strip()) else None


def _end_of(log: Path) -> str:
    lines: Sequence[str] = log.read_text(errors="replace").splitlines() if log.exists() else ()
    return "\n".join(lines[-10:])
