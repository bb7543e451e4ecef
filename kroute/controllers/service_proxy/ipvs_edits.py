"""From what a virtual server is to what it should be: pure functions between plans and the kernel's objects."""

from collections.abc import Collection, Iterable, Mapping
from errno import EEXIST, ENOENT, ESRCH
from typing import NamedTuple

import msgspec

from kroute.kernel.errors import Failure
from kroute.kernel.ipvs.client import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    IpvsChange,
    RealServerKey,
    SetRealServer,
    SetVirtualServer,
    VirtualServerOptions,
    VirtualServerState,
)
from kroute.kernel.ipvs.client import VirtualServerKey as KernelKey
from kroute.model.plan import Persistence, Protocol, RealServer, VirtualServer, VirtualServerKey
from kroute.reconcile.desired_state import Delta

SCHEDULERS_WITH_FLAGS = frozenset({"mh", "sh"})
"""The others ignore flags, and the kernel does not show them for the others."""


class Edit(NamedTuple):
    """The changes that lead to the wanted state, and the real servers that drain from now on."""

    changes: list[IpvsChange]
    draining: list[RealServerKey]

    @property
    def is_deletion(self) -> bool:
        """Whether the virtual server is gone afterwards."""
        return any(isinstance(change, DeleteVirtualServer) for change in self.changes)

    @property
    def takes_away(self) -> bool:
        """Whether connections lose their virtual server or real server."""
        return any(isinstance(change, DeleteVirtualServer | DeleteRealServer) for change in self.changes)


def planned_key(key: KernelKey) -> VirtualServerKey:
    """The key of a virtual server as plans name it; the two are equal."""
    protocol, address, port = key
    return VirtualServerKey(Protocol(protocol), address, port)


def options_of(server: VirtualServer) -> VirtualServerOptions:
    """A virtual server's options in the kernel's terms."""
    timeout, prefix = server.persistence or (0, 0)
    flags = server.flags if server.scheduler in SCHEDULERS_WITH_FLAGS else 0
    return VirtualServerOptions(server.scheduler, flags, timeout, prefix)


def from_kernel(key: VirtualServerKey, state: VirtualServerState, draining: Collection[RealServerKey]) -> VirtualServer:
    """What the kernel has, as a plan would say it, without the real servers that drain, and in the order of plans."""
    options = state.options
    return VirtualServer(
        key,
        scheduler=options.scheduler,
        flags=options.flags,
        persistence=Persistence(options.persistence_timeout, options.persistence_prefix)
        if options.persistence_timeout
        else None,
        real_servers=tuple(
            sorted(
                RealServer(*real_server, real.weight)
                for real_server, real in state.real_servers.items()
                if real_server not in draining
            )
        ),
    )


def idle_real_servers(state: VirtualServerState, wanted: VirtualServer | None) -> set[RealServerKey]:
    """The real servers with weight 0 that no plan names: they drain, also if an earlier run began it."""
    idle = {real_server for real_server, real in state.real_servers.items() if not real.weight}
    return idle.difference((address, port) for address, port, _ in wanted.real_servers) if wanted else idle


def is_unchanged(known: VirtualServer, state: VirtualServerState) -> bool:
    """Whether the kernel has what is known, and no other real server besides. Quicker than by `from_kernel`."""
    if len(state.real_servers) != len(known.real_servers):
        return False
    for address, port, weight in known.real_servers:
        real = state.real_servers.get((address, port))
        if real is None or real.weight != weight:
            return False
    return options_of(known) == state.options


def with_scheduler(server: VirtualServer, scheduler: str) -> VirtualServer:
    """The same virtual server with another scheduler."""
    return msgspec.structs.replace(server, scheduler=scheduler)


def with_real_servers(server: VirtualServer, real_servers: tuple[RealServer, ...]) -> VirtualServer:
    """The same virtual server with other real servers."""
    return msgspec.structs.replace(server, real_servers=real_servers)


def serve_alike(one: VirtualServer, other: VirtualServer) -> bool:
    """Whether both serve in the same way; the order of the real servers does not matter."""
    return one == other or (
        options_of(one) == options_of(other)
        and len(one.real_servers) == len(other.real_servers)
        and set(one.real_servers) == set(other.real_servers)
    )


def is_nothing(wanted: VirtualServer) -> bool:
    """Whether the virtual server should not be in the kernel, though a plan names it: there is nothing behind it."""
    return not wanted.real_servers


