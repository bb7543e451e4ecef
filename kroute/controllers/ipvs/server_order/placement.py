"""Pure functions that put the real servers of schedulers that go by their order into the plan's order.

The kernel puts a new real server in front of the others, and nothing moves one but its deletion and addition. So a
newcomer in the plan's middle costs two messages for each real server behind it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias

from kroute.comparison.forwarding import method_of
from kroute.comparison.virtual_servers import in_order_of_addition, options_of
from kroute.kernel.ipvs.client import AddRealServer, DeleteRealServer, IpvsChange, RealServerKey, RealServerState
from kroute.kernel.ipvs.client import VirtualServerKey as KernelKey
from kroute.model.plan import VirtualServer
from kroute.schedulers import SCHEDULERS_BY_ORDER

There: TypeAlias = Mapping[RealServerKey, RealServerState]
"""The real servers of a virtual server, as the kernel lists them: the newest first."""

Endpoint: TypeAlias = tuple[KernelKey, RealServerKey]
"""A virtual server, and a real server of it."""


def without_moves(changes: Sequence[IpvsChange]) -> Sequence[IpvsChange]:
    """The changes that are more than the move of a real server in its list."""
    moved = moved_in(changes)
    return [it for it in changes if endpoint_of(it) not in moved] if moved else changes


def moves_in(changes: Sequence[IpvsChange]) -> Counter[KernelKey]:
    """How many real servers of each virtual server are moved in its list."""
    return Counter(key for key, _ in moved_in(changes))


def moved_in(changes: Sequence[IpvsChange]) -> Set[Endpoint]:
    """The real servers that are deleted and added again."""
    if DeleteRealServer not in map(type, changes):
        return set()
    deleted = {(it.key, it.real_server) for it in changes if isinstance(it, DeleteRealServer)}
    return deleted and deleted & {(it.key, it.real_server) for it in changes if isinstance(it, AddRealServer)}


def endpoint_of(change: IpvsChange) -> Endpoint | None:
    """The real server that a change adds or deletes."""
    return (change.key, change.real_server) if isinstance(change, AddRealServer | DeleteRealServer) else None


def may_be_out_of_order(applied: VirtualServer | None, desired: VirtualServer) -> bool:
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
        changes.append(AddRealServer(desired.key, real_server, weight, method_of(desired)))
    return changes
