"""Network namespaces: this process itself creates, enters and removes them.

Entering is a property of a thread (setns(2)). So a socket, a subprocess or a file below /proc that is opened inside a
namespace belongs to it permanently, while the program returns to its own. No process is needed only to be in another
namespace.
"""

import contextlib
import ctypes
import functools
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

NAMED = Path("/run/netns")
"""Where `ip netns` looks for names, too: `ip netns exec NAME ...` works for every namespace of the lab."""

COMMANDS_END_WITHIN = 300.0
"""Seconds that only a command takes that hangs."""
_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


class CommandError(Exception):
    """A command in a namespace ended with an exit code other than 0. The message holds its output."""


class Namespace:
    """One named network namespace."""

    def __init__(self, name: str) -> None:
        """Create the namespace `name`. Its loopback is down."""
        self.name = name
        self._path = NAMED / name
        NAMED.mkdir(parents=True, exist_ok=True)
        self._path.touch(exist_ok=False)
        self.fd = _made()
        _call("mount", f"/proc/self/fd/{self.fd}".encode(), os.fsencode(self._path), b"none", _MS_BIND, None)

    @classmethod
    def nameless(cls) -> Self:
        """Create a namespace that ends with the processes that are in it, and with this one, however they end."""
        made = cls.__new__(cls)
        made.name, made.fd = "nameless", _made()
        return made

    @classmethod
    def current(cls) -> Self:
        """Return the namespace that this process was started in, which is not this object's to delete."""
        made = cls.__new__(cls)
        made.name, made.fd = "current", _home()
        return made

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Move this thread into the namespace for the length of a `with`, which must not await or start threads."""
        enter(self.fd)
        try:
            yield
        finally:
            enter(_home())

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Return a new non-blocking socket that belongs to the namespace."""
        with self.inside():
            made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    def run(self, *argv: str, stdin: str = "", timeout: float = COMMANDS_END_WITHIN) -> str:
        """Run a command in the namespace and return what it wrote to stdout.

        Raises:
            CommandError: its exit code was not 0.
            subprocess.TimeoutExpired: it took longer than `timeout` seconds.
        """
        with self.inside():
            done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise CommandError(f"{self.name}: {' '.join(argv)}: exit {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def ip(self, batch: str) -> None:
        """Run lines of `ip` commands in one process. The first failure ends it."""
        self.run("ip", "-batch", "-", stdin=batch)

    def read(self, path: str) -> str:
        """Return the content of a file whose meaning depends on the namespace, such as /proc/net/ip_vs."""
        with self.inside():
            return Path(path.replace("/proc/net/", "/proc/thread-self/net/")).read_text()

    def sysctl(self, name: str, value: object = None) -> str:
        """Return the sysctl `name` (`net.ipv4.ip_forward`), after setting it to `value` if one is given."""
        with self.inside():
            entry = Path("/proc/sys", name.replace(".", "/"))
            if value is not None:
                entry.write_text(f"{value}\n")
            return entry.read_text().strip()

    def delete(self) -> None:
        """Remove the name. The kernel removes the namespace when no socket or process uses it."""
        os.close(self.fd)
        _call("umount2", os.fsencode(self._path), _MNT_DETACH)
        self._path.unlink()


def enter(descriptor: int) -> None:
    """Move this thread into the network namespace that `descriptor` refers to (setns(2), which Python 3.12 has)."""
    _call("setns", descriptor, _CLONE_NEWNET)


def _made() -> int:
    """Create a namespace, and return its descriptor."""
    _home()
    _call("unshare", _CLONE_NEWNET)
    try:
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        enter(_home())


@functools.cache
def _home() -> int:
    """The namespace in which this process was started, open for returning to it."""
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _call(function: str, *arguments: object) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
