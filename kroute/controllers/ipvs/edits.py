"""Pure functions that return the changes from a virtual server's applied state to its desired one."""

from collections.abc import Collection, Iterable, Mapping
from errno import EEXIST, ENOENT, ESRCH

import msgspec

from kroute.base.schedulers import SCHEDULERS_BY_ORDER
from kroute.controllers.ipvs.server_order import There, place
from kroute.kernel.errors import Failure
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    IpvsChange,
    RealServerKey,
    SetRealServer,
    SetVirtualServer,
)
from kroute.model.plan import Protocol, RealServer, VirtualServer
from kroute.reconcile.comparison.virtual_servers import is_served_out, options_of, planned_key

_DELETIONS: frozenset[type[object]] = frozenset({DeleteVirtualServer, DeleteRealServer})


class Edit(msgspec.Struct, frozen=True):
    """The changes that lead to the desired state, and the real servers that begin to drain.

    `moved` are those that are deleted and added again, for the sake of their order.
    """

    changes: list[IpvsChange]
    draining: list[RealServerKey]
    moved: Collection[RealServerKey] = ()

    @property
    def is_deletion(self) -> bool:
        """Whether it deletes the virtual server."""
        return DeleteVirtualServer in map(type, self.changes)

    @property
    def takes_away(self) -> bool:
        """Whether it deletes the virtual server or a real server, so that connections lose it."""
        return sum(map(_DELETIONS.__contains__, map(type, self.changes))) > len(self.moved)


def only_takes_away(applied: VirtualServer | None, desired: VirtualServer) -> bool:
    """Whether the edit from `applied` to `desired` serves no packet that was refused before.

    False also if `applied` is missing or has no real servers.
    """
    if applied is None or not applied.real_servers:
        return False
    if not desired.real_servers:
        return True
    is_alike = options_of(applied) == options_of(desired) and applied.method == desired.method
    return is_alike and set(desired.real_servers) <= set(applied.real_servers)


def edit(
    applied: VirtualServer | None,
    desired: VirtualServer,
    draining: Collection[RealServerKey],
    there: There | None = None,
) -> Edit:
    """The edit from `applied` to `desired`. `draining` are further real servers in the kernel, with weight 0.

    `there` are all of the kernel's, as it lists them, if the edit must put them in order.

    A TCP real server that leaves gets weight 0 first, so that its connections live on; so does one of UDP for as long
    as its endpoint is `leaving`. If it comes back while it drains, it gets its weight back and is not deleted. A
    virtual server that should have no real servers first loses those that it has; a later edit deletes it.
    """
    if applied is not None and not desired.real_servers and is_served_out(applied, draining):
        return Edit([DeleteVirtualServer(desired.key)], [])
    before = _weights(applied.real_servers if applied else ())
    placements = place(desired, there) if there is not None and desired.scheduler in SCHEDULERS_BY_ORDER else []
    moved = [change.real_server for change in placements if isinstance(change, DeleteRealServer)]
    after = _weights(desired.real_servers)
    changes = _additions(applied, desired, before, after, draining, placements) if after else []
    leaving = [real_server for real_server in before if real_server not in after]
    if desired.key.protocol != Protocol.TCP:
        serving = frozenset(desired.leaving)
        gone = [one for one in (*leaving, *draining) if one not in after and one not in serving]
        changes += [DeleteRealServer(desired.key, real_server) for real_server in gone]
        leaving = [real_server for real_server in leaving if real_server in serving]
    method = (applied or desired).method
    changes += [SetRealServer(desired.key, real_server, 0, method) for real_server in leaving]
    return Edit(changes, leaving, moved)


def _additions(
    applied: VirtualServer | None,
    desired: VirtualServer,
    before: Mapping[RealServerKey, int],
    after: Mapping[RealServerKey, int],
    draining: Collection[RealServerKey],
    placements: Collection[AddRealServer | DeleteRealServer],
) -> list[IpvsChange]:
    key = desired.key
    changes: list[IpvsChange] = []
    if applied is None:
        changes.append(AddVirtualServer(key, options_of(desired)))
    elif options_of(applied) != options_of(desired):
        changes.append(SetVirtualServer(key, options_of(desired)))
    is_other_way = applied is not None and applied.method != desired.method
    changes += placements
    placed = {change.real_server for change in placements}
    for real_server, weight in after.items():
        if real_server in placed:
            continue
        if real_server not in before and real_server not in draining:
            changes.append(AddRealServer(key, real_server, weight, desired.method))
        elif before.get(real_server) != weight or is_other_way:
            changes.append(SetRealServer(key, real_server, weight, desired.method))
    return changes


ABSENT = frozenset({ENOENT, ESRCH})
"""The errors of a deletion that say that the object did not exist."""


def is_absent(failure: Failure[IpvsChange]) -> bool:
    """Whether a deletion was refused because the object did not exist."""
    return isinstance(failure.change, DeleteVirtualServer | DeleteRealServer) and failure.errno in ABSENT


def is_taken(failure: Failure[IpvsChange]) -> bool:
    """Whether a virtual server was refused because one with this key exists."""
    return isinstance(failure.change, AddVirtualServer) and failure.errno == EEXIST


_EVENTS: dict[type[IpvsChange], str] = {
    AddVirtualServer: "virtual_server.added",
    SetVirtualServer: "virtual_server.edited",
    DeleteVirtualServer: "virtual_server.deleted",
    AddRealServer: "real_server.added",
    SetRealServer: "real_server.weighted",
    DeleteRealServer: "real_server.deleted",
}


def event_of(change: IpvsChange) -> str:
    """The name of the event under which the log reports a change."""
    drains = isinstance(change, SetRealServer) and change.weight == 0
    return "real_server.draining" if drains else _EVENTS[type(change)]


def fields_of(change: IpvsChange) -> dict[str, object]:
    """The log line's fields for a change, in addition to the Service."""
    fields: dict[str, object] = {"virtual_server": str(planned_key(change.key))}
    if isinstance(change, AddRealServer | SetRealServer | DeleteRealServer):
        fields["address"], fields["port"] = change.real_server
        if not isinstance(change, DeleteRealServer):
            fields["weight"] = change.weight
    elif not isinstance(change, DeleteVirtualServer):
        fields |= change.options._asdict()
    return fields


def _weights(real_servers: Iterable[RealServer]) -> dict[RealServerKey, int]:
    return {(address, port): weight for address, port, weight in real_servers}
