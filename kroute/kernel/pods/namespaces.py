"""Finds the network namespaces of this node by their processes, without entering any.

`/proc/PID/net` shows the network namespace of a process, and every user may read it. `/proc/PID/ns/net` names the
namespace, for which the kernel asks for CAP_SYS_PTRACE if the process has another user or more capabilities
(`proc_ns_readlink`, `ptrace_may_access`). Both see the processes of the node only in its PID namespace.

What a namespace says of itself is not to be trusted: whoever may make user namespaces may make a network namespace with
any addresses. So each is returned with the depth of its user namespace. A container runtime makes those of pods in the
initial user namespace, or one level below if the pod has its own (`hostUsers: false`).
"""

import fcntl
import os
import re
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kroute.kernel.errors import KernelError

PROC = Path("/proc")
MOST_PROCESSES = 1 << 17
"""Processes that are looked at."""
MOST_NAMESPACES = 4096
"""Network namespaces that are looked into: more than a node has pods."""
BYTES_READ = 256 * 1024
"""What is read of one file of a namespace. A pod has a few addresses; whoever adds thousands may not be found."""
DEEPEST = 32
"""User namespaces are nested no deeper (kernel/user_namespace.c)."""

NS_GET_USERNS, NS_GET_PARENT = 0xB701, 0xB702
_LOCAL_HOST = re.compile(rb"\|-- (\S+)\n\s+/32 host LOCAL")
"""An address of the namespace in the file `fib_trie`."""


class PodNamespace(NamedTuple):
    """A network namespace, and a process that was in it. `inode` tells it from all others that exist meanwhile.

    `depth` counts the user namespaces above the one that owns it, from this process's own: 0 for most pods.
    """

    inode: int
    pid: int
    addresses: frozenset[str]
    links: frozenset[str]
    depth: int = 0


def find_namespaces(addresses: Collection[str], links: Collection[str], proc: Path = PROC) -> list[PodNamespace]:
    """The namespaces that have one of these addresses, or a link of one of these names. Blocks: call it in a thread.

    Each has those of them that it has. Processes that end meanwhile are left out. Raises KernelError EACCES if no
    process but this one's own may be looked at.
    """
    found = []
    own = _inode(proc, "self")
    wanted, names = frozenset(addresses), frozenset(links)
    for inode, pid in _first_processes(proc):
        if inode == own:
            continue
        has = wanted & _addresses(proc, pid)
        known = names & _links(proc, pid)
        if has or known:
            with suppress(OSError):
                found.append(PodNamespace(inode, pid, has, known, _depth(proc, pid, inode)))
    return found


def _first_processes(proc: Path) -> Iterator[tuple[int, int]]:
    """Each namespace with the first process that is in it."""
    seen: set[int] = set()
    denied = 0
    pids = sorted(int(it.name) for it in proc.iterdir() if it.name.isdigit())
    for pid in pids[:MOST_PROCESSES]:
        if len(seen) >= MOST_NAMESPACES:
            return
        try:
            inode = _inode(proc, str(pid))
        except PermissionError:
            denied += 1
            continue
        except OSError:
            continue  # it has ended
        if inode not in seen:
            seen.add(inode)
            yield inode, pid
    if denied and len(seen) <= 1:
        sentence = "cannot look at the network namespaces of other processes: CAP_SYS_PTRACE is missing"
        raise KernelError(f"{sentence}; see docs/direct-return.md", errno=13)


def _inode(proc: Path, process: str) -> int:
    return int(str((proc / process / "ns/net").readlink()).removeprefix("net:[").removesuffix("]"))


def _addresses(proc: Path, pid: int) -> frozenset[str]:
    found = {it.decode() for it in _LOCAL_HOST.findall(_read(proc / str(pid) / "net/fib_trie"))}
    for line in _read(proc / str(pid) / "net/if_inet6").splitlines():
        with suppress(ValueError, OSError):
            found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[:32].decode())))
    return frozenset(found)


def _links(proc: Path, pid: int) -> frozenset[str]:
    lines = _read(proc / str(pid) / "net/dev").splitlines()[2:]
    return frozenset(os.fsdecode(line.rpartition(b":")[0].strip()) for line in lines)


def _read(path: Path) -> bytes:
    """The beginning of a file; nothing if it is gone."""
    try:
        with path.open("rb", buffering=0) as file:
            pieces, size = [], 0
            while size < BYTES_READ and (piece := file.read(min(65536, BYTES_READ - size))):
                pieces.append(piece)
                size += len(piece)
            return b"".join(pieces)
    except OSError:
        return b""


def _depth(proc: Path, pid: int, inode: int) -> int:
    """How many user namespaces are above the one that owns the namespace. Raises OSError if it is no longer there."""
    own = (proc / "self/ns/user").stat().st_ino
    namespace = os.open(proc / str(pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(namespace).st_ino != inode:
            raise ProcessLookupError(pid)
        owner = fcntl.ioctl(namespace, NS_GET_USERNS)
    finally:
        os.close(namespace)
    for depth in range(DEEPEST + 1):
        try:
            if os.fstat(owner).st_ino == own:
                return depth
            parent = fcntl.ioctl(owner, NS_GET_PARENT)
        finally:
            os.close(owner)
        owner = parent
    os.close(owner)
    return DEEPEST
