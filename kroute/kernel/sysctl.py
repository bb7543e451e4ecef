"""Sysctls of the calling process's network namespace."""

import os
from pathlib import Path

from kroute.kernel.errors import KernelError

PROC_SYS = Path("/proc/sys")
IPV6_ROUTES = Path("/proc/net/ipv6_route")
_ADVERTISED = 0x00040000
"""RTF_ADDRCONF (include/uapi/linux/ipv6_route.h): the kernel has the route, to all or to a network, from a router."""
LONGEST = 4096
"""Bytes of a value. The kernel writes it in one piece."""


class Sysctls:
    """Reads and writes sysctls by dotted names. A dot in an interface's name is written as a slash, as in sysctl(8)."""

    def __init__(self, root: Path = PROC_SYS) -> None:
        self._root = root

    def read(self, name: str) -> str | None:
        """The value without its newline; None if this kernel has no such sysctl."""
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:  # every look reads them: a file object takes three times as many system calls
            return os.read(descriptor, LONGEST).decode().rstrip("\n")
        finally:
            os.close(descriptor)

    def write(self, name: str, value: str) -> None:
        """Set the value. Raises KernelError, which names the sysctl, when the kernel refuses."""
        try:
            with self._path(name).open("r+") as file:
                file.write(value)
        except OSError as error:
            sentence = f"cannot set {name} to {value}: {error.strerror}"
            raise KernelError(f"{sentence}; set it on the host", errno=error.errno) from error

    def is_writable(self, name: str) -> bool:
        """Whether this process may set it. In containers /proc/sys is often mounted read-only."""
        return os.access(self._path(name), os.W_OK)

    def hearing_routers(self) -> list[str]:
        """The interfaces by which the kernel has learned IPv6 routes from routers, in the spelling of sysctls.

        Raises KernelError when the kernel does not tell.
        """
        try:
            lines = [line.split() for line in IPV6_ROUTES.read_text().splitlines()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise KernelError(f"cannot read {IPV6_ROUTES}: {error.strerror}", errno=error.errno) from error
        found = {line[-1] for line in lines if int(line[-2], 16) & _ADVERTISED}
        return sorted(name.replace(".", "/") for name in found)

    def _path(self, name: str) -> Path:
        return self._root / name.translate(str.maketrans("./", "/."))
