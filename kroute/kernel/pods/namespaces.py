"""Finds the network namespaces of this node by their processes, and opens netlink sockets in them.

`/proc/PID/net` shows the network namespace of a process, and every user may read it. `/proc/PID/ns/net` names the
namespace, for which the kernel asks for CAP_SYS_PTRACE if the process has another user or more capabilities
(`proc_ns_readlink`, `ptrace_may_access`). Both see the processes of the node only in its PID namespace.

The contents of a namespace are not to be trusted: a user that may make user namespaces may make a network namespace
with any addresses. So each is returned with the depth of its user namespace. A container runtime makes the network
namespaces of pods in the initial user namespace, or, if the pod has its own (`hostUsers: false`), one level below, as
root. Namespaces of other depths cannot be those of pods and do not count, and each depth has limits of its own.

A process may enter another namespace while it is looked at, and be seen with that one's addresses.
`Tunnels.has_address` asks the namespace itself.

A socket stays in the namespace in which it was made, and keeps it alive. So it is closed as soon as its work is done:
else a pod's devices outlived the pod.
"""

import asyncio
import ctypes
import fcntl
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE, NetlinkSocket

CLONE_NEWNET = 0x40000000

PROC = Path("/proc")
MOST_PROCESSES = 1 << 17
"""Processes that are looked at."""
MOST_NAMESPACES = 4096
"""Network namespaces of each depth that are looked into: more than a node has pods."""
BYTES_READ = 256 * 1024
"""How much is read of one file of a namespace. A pod has a few addresses; one that adds thousands may not be found."""
BYTES_IN_ALL = 256 * 1024 * 1024
"""What is read of all namespaces of one depth; those that come later are not found. A pod's files have 1 to 2 KiB."""
DEEPEST = 1
"""The greatest depth of a pod's network namespace."""

NS_GET_USERNS, NS_GET_PARENT, NS_GET_OWNER_UID = 0xB701, 0xB702, 0xB704
_LOCAL_HOST = re.compile(rb"\|-- (\S+)\n\s+/32 host LOCAL")
"""An address of the namespace in the file `fib_trie`."""


class PodNamespace(NamedTuple):
    """A network namespace, and a process that was in it. `inode` tells it from all others that exist meanwhile.

    `depth` counts the user namespaces above the one that owns it, from this process's own: 0 for most pods, or 1.
    """

    inode: int
    pid: int
    addresses: frozenset[str]
    links: frozenset[str]
    depth: int = 0


def find_namespaces(addresses: Collection[str], links: Collection[str], proc: Path = PROC) -> list[PodNamespace]:
    """The namespaces with one of these addresses or links, except this process's own, in order of their depth.

    Each has those of them that it has. Processes that end meanwhile are left out. Raises KernelError EACCES if no
    process but this one's own may be looked at.
    """
    found = []
    wanted, names = frozenset(addresses), frozenset(links)
    for depth, processes in enumerate(_first_processes(proc)):
        left = BYTES_IN_ALL
        for inode, pid in processes.items():
            trie, inet6, devices = (_read(proc / str(pid) / "net" / name) for name in ("fib_trie", "if_inet6", "dev"))
            left -= len(trie) + len(inet6) + len(devices)
            if left < 0:
                break
            has, known = wanted & _addresses(trie, inet6), names & _links(devices)
            with suppress(OSError):
                if (has or known) and _inode(proc, str(pid)) == inode:
                    found.append(PodNamespace(inode, pid, has, known, depth))
    return found


def _first_processes(proc: Path) -> list[dict[int, int]]:
    """The namespaces of each depth that may be pods', by inode, each with the first process that is in it."""
    seen = {_inode(proc, "self")}
    of_depth: list[dict[int, int]] = [{} for _ in range(DEEPEST + 1)]
    denied = 0
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    for pid in pids[:MOST_PROCESSES]:
        try:
            inode = _inode(proc, str(pid))
            if inode in seen:
                continue
            depth = _depth(proc, pid, inode)
        except PermissionError:
            denied += 1
            continue
        except OSError:
            continue  # it has ended
        seen.add(inode)
        if depth <= DEEPEST and len(of_depth[depth]) < MOST_NAMESPACES:
            of_depth[depth][inode] = pid
    if denied and len(seen) == 1:
        sentence = "cannot look at the network namespaces of other processes: CAP_SYS_PTRACE is missing"
        raise KernelError(f"{sentence}; see docs/direct-return.md", errno=13)
    return of_depth


def _inode(proc: Path, process: str) -> int:
    return int(str((proc / process / "ns/net").readlink()).removeprefix("net:[").removesuffix("]"))


def _addresses(trie: bytes, inet6: bytes) -> frozenset[str]:
    found = {address.decode() for address in _LOCAL_HOST.findall(trie)}
    for line in inet6.splitlines():
        with suppress(ValueError, OSError):
            found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[:32].decode())))
    return frozenset(found)


def _links(devices: bytes) -> frozenset[str]:
    return frozenset(os.fsdecode(line.rpartition(b":")[0].strip()) for line in devices.splitlines()[2:])


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
    """How many user namespaces are above the one that owns the namespace; DEEPEST + 1 if it cannot be a pod's.

    Raises OSError if the process is no longer in it.
    """
    own = (proc / "self/ns/user").stat().st_ino
    with (proc / str(pid) / "ns/net").open("rb", buffering=0) as namespace:
        if os.fstat(namespace.fileno()).st_ino != inode:
            raise ProcessLookupError(pid)
        owner = FileIO(fcntl.ioctl(namespace, NS_GET_USERNS))
    with owner, suppress(PermissionError):  # EPERM: the parent is above this process's own
        if os.fstat(owner.fileno()).st_ino == own:
            return 0
        [creator] = struct.unpack("=I", fcntl.ioctl(owner, NS_GET_OWNER_UID, bytes(4)))
        with FileIO(fcntl.ioctl(owner, NS_GET_PARENT)) as parent:
            if creator == 0 and os.fstat(parent.fileno()).st_ino == own:
                return 1
    return DEEPEST + 1


@asynccontextmanager
async def routing_socket(namespace: PodNamespace, proc: Path = PROC) -> AsyncIterator[NetlinkSocket]:
    """An rtnetlink socket in the namespace. Raises KernelError: ESRCH if it is gone, EPERM without the capabilities.

    A thread of its own enters the namespace, makes the socket, and ends: no other thread, and so nothing else of the
    event loop or its pool, is ever in a foreign namespace. `setns` needs CAP_SYS_ADMIN in the namespace's user
    namespace and in the process's own (net/core/net_namespace.c, netns_install).
    """
    netlink, entering = NetlinkSocket(NETLINK_ROUTE), ThreadPoolExecutor(1, "enter pod")
    try:
        netlink.adopt(await asyncio.get_running_loop().run_in_executor(entering, _socket_inside, namespace, proc))
    except OSError as error:
        missing = "; CAP_SYS_ADMIN and CAP_SYS_PTRACE are needed, see docs/direct-return.md"
        hint = missing if isinstance(error, PermissionError) else "; the pod may have ended"
        sentence = f"cannot enter the network namespace of process {namespace.pid}: {error.strerror}{hint}"
        raise KernelError(sentence, errno=error.errno) from error
    finally:
        entering.shutdown(wait=False)
    try:
        yield netlink
    finally:
        await netlink.close()


def _socket_inside(namespace: PodNamespace, proc: Path) -> socket.socket:
    """Enter the namespace for good, and make a socket there. The thread must end then."""
    descriptor = os.open(proc / str(namespace.pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_ino != namespace.inode:
            raise ProcessLookupError(3, "another process has its number")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_ROUTE)
