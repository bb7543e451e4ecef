"""What direct return needs of the kernel: this node's steering, and the ends of tunnels in pods.

No socket stays open between two calls: most nodes have no Service with direct return, and a socket in a pod's namespace
would keep the namespace.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.net.routes import RouteLookup
from kroute.kernel.net.steering import Steer, Steering
from kroute.kernel.netlink.message import address_family
from kroute.kernel.pods.namespaces import PROC, PodNamespace, find_namespaces, routing_socket
from kroute.kernel.pods.pod_network import KINDS, PodNetwork, PodTunnel
from kroute.kernel.sysctl import PROC_SYS, Sysctls

PATIENCE = 5.0
"""Seconds for the work in one pod's namespace, where a process may change things all the time."""
LINKS = {family: kind.link for family, kind in KINDS.items()}


class Tunnels:
    """The tunnels of this process's network namespace, and of those of pods. `proc` shows the node's processes."""

    def __init__(self, proc_sys: Path = PROC_SYS, proc: Path = PROC) -> None:
        self._sysctls = Sysctls(proc_sys)
        self._proc = proc
        self._owner = (proc / "self/ns/net").stat().st_ino

    async def steered(self) -> set[str]:
        """The addresses on no link of which packets are delivered to this node."""
        async with Steering() as steering:
            return await steering.read()

    async def has_rules(self, mark: int) -> bool:
        """Whether this node's rules are right."""
        async with Steering() as steering:
            return await steering.has_rules(mark)

    async def ensure_rules(self, mark: int) -> list[str]:
        async with Steering() as steering:
            return await steering.ensure_rules(mark)

    async def steer(self, changes: Sequence[Steer]) -> list[Failure[Steer]]:
        async with Steering() as steering:
            return await steering.write(changes)

    async def remove(self) -> bool:
        """Delete rules and routes of this node; returns whether there were any."""
        async with Steering() as steering:
            return await steering.remove()

    async def find(self, addresses: Collection[str]) -> list[PodNamespace]:
        """The namespaces with one of these addresses, or with a link that has the name of ours."""
        return await asyncio.to_thread(find_namespaces, addresses, LINKS.values(), self._proc)

    async def has_address(self, namespace: PodNamespace, address: str) -> bool:
        """Whether the namespace has the address, by a socket in it. Raises KernelError."""
        async with self._entered(namespace, address_family(address), f"process {namespace.pid}'s namespace") as network:
            return await network.has_address(address)

    async def prepare(self, namespace: PodNamespace, tunnel: PodTunnel) -> list[str]:
        """Make a pod an end of a tunnel; returns what was missing or wrong. Raises KernelError."""
        async with self._entered(namespace, address_family(tunnel.address), f"the pod {tunnel.address}") as network:
            return await network.ensure(tunnel)

    async def undo(self, namespace: PodNamespace, family: int) -> bool:
        """Delete what is ours in a pod; returns whether there was anything. Raises KernelError."""
        async with self._entered(namespace, family, f"process {namespace.pid}'s namespace") as network:
            return await network.undo()

    @asynccontextmanager
    async def _entered(self, namespace: PodNamespace, family: int, what: str) -> AsyncIterator[PodNetwork]:
        """One family of a namespace, for PATIENCE. Raises KernelError; `what` is the namespace in words."""
        try:
            async with asyncio.timeout(PATIENCE), routing_socket(namespace, self._proc) as netlink:
                yield PodNetwork(netlink, family, self._owner)
        except TimeoutError as error:
            raise KernelError(f"{what} took longer than {PATIENCE:g} s; trying again") from error

    async def strict_interface(self, pod: str) -> str | None:
        """The interface towards a pod if it takes only packets whose source it leads to (rp_filter 1); else None."""
        if ":" in pod:
            return None
        async with RouteLookup() as lookup:
            way = await lookup.towards(pod)
        if way is None or not way.interface:
            return None
        values = {
            self._sysctls.read(f"net.ipv4.conf.{link}.rp_filter") for link in ("all", way.interface.replace(".", "/"))
        }
        return way.interface if "2" not in values and "1" in values else None
