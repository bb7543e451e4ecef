"""Keeps the real servers of schedulers that go by their order in the plan's order, so that all nodes choose alike.

The kernel puts a new real server in front of the others, and nothing moves one but its deletion and addition. So a
newcomer in the plan's middle costs two messages for each real server behind it.

A real server that is deleted and added again is the same object in the kernel as before, with its connections and
counters (net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_trash_get_dest). But with `expire_nodest_conn` the kernel ends every
connection of which it sees a packet between the two. So that sysctl is 0 for the time: such a packet is dropped, and
TCP repeats it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from errno import EPERM
from typing import TypeAlias

import msgspec

from kroute.base.schedulers import SCHEDULERS_BY_ORDER
from kroute.kernel.clients import SysctlClient, VirtualServerTable
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    IpvsChange,
    RealServerKey,
    RealServerState,
)
from kroute.kernel.ipvs.objects import VirtualServerKey as KernelKey
from kroute.model.plan import VirtualServer, VirtualServerKey
from kroute.reconcile.comparison.virtual_servers import in_order_of_addition, options_of, planned_key

ENDS_CONNECTIONS = "net.ipv4.vs.expire_nodest_conn"

There: TypeAlias = Mapping[RealServerKey, RealServerState]
"""The real servers of a virtual server, as the kernel lists them: the newest first."""

Endpoint: TypeAlias = tuple[KernelKey, RealServerKey]
"""A virtual server, and a real server of it."""


class ServerOrder:
    """Reads the order of real servers where an edit may disturb it, and writes edits, also those that move some.

    `writing` is called with the changes that are about to be written.
    """

    def __init__(
        self, ipvs: VirtualServerTable, sysctls: SysctlClient, writing: Callable[[Sequence[IpvsChange]], None]
    ) -> None:
        self._ipvs = ipvs
        self._sysctls = sysctls
        self._writing = writing

    async def read(
        self, servers: Iterable[VirtualServer], applied: Mapping[VirtualServerKey, VirtualServer]
    ) -> dict[VirtualServerKey, There]:
        """The kernel's real servers of those of these desired servers whose edit may disturb the order."""
        keys = [server.key for server in servers if _may_be_out_of_order(applied.get(server.key), server)]
        return {planned_key(key): there for key, there in (await self._ipvs.real_servers(keys)).items()} if keys else {}

    async def as_found(self, server: VirtualServer) -> VirtualServer:
        """The same virtual server with its real servers in the order that the kernel has, if that matters."""
        if server.scheduler not in SCHEDULERS_BY_ORDER or not server.real_servers:
            return server
        there = (await self._ipvs.real_servers([server.key]))[server.key]
        position = {real_server: index for index, real_server in enumerate(in_order_of_addition(there))}
        ordered = sorted(server.real_servers, key=lambda real: position.get((real.address, real.port), len(position)))
        return msgspec.structs.replace(server, real_servers=tuple(ordered))

    async def write(self, changes: Sequence[IpvsChange], moved: Collection[Endpoint] = ()) -> list[Failure[IpvsChange]]:
        """Write changes. A virtual server that cannot be added may be foreign, so it gets no real servers.

        The `moved` real servers are deleted and added again. What ends connections is only done when the sysctl has its
        value again.
        """
        self._writing(changes)
        failures: list[Failure[IpvsChange]] = []
        if additions := [change for change in changes if type(change) is AddVirtualServer]:
            failures = await self._ipvs.write(additions)
            changes = [change for change in changes if type(change) is not AddVirtualServer]
        if not_added := {failure.change.key for failure in failures}:
            changes = [change for change in changes if change.key not in not_added]
        if moved:
            keys = {key for key, _ in moved}
            added = {_endpoint_of(change) for change in changes if type(change) is AddRealServer and change.key in keys}
            failures += await self._move([change for change in changes if _endpoint_of(change) in added])
            changes = [change for change in changes if _endpoint_of(change) not in added]
        return failures + await self._ipvs.write(changes)

    async def _move(self, changes: Sequence[IpvsChange]) -> list[Failure[IpvsChange]]:
        with ExitStack() as stack:
            try:
                stack.enter_context(keeping_connections(self._sysctls))
            except KernelError as error:
                return [Failure(change, error.errno or EPERM) for change in changes]
            return await self._ipvs.write(changes)


def apart_from_moves(changes: Sequence[IpvsChange]) -> tuple[Sequence[IpvsChange], Mapping[KernelKey, int]]:
    """The changes that are more than the move of a real server in its list, and how many of these each key has."""
    moved = {(change.key, change.real_server) for change in changes if type(change) is DeleteRealServer}
    if moved:
        moved &= {(change.key, change.real_server) for change in changes if isinstance(change, AddRealServer)}
    if not moved:
        return changes, {}
    return [change for change in changes if _endpoint_of(change) not in moved], Counter(key for key, _ in moved)


def _endpoint_of(change: IpvsChange) -> Endpoint | None:
    """The real server that a change adds or deletes."""
    return (change.key, change.real_server) if isinstance(change, AddRealServer | DeleteRealServer) else None


def _may_be_out_of_order(applied: VirtualServer | None, desired: VirtualServer) -> bool:
    """Whether the edit from `applied` to `desired` can leave real servers in another order than the plan's.

    A virtual server that is new gets them in order. Weights and departures change no order.
    """
    if applied is None or desired.scheduler not in SCHEDULERS_BY_ORDER or not desired.real_servers:
        return False
    if options_of(applied) != options_of(desired):
        return True
    wanted = {(address, port) for address, port, _ in desired.real_servers}
    kept = [(address, port) for address, port, _ in applied.real_servers if (address, port) in wanted]
    return kept != [(address, port) for address, port, _ in desired.real_servers]


def place(desired: VirtualServer, there: There) -> list[AddRealServer | DeleteRealServer]:
    """Add what is missing and add again what is out of order. `there` are the kernel's real servers, as it lists them.

    The real servers that stay are the longest beginning of the plan that the kernel has in the plan's order. Those that
    no plan names stay where they are.
    """
    position = {real_server: index for index, real_server in enumerate(in_order_of_addition(there))}
    changes: list[AddRealServer | DeleteRealServer] = []
    last, may_stay = -1, True
    for address, port, weight in desired.real_servers:
        real_server = (address, port)
        index = position.get(real_server)
        may_stay = may_stay and index is not None and index > last
        if may_stay and index is not None:
            last = index
            continue
        if index is not None:
            changes.append(DeleteRealServer(desired.key, real_server))
        changes.append(AddRealServer(desired.key, real_server, weight, desired.method))
    return changes


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
