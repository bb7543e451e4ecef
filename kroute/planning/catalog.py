"""Join Services with their slices and the node, and plan again the Services that a change affects.

`take` and `set_node` store objects and facts, and mark the affected Services. `plan_marked` plans the marked Services,
or a limited number of them. Each affected Service is planned once, however many changes come between two calls. Nothing
here awaits, and only one thread uses it. Only the fields that planning reads are kept, and equal parts are shared.
"""

import time
from collections import deque
from collections.abc import Callable
from itertools import islice

import msgspec

from kroute.model.addresses import family_of
from kroute.model.kinds import PODS, of_services
from kroute.model.node_facts import ApiFacts, NodeFacts, NodeInterfaces, changed_families, node_facts
from kroute.model.objects import (
    EndpointSlice,
    Node,
    ObjectKey,
    Pod,
    Service,
)
from kroute.model.plan import NodePlan, Plan, ServicePlan, VirtualServerKey
from kroute.model.steps import Batch, Meter, Steps
from kroute.planning.address_owners import AddressOwners, has_family, has_node_ports
from kroute.planning.backend_slices import BackendSlice
from kroute.planning.endpoint_reasons import ServiceView, viewing_service
from kroute.planning.features import unknown_annotations
from kroute.planning.frontends import Frontends, frontends_of
from kroute.planning.plan_node import node_problems, plan_node
from kroute.planning.plan_service import planning, scheduling_of
from kroute.planning.service_catalog import ServiceCatalog
from kroute.planning.weight_facts import WeightSources
from kroute.settings import Settings


