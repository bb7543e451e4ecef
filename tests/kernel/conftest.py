"""Each lab test runs in its own network namespace, so that nothing of it is left over."""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import pytest

from kroute.kernel import modules
from tests.kernel.nodes import RealNode
from tests.lab.firewall import has_legacy

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
"""linux/sockios.h and linux/if.h."""
LEGACY_MODULES = (
    "ip_set_hash_ip",
    "ip_set_hash_net",
    "ip_set_hash_ipport",
    "ip_set_hash_ipportip",
    "xt_set",
    "iptable_nat",
    "ip6table_nat",
    "iptable_filter",
)
MODULES = ("ip_vs", "dummy", *(LEGACY_MODULES if has_legacy() else ()))


def set_up(interface: str) -> None:
    """Set an interface up, without a process: each test does."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", interface.encode(), IFF_UP))


@pytest.fixture
def namespace() -> Iterator[None]:
    """A new network namespace with lo up, for the test's thread and the processes that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    origin = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        set_up("lo")
        yield
    finally:
        libc.setns(origin, CLONE_NEWNET)
        os.close(origin)


@pytest.fixture
async def node(namespace: None) -> AsyncIterator[RealNode]:
    """A node in its namespace: uplink e0 with 192.168.9.1/24 and fd99::1/64, and an empty dummy d0."""
    assert await modules.load(MODULES) == []
    real = RealNode(socket.AF_INET)
    await real.open()
    yield real
    await real.close()
