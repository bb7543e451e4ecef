"""What the agent knows of a Service, or of an address and port, as its socket answers."""

from collections.abc import Iterable

import msgspec

from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey
from kroute.model.plan import Plan, Protocol, ServicePlan, SetEntry, Vip, VirtualServer, VirtualServerKey
from kroute.planning.catalog import Catalog
from kroute.planning.endpoint_reasons import ServiceView
from kroute.reconcile.batches import in_turns
from kroute.reconcile.broadcaster import Broadcaster

SERVICE, FRONTEND = "service", "frontend"
"""The questions: `service NAMESPACE/NAME`, and `frontend PROTOCOL ADDRESS PORT`."""


class PlannedState(msgspec.Struct):
    """The planned state. `service` is empty if no Service has the address and port of the question.

    `direct_vips` are on no link, since pods answer from them. `learned` says what routers learn of addresses, if any is
    announced. `entries` are those of the Service, of the node, and of every Service with the same VIP: the rules may
    look up any of them.
    """

    node: NodeFacts
    service: str
    view: ServiceView | None
    virtual_servers: list[VirtualServer]
    vips: list[Vip]
    entries: list[SetEntry]
    problems: list[str]
    direct_vips: list[str] = []
    learned: dict[str, str] = {}


def decode(answer: bytes) -> PlannedState | None:
    """The agent's answer, or None if the Service does not exist.

    Raises DecodeError for the answer of another version.
    """
    return msgspec.json.decode(answer, type=PlannedState | None)


def question_about(key: VirtualServerKey) -> str:
    """The question for an address and port."""
    return f"{FRONTEND} {key.protocol.name} {key.address} {key.port}"


async def of_service(catalog: Catalog, broadcaster: Broadcaster, key: ObjectKey) -> PlannedState | None:
    """The planned state of a Service, or None if no Service of that name exists."""
    view = await in_turns(catalog.explaining(key))
    if view is None:
        return None
    plan = broadcaster.services.get(key) or ServicePlan(key)
    return _planned_state(catalog, view, plan, [plan], list(plan.vips))


async def of_frontend(catalog: Catalog, broadcaster: Broadcaster, key: VirtualServerKey) -> PlannedState:
    """The planned state of an address and port."""
    holder = catalog.holder_of(key)
    view = await in_turns(catalog.explaining(holder)) if holder is not None else None
    plan = broadcaster.services.get(holder) if holder is not None else None
    services = broadcaster.services.values()
    sharing = [(other, vip) for other in services for vip in other.vips if vip.address == key.address]
    plans: list[Plan | None] = [plan, broadcaster.node, *(other for other, _ in sharing)]
    return _planned_state(catalog, view, plan, filter(None, plans), [vip for _, vip in sharing])


def _planned_state(
    catalog: Catalog, view: ServiceView | None, plan: ServicePlan | None, plans: Iterable[Plan], vips: list[Vip]
) -> PlannedState:
    """`plan` is that of the Service, if there is one. `plans` are those whose set entries the rules may look up."""
    entries = dict.fromkeys(entry for each in plans for entry in each.set_entries)
    return PlannedState(
        catalog.node,
        str(plan.key) if plan else "",
        view,
        list(plan.virtual_servers) if plan else [],
        vips,
        list(entries),
        [f"{problem.reason}: {problem.message}" for problem in plan.problems] if plan else [],
        list(plan.direct_vips) if plan else [],
    )


def read_key(text: str) -> VirtualServerKey:
    """Read `PROTOCOL ADDRESS PORT`. Raises ValueError."""
    protocol, address, port = text.split()
    try:
        return VirtualServerKey(Protocol[protocol], address, int(port))
    except KeyError:
        raise ValueError(f"{protocol} is not a protocol of Services") from None