class Catalog(ServiceCatalog):
    """The catalog of a node.

    `node` holds the facts that are known before the Node object is seen. `clock` gives seconds.
    """

    def __init__(self, settings: Settings, node: NodeFacts, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings, of_services(settings), AddressOwners(shared=settings.direct_return))
        self._own = _OwnNode(settings, node)
        self._weights = WeightSources(clock)
        self._batch: Batch[ObjectKey, Frontends | None, ServicePlan | None] | None = None

    @property
    def has_marked(self) -> bool:
        """Whether the node or a Service is to be planned now."""
        return bool(self._own.is_marked or self.marked or self._weights.has_affected or self._batch is not None)

    def due_in(self) -> float | None:
        """In how many seconds a Service is to be planned even if no change arrives; None: there is none."""
        return self._weights.due_in()

    @property
    def node(self) -> NodeFacts:
        return self._own.facts

    def explaining(self, key: ObjectKey) -> Steps[ServiceView | None]:
        """Explain a Service's plan, or return None if no Service of that name exists."""
        service, slices = self.objects(key)
        if service is None:
            return None
        node, settings = self.node, self.settings
        frontends = self.frontends_of(service)
        held, plan = self.claims.held_by_others(key), self.plans.get(key) or ServicePlan(key)
        facts = yield from self._weights.facts(key, slices, settings.max_backends)
        scheduling = yield from scheduling_of(service, slices, node, settings, facts)
        return (yield from viewing_service(service, slices, node, frontends.served, held, plan, scheduling))

    def objects(self, key: ObjectKey) -> tuple[Service | None, tuple[BackendSlice, ...]]:
        """The Service of this name, or None, and its slices as planning reads them."""
        known = self.services.get(key)
        return known.service if known is not None else None, self.slices.of(key)

    def holder_of(self, key: VirtualServerKey) -> ObjectKey | None:
        """The Service that has this address and port, or None."""
        return self.claims.holder(key)

    def set_interfaces(self, interfaces: NodeInterfaces) -> None:
        """Store the addresses of the node's interfaces.

        A family that has lost its last address keeps the address that it had: the family is served also between the end
        of one DHCP lease and the beginning of the next.
        """
        default = {family_of(address): address for address in (*self.node.interfaces.default, *interfaces.default)}
        interfaces = interfaces._replace(default=tuple(default.values()))
        self.set_node(node_facts(self.settings, self._own.item, interfaces, self.node.api))

    def set_api(self, api: ApiFacts) -> None:
        """Store the facts that are known from the way to the API."""
        self.set_node(node_facts(self.settings, self._own.item, self.node.interfaces, api))

    def set_node(self, node: NodeFacts) -> None:
        """Plan for these facts from now on. Marks the Services that the change affects."""
        before, self._own.facts = self._own.facts, node
        if node == before:
            return
        self._own.is_marked = True
        families = changed_families(before, node)
        if before.node_port_addresses != node.node_port_addresses:
            self.mark_renewing_claims(key for key, known in self.services.items() if has_node_ports(known.service))
        for family in families:
            self.mark_renewing_claims(key for key, known in self.services.items() if has_family(known.service, family))
        if families or (before.pod_cidrs, before.api.service_ranges) != (node.pod_cidrs, node.api.service_ranges):
            self.mark_renewing_claims(self.owners.with_external_ips())  # their family may differ from the ClusterIPs'
        self.mark_renewing_claims(self.owners.naming((before.own ^ node.own) | (before.needed ^ node.needed)))
        self.mark_renewing_claims(self.owners.having((before.own ^ node.own) | (before.of_kernel ^ node.of_kernel)))
        if before.zone != node.zone:
            self.mark_keeping_claims(self.slices.with_hints())

    def plan_marked(self, limit: int | None = None, work: int | None = None) -> list[Plan]:
        """Plan what is marked.

        Returns the plans that differ from the previous ones; a deleted Service gets an empty plan.

        The node's plan comes first. With a `limit`, only that many Services are planned, the ones that have waited
        longest; `has_marked` says whether more are left. Services between which an address moves are planned
        together, beyond the limit if need be, so that no controller sees the address without an owner. With `work`,
        planning stops after about that many units (virtual servers, real servers, set entries), and the next call
        continues; the plans of the Services are returned when all of them are made.

        Returns nothing before the initial sync is complete: a plan with half of the endpoints would remove the other
        half from the kernel.
        """
        if not self.ready:
            return []
        if self._weights.has_affected:
            self.mark_keeping_claims(self._weights.take_affected(self.slices.by_service))
        meter = Meter(work)
        plans: list[Plan] = []
        if self._own.is_marked and (own := self._own.newest_plan(self.generation + 1)) is not None:
            self.generation += 1
            plans.append(own)
        if self._batch is None:
            self._batch = Batch(self._take_marked(limit, meter))
        if not self._batch.advance(meter, self._planning):
            return plans
        made, self._batch = self._batch.made, None
        return [*plans, *[self.keep(plan) for plan in made if plan is not None]]

    def frontends_of(self, service: Service) -> Frontends:
        return frontends_of(service, self.node, self.settings, self.owners)

    def place_service(self, key: ObjectKey, service: Service | None) -> None:
        super().place_service(key, service)
        self._weights.place_service(key, service)

    def place_slice(self, key: ObjectKey, piece: EndpointSlice | None) -> None:
        super().place_slice(key, piece)
        if self.settings.pod_weights:
            self._weights.place_slice(key, *self.slices.named(key))

    def place_node(self, key: ObjectKey, node: Node | None) -> None:
        """Store a Node. When the Node object of this node is deleted, the node's facts stay as they are."""
        super().place_node(key, node)
        self._weights.place_node(key.name, node)
        if node is not None and key.name == self.settings.node_name:
            self._own.item, self._own.is_marked = node, True  # a problem of its annotations may be gone
            self.set_node(node_facts(self.settings, node, self.node.interfaces, self.node.api))

    def place_pod(self, key: ObjectKey, pod: Pod | None) -> None:
        if self.settings.pod_weights:  # else all Pods may come, for NetworkPolicies
            self._weights.place_pod(key, pod if pod is not None and PODS.selects(pod) else None)

    def _take_marked(self, limit: int | None, meter: Meter) -> dict[ObjectKey, Frontends | None]:
        """Take marked Services, oldest mark first, and renew their claims.

        Returns the frontends that were computed for the claims, or None where none were computed. A Service that an
        address moves to or from is taken as well. A Service that does not get an address, and whose plan only has to
        name another holder, waits until all others are planned: many may claim one address.
        """
        keys = deque(islice(self.marked, limit))
        movers: set[ObjectKey] = set()
        due: dict[ObjectKey, Frontends | None] = {}
        while movers or (keys and not (due and meter.spent >= meter.limit)):
            key = movers.pop() if movers else keys.popleft()
            renews_claims = self.marked.pop(key, False)
            due.setdefault(key, None)
            meter.spent += 1
            if renews_claims:
                frontends, moved = self.renew_claims(key)
                due[key] = frontends
                meter.spent += len(frontends.served) if frontends is not None else 0
                movers |= moved - due.keys()
        if not self.marked:
            losers = self.claims.take_losers() - due.keys()
            due.update(dict.fromkeys(losers if limit is None else ()))
            # A new dict: one that was large stays slow to iterate over.
            self.marked = dict.fromkeys(losers if limit is not None else (), False)
        return due

    def _planning(self, key: ObjectKey, frontends: Frontends | None) -> Steps[ServicePlan | None]:
        """Plan a Service. The result is None if the plan equals the previous one."""
        plan = yield from self._newest(key, frontends)
        before = self.plans.get(key)
        if before is None:
            return None if plan.is_empty else plan
        yield sum([len(server.real_servers) for server in plan.virtual_servers]) // 4 + len(plan.set_entries) // 4
        return None if plan.same_as(before) else plan.sharing_parts_of(before)

    def _newest(self, key: ObjectKey, frontends: Frontends | None) -> Steps[ServicePlan]:
        known, slices = self.services.get(key), self.slices.of(key)
        if known is None:
            return ServicePlan(key)
        service, node, settings = known.service, self._own.facts, self.settings
        held = self.claims.held_by_others(key)
        frontends = frontends or known.frontends or self.claimed_frontends(service)
        facts = yield from self._weights.facts(key, slices, settings.max_backends)
        return (yield from planning(service, slices, node, settings, held, frontends, facts, self.owners))


class _OwnNode:
    """What is known about this node, and its plan."""

    def __init__(self, settings: Settings, facts: NodeFacts) -> None:
        self.facts = facts
        self.item: Node | None = None
        self.is_marked = True
        self._settings = settings
        self._plan: NodePlan | None = None

    def newest_plan(self, generation: int) -> NodePlan | None:
        """Plan the node; returns its plan if that differs from the previous one."""
        self.is_marked = False
        annotations = self.item.metadata.annotations if self.item is not None else None
        problems = [*node_problems(self.item, self._settings), *unknown_annotations(annotations, "Node")]
        plan = plan_node(self._settings, self.facts, problems)
        if self._plan is not None:
            if plan.same_as(self._plan):
                return None
            plan = plan.sharing_parts_of(self._plan)
        self._plan = msgspec.structs.replace(plan, generation=generation)
        return self._plan
