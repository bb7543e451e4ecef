"""Keeps the real servers of schedulers that go by their order in the plan's order, so that all nodes choose alike.

A real server that is deleted and added again is the same object in the kernel as before, with its connections and
counters (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_trash_get_dest). But with `expire_nodest_conn` the kernel ends every
connection of which it sees a packet between the two. So that sysctl is 0 for the time: such a packet is dropped, and
TCP repeats it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from errno import EPERM

import msgspec

from kroute.comparison.virtual_servers import in_order_of_addition, planned_key
from kroute.controllers.ipvs.server_order.placement import (
    There,
    endpoint_of,
    may_be_out_of_order,
    moved_in,
)
from kroute.kernel.clients import SysctlClient, VirtualServerTable
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.ipvs.client import AddRealServer, AddVirtualServer, IpvsChange
from kroute.model.plan import VirtualServer, VirtualServerKey
from kroute.schedulers import SCHEDULERS_BY_ORDER

ENDS_CONNECTIONS = "net.ipv4.vs.expire_nodest_conn"


class ServerOrder:
    """Reads the order of real servers where an edit may disturb it, and writes edits that move some."""

    def __init__(self, ipvs: VirtualServerTable, sysctls: SysctlClient) -> None:
        self._ipvs = ipvs
        self._sysctls = sysctls

    async def read(
        self, edits: Iterable[tuple[VirtualServer | None, VirtualServer | None]]
    ) -> dict[VirtualServerKey, There]:
        """The kernel's real servers of those virtual servers whose edit, (applied, desired), may disturb the order."""
        keys = [it.key for applied, it in edits if it is not None and may_be_out_of_order(applied, it)]
        return {planned_key(key): there for key, there in (await self._ipvs.real_servers(keys)).items()} if keys else {}

    async def as_found(self, server: VirtualServer) -> VirtualServer:
        """The same virtual server with its real servers in the order that the kernel has, if that matters."""
        if server.scheduler not in SCHEDULERS_BY_ORDER or not server.real_servers:
            return server
        there = (await self._ipvs.real_servers([server.key]))[server.key]
        position = {real_server: index for index, real_server in enumerate(in_order_of_addition(there))}
        ordered = sorted(server.real_servers, key=lambda it: position.get((it.address, it.port), len(position)))
        return msgspec.structs.replace(server, real_servers=tuple(ordered))

    async def write(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        """Write changes. A virtual server that cannot be added may be foreign, so it gets no real servers."""
        additions = [change for change in changes if isinstance(change, AddVirtualServer)]
        others = [change for change in changes if not isinstance(change, AddVirtualServer)]
        if failures := await self._ipvs.write(additions):
            not_added = {failure.change.key for failure in failures}
            others = [change for change in others if change.key not in not_added]
        return failures + await self._write_moves_first(others)

    async def _write_moves_first(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        """What ends connections is only done when the sysctl has its value again."""
        moved = moved_in(changes)
        if not moved:
            return await self._ipvs.write(changes)
        keys = {key for key, _ in moved}
        added = {(it.key, it.real_server) for it in changes if isinstance(it, AddRealServer) and it.key in keys}
        failures = await self._move([it for it in changes if endpoint_of(it) in added])
        return failures + await self._ipvs.write([it for it in changes if endpoint_of(it) not in added])

    async def _move(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        with ExitStack() as stack:
            try:
                stack.enter_context(keeping_connections(self._sysctls))
            except KernelError as error:
                return [Failure(change, error.errno or EPERM) for change in changes]
            return await self._ipvs.write(changes)


@contextmanager
def keeping_connections(sysctls: SysctlClient) -> Iterator[None]:
    """For the length of a `with` block, let no connection end because its real server is missing for a moment.

    Raises KernelError if the sysctl cannot be set. If this process dies in the block, its next run sets it again.
    """
    before = sysctls.read(ENDS_CONNECTIONS)
    if before in {None, "0"}:
        yield
        return
    sysctls.write(ENDS_CONNECTIONS, "0")
    try:
        yield
    finally:
        sysctls.write(ENDS_CONNECTIONS, str(before))
