"""Opens netlink sockets in other network namespaces.

A socket stays in the namespace in which it was made. So a thread of its own enters the namespace, makes the socket, and
ends: no other thread, and so nothing else of the event loop or its pool, is ever in a foreign namespace. `setns` needs
CAP_SYS_ADMIN in the namespace's user namespace and in the process's own (net/core/net_namespace.c, netns_install).

A socket keeps its namespace alive, so it is closed as soon as its work is done: else a pod's devices outlived the pod.
"""

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kroute.kernel.errors import KernelError
from kroute.kernel.netlink.netlink_socket import NETLINK_ROUTE, NetlinkSocket
from kroute.kernel.pods.namespaces import PROC, PodNamespace

CLONE_NEWNET = 0x40000000


@asynccontextmanager
async def routing_socket(namespace: PodNamespace, proc: Path = PROC) -> AsyncIterator[NetlinkSocket]:
    """An rtnetlink socket in the namespace. Raises KernelError: ESRCH if it is gone, EPERM without the capabilities."""
    netlink = NetlinkSocket(NETLINK_ROUTE)
    try:
        netlink.adopt(await _opened(namespace, proc))
    except OSError as error:
        missing = "; CAP_SYS_ADMIN and CAP_SYS_PTRACE are needed, see docs/direct-return.md"
        hint = missing if isinstance(error, PermissionError) else "; the pod may have ended"
        sentence = f"cannot enter the network namespace of process {namespace.pid}: {error.strerror}{hint}"
        raise KernelError(sentence, errno=error.errno) from error
    try:
        yield netlink
    finally:
        await netlink.close()


async def _opened(namespace: PodNamespace, proc: Path) -> socket.socket:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[socket.socket] = loop.create_future()

    def settle(made: socket.socket | None, failure: OSError | None) -> None:
        if opened.done():  # cancelled meanwhile
            if made is not None:
                made.close()
        elif made is not None:
            opened.set_result(made)
        elif failure is not None:
            opened.set_exception(failure)

    def work() -> None:
        try:
            made = _socket_inside(namespace, proc)
        except OSError as error:
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, made, None)

    threading.Thread(target=work, name="enter pod", daemon=True).start()
    return await opened


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