def is_served_out(server: VirtualServer, draining: Collection[RealServerKey]) -> bool:
    """Whether there is nothing left in a virtual server for which it must stay. Only TCP's real servers drain."""
    return not server.real_servers and not (draining and server.key.protocol == Protocol.TCP)


def only_takes_away(applied: VirtualServer | None, wanted: VirtualServer) -> bool:
    """Whether no packet can get in by the way from `applied` to `wanted` that could not get in before."""
    if applied is None or not applied.real_servers:
        return False
    if not wanted.real_servers:
        return True
    return options_of(applied) == options_of(wanted) and set(wanted.real_servers) <= set(applied.real_servers)


def edit(applied: VirtualServer | None, wanted: VirtualServer, draining: Collection[RealServerKey]) -> Edit:
    """Lead from `applied` to `wanted`; `draining` are real servers that are there besides, with weight 0.

    TCP connections outlive their real server's departure: it gets weight 0 first, and one that comes back while it
    drains gets its weight back without being deleted. A virtual server that should have no real servers loses what it
    has; the edit after that deletes it.
    """
    if applied is not None and not wanted.real_servers and is_served_out(applied, draining):
        return Edit([DeleteVirtualServer(wanted.key)], [])
    before = _weights(applied.real_servers if applied else ())
    changes = _additions(applied, wanted, before, draining) if wanted.real_servers else []
    after = _weights(wanted.real_servers)
    leaving = [real_server for real_server in before if real_server not in after]
    if wanted.key.protocol != Protocol.TCP:
        return Edit(changes + [DeleteRealServer(wanted.key, real_server) for real_server in leaving], [])
    return Edit(changes + [SetRealServer(wanted.key, real_server, 0) for real_server in leaving], leaving)


def _additions(
    applied: VirtualServer | None,
    wanted: VirtualServer,
    before: Mapping[RealServerKey, int],
    draining: Collection[RealServerKey],
) -> list[IpvsChange]:
    key = wanted.key
    changes: list[IpvsChange] = []
    if applied is None:
        changes.append(AddVirtualServer(key, options_of(wanted)))
    elif options_of(applied) != options_of(wanted):
        changes.append(SetVirtualServer(key, options_of(wanted)))
    for real_server, weight in _weights(wanted.real_servers).items():
        if real_server not in before and real_server not in draining:
            changes.append(AddRealServer(key, real_server, weight))
        elif before.get(real_server) != weight:
            changes.append(SetRealServer(key, real_server, weight))
    return changes


def is_absent(failure: Failure[IpvsChange]) -> bool:
    """Whether a deletion was refused because there is nothing left to delete."""
    return isinstance(failure.change, DeleteVirtualServer | DeleteRealServer) and failure.errno in {ENOENT, ESRCH}


def is_taken(failure: Failure[IpvsChange]) -> bool:
    """Whether a virtual server was refused because there is one."""
    return isinstance(failure.change, AddVirtualServer) and failure.errno == EEXIST


def describe(drift: Delta[VirtualServerKey, VirtualServer]) -> str:
    """What a resync has found, in words."""
    if drift.applied is None:
        return f"virtual server {drift.key} was missing"
    is_wanted = drift.desired is not None and not is_nothing(drift.desired)
    return f"virtual server {drift.key} was changed" if is_wanted else f"virtual server {drift.key} is not wanted"


_EVENTS: dict[type[IpvsChange], str] = {
    AddVirtualServer: "virtual_server.added",
    SetVirtualServer: "virtual_server.edited",
    DeleteVirtualServer: "virtual_server.deleted",
    AddRealServer: "real_server.added",
    SetRealServer: "real_server.weighted",
    DeleteRealServer: "real_server.deleted",
}


def event_of(change: IpvsChange) -> str:
    """The name of the event under which the log tells of a change."""
    drains = isinstance(change, SetRealServer) and change.weight == 0
    return "real_server.draining" if drains else _EVENTS[type(change)]


def fields_of(change: IpvsChange) -> dict[str, object]:
    """What the log tells of a change besides the Service."""
    fields: dict[str, object] = {"virtual_server": str(planned_key(change.key))}
    match change:
        case AddVirtualServer(_, options) | SetVirtualServer(_, options):
            fields |= options._asdict()
        case AddRealServer(_, (address, port), weight) | SetRealServer(_, (address, port), weight):
            fields |= {"address": address, "port": port, "weight": weight}
        case DeleteRealServer(_, (address, port)):
            fields |= {"address": address, "port": port}
    return fields


def _weights(real_servers: Iterable[RealServer]) -> dict[RealServerKey, int]:
    return {(address, port): weight for address, port, weight in real_servers}
