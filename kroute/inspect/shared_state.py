"""What must be the same on every node of a cluster, so that nodes can be compared.

Nodes legitimately differ: a node port is on the node's own addresses; with a traffic policy Local, or with topology
hints, each node has its own choice of endpoints. Their virtual servers are compared without real servers, and those on
the node's own addresses not at all. Everything else follows from the same objects, so it is the same, once every agent
has read them.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping

import msgspec

from kroute.inspect.agent_socket import SHARED
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import AddressSet, ServicePlan, VirtualServer, VirtualServerKey
from kroute.planning.catalog import Catalog
from kroute.reconcile.batches import sliced

QUESTION = SHARED
"""The question that an agent answers with a SharedState."""
LOCAL = "Local"


class SharedServer(msgspec.Struct, frozen=True, order=True):
    """A virtual server as every node should plan it.

    `real_servers` are texts ADDRESS:PORT=WEIGHT, sorted; None where nodes choose their own.
    """

    service: str
    protocol: str
    address: str
    port: int
    options: str
    real_servers: tuple[str, ...] | None


class SharedState(msgspec.Struct):
    """All of them, in the order of their Services."""

    virtual_servers: list[SharedServer]


async def shared_state(catalog: Catalog, plans: Mapping[ObjectKey, ServicePlan]) -> SharedState:
    """What this node plans and every other node should. Other tasks run in between."""
    return SharedState(sorted([server async for server in _servers(catalog, plans.values())]))


async def digest(state: SharedState) -> str:
    """A short text that is the same for equal states. Other tasks run in between."""
    import hashlib  # noqa: PLC0415  it loads what OpenSSL has of it; an agent needs it once it is asked

    found = hashlib.sha256()
    async for batch in sliced(state.virtual_servers):
        found.update(msgspec.json.encode(batch))
    return found.hexdigest()[:16]


async def encoded(state: SharedState) -> bytes:
    """The state in JSON. Other tasks run in between."""
    parts = [msgspec.json.encode(batch)[1:-1] async for batch in sliced(state.virtual_servers)]
    return b'{"virtual_servers":[' + b",".join(parts) + b"]}"


async def _servers(catalog: Catalog, plans: Collection[ServicePlan]) -> AsyncIterator[SharedServer]:
    async for batch in sliced(list(plans)):
        for plan in batch:
            service, slices = catalog.objects(plan.key)
            if service is None:
                continue
            is_chosen_here = _local_choice(service, plan, hinted=any(endpoints.has_hints for endpoints in slices))
            for server in plan.virtual_servers:
                if server.key.address not in catalog.node.own:
                    yield _shared(plan, server, chosen_here=is_chosen_here(server.key))


def _shared(plan: ServicePlan, server: VirtualServer, *, chosen_here: bool) -> SharedServer:
    protocol, address, port = server.key
    options = f"{server.scheduler} {server.flags:#x} {server.persistence and tuple(server.persistence)}"
    texts = (f"{real.address}:{real.port}={real.weight}" for real in server.real_servers)
    real_servers = None if chosen_here else tuple(sorted(texts))
    return SharedServer(plan.service_name, protocol.name, address, port, options, real_servers)


def _local_choice(service: Service, plan: ServicePlan, *, hinted: bool) -> Callable[[VirtualServerKey], bool]:
    """Whether this node chooses the real servers of a virtual server by itself: a policy is Local, or there are hints.

    `hinted`: whether endpoints of the Service have topology hints.
    """
    inside = frozenset(service.spec.cluster_ips or ())
    local_inside = service.spec.internal_traffic_policy == LOCAL
    local_sets = {AddressSet.EXTERNAL_LOCAL, AddressSet.NO_LOCAL}
    local_outside = {entry.element for entry in plan.set_entries if entry.set in local_sets}

    def chosen(key: VirtualServerKey) -> bool:
        if hinted or (local_inside and key.address in inside):
            return True
        return (key.address, int(key.protocol), key.port) in local_outside

    return chosen
