"""Join the Services that have external IPs with their slices and the Nodes, and plan again those that a change affects.

It works like `kroute.planning.catalog`: `take` stores and marks, `commit` plans what is marked. A Node's heartbeat
changes nothing that a director reads. Services are affected only if a Node appears, disappears, or changes its
addresses, readiness or exclusion.
"""

from collections.abc import Collection, Iterable

import msgspec

from kroute.director.plan import (
    DirectorNode,
    TakingTraffic,
    director_node,
    external_frontends,
    planning_director,
)
from kroute.model.kinds import ENDPOINT_SLICES, NODES, SERVICES, InitialSync
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import (
    Applied,
    Change,
    Deleted,
    EndpointSlice,
    Listed,
    Node,
    ObjectKey,
    Service,
)
from kroute.model.plan import ServicePlan
from kroute.model.probes import Probe
from kroute.model.steps import UNITS_A_STEP, Batch, Meter, Steps, finish
from kroute.planning.address_conflicts import AddressClaims, Claimant, ranked
from kroute.planning.address_owners import API_SERVER, AddressOwners
from kroute.planning.backend_slices import SlicesOfServices, addresses_of
from kroute.planning.frontends import Frontends
from kroute.settings import Settings

UNITS_A_SERVICE = UNITS_A_STEP // 10
"""What is read of a Service takes as long as so many real servers."""

KINDS = (SERVICES, ENDPOINT_SLICES, NODES)
"""The kinds that a director watches."""


class DirectorCatalog:
    """The objects that exist, and the newest plan of each Service. `machine` are the facts of this machine."""

    def __init__(self, settings: Settings, machine: NodeFacts) -> None:
        self._settings = settings
        self._machine = machine
        self._initial_sync = InitialSync(KINDS)
        self._services: dict[ObjectKey, Service] = {}
        self._slices = SlicesOfServices()
        self._nodes: dict[ObjectKey, DirectorNode] = {}
        self._taking_traffic = TakingTraffic(())
        self._have_nodes_changed = False
        self._owners = AddressOwners()
        self._claims = AddressClaims()
        self._failing: Collection[Probe] = frozenset()
        self._plans: dict[ObjectKey, ServicePlan] = {}
        self._probes: dict[ObjectKey, frozenset[Probe]] = {}
        self._asking: dict[Probe, set[ObjectKey]] = {}
        self._changed_probes: dict[Probe, None] = {}
        self._generation = 0
        self._dirty: dict[ObjectKey, None] = {}
        self._claims_dirty: dict[ObjectKey, None] = {}

    @property
    def ready(self) -> bool:
        """Whether the initial sync is complete, so that plans are complete."""
        return self._initial_sync.is_complete

    @property
    def probes(self) -> Collection[Probe]:
        """The checks that any plan depends on."""
        return self._asking.keys()

    def take_asked(self) -> dict[Probe, frozenset[str]]:
        """The checks whose namespaces have changed since the last call, each with those that ask for it now."""
        changed, self._changed_probes = self._changed_probes, {}
        return {probe: frozenset([service.namespace for service in self._asking.get(probe, ())]) for probe in changed}

    @property
    def current(self) -> list[ServicePlan]:
        """The newest plans that are not empty."""
        return list(self._plans.values())

    def uid_of(self, key: ObjectKey) -> str:
        """The uid of a Service; empty if no Service of that name exists."""
        service = self._services.get(key)
        return service.metadata.uid if service is not None else ""

    def take(self, changes: Iterable[Change]) -> None:
        """Store what the watchers saw, in order. Plans nothing."""
        for change in changes:
            match change:
                case Listed(kind):
                    self._initial_sync.listed(kind)
                case Applied(Service() as service):
                    self._services[service.key] = service
                    self._mark(service.key, *self._owners.place_service(service.key, service))
                case Applied(EndpointSlice() as piece):
                    self._place_slice(piece.key, piece)
                case Applied(Node() as node):
                    self._mark(*self._owners.place_node(node))
                    self._place_node(node.key, director_node(node))
                case Deleted(kind, key) if kind is Service:
                    self._services.pop(key, None)
                    self._mark(key, *self._owners.forget_service(key))
                case Deleted(kind, key) if kind is EndpointSlice:
                    self._place_slice(key, None)
                case Deleted(kind, key) if kind is Node:
                    self._mark(*self._owners.forget_node(key.name))
                    self._place_node(key, None)

    def set_machine(self, machine: NodeFacts) -> None:
        """Store what is known now about the director's own machine."""
        if machine != self._machine:
            self._machine = machine
            self._mark(*self._owners.with_external_ips())

    def set_failing(self, failing: Collection[Probe]) -> bool:
        """Store the probes that fail now. Marks the Services whose plans depend on a probe that has changed.

        Returns whether there are any.
        """
        changed = set(self._failing) ^ set(failing)
        self._failing = failing
        affected = [key for probe in changed for key in self._asking.get(probe, ())]
        self._dirty.update(dict.fromkeys(affected))
        return bool(affected)

    def commit(self) -> list[ServicePlan]:
        """Plan what is marked.

        Returns the plans that differ from the previous ones; none before the initial sync is complete.
        """
        return finish(self.committing())

    def committing(self) -> Steps[list[ServicePlan]]:
        """As `commit`, in steps: with many Nodes and ports, one Service takes long.

        Changes that arrive between two steps are planned with the next call, as if they had come later.
        """
        if not self.ready:
            return []
        if self._have_nodes_changed:
            self._have_nodes_changed = False
            self._taking_traffic = TakingTraffic(self._nodes.values())
            self._dirty.update(dict.fromkeys(self._owners.with_external_ips()))
        frontends = yield from self._settling_claims()
        batch = Batch[ObjectKey, Frontends | None, ServicePlan]({key: frontends.get(key) for key in self._dirty})
        self._dirty.clear()
        while not batch.advance(meter := Meter(UNITS_A_STEP), self._planning):
            yield meter.spent
        return [
            self._keep(plan)
            for plan in batch.made
            if not plan.same_as(self._plans.get(plan.key) or ServicePlan(plan.key))
        ]

    def _mark(self, *keys: ObjectKey) -> None:
        """Plan these Services again, and renew their claims."""
        for key in keys:
            self._dirty[key] = None
            self._claims_dirty[key] = None

    def _place_node(self, key: ObjectKey, node: DirectorNode | None) -> None:
        """Store what a director needs of a Node (None: it takes no traffic); a change marks all Services."""
        if node == self._nodes.get(key):
            return
        if node is None:
            del self._nodes[key]
        else:
            self._nodes[key] = node
        self._have_nodes_changed = True

    def _place_slice(self, key: ObjectKey, piece: EndpointSlice | None) -> None:
        """Put a slice under the Service that it names, and mark all that this affects."""
        for service in self._slices.place(key, piece):
            self._dirty[service] = None
            if service == API_SERVER:
                self._mark(*self._owners.place_api_servers(addresses_of(self._slices.of(service))))

    def _settling_claims(self) -> Steps[dict[ObjectKey, Frontends]]:
        """Renew the claims of the marked Services, and mark the Services that this affects.

        Returns the computed frontends.
        """
        renewed: dict[ObjectKey, Frontends] = {}
        due, self._claims_dirty = self._claims_dirty, {}
        for key in due:
            service = self._services.get(key)
            if service is None:
                affected = self._claims.withdraw(key)
            else:
                renewed[key] = external_frontends(service, self._settings, self._machine, self._owners)
                affected = self._claims.claim(Claimant.of(key, service), ranked(service, renewed[key].served))
                yield 1 + len(renewed[key].served)
            self._dirty.update(dict.fromkeys(affected))
        self._dirty.update(dict.fromkeys(self._claims.take_losers()))
        return renewed

    def _planning(self, key: ObjectKey, frontends: Frontends | None) -> Steps[ServicePlan]:
        yield UNITS_A_SERVICE
        service = self._services.get(key)
        if service is None:
            self._ask(key, frozenset())
            return ServicePlan(key)
        planned = yield from planning_director(
            service,
            self._slices.of(key),
            self._taking_traffic,
            self._settings,
            self._claims.held_by_others(key),
            frontends or self._frontends(service),
            self._failing,
        )
        self._ask(key, planned.probes)
        return planned.plan

    def _ask(self, key: ObjectKey, probes: frozenset[Probe]) -> None:
        """Note the checks that the plan of a Service depends on."""
        before = self._probes.get(key, frozenset())
        for probe in before - probes:
            self._asking[probe].discard(key)
            if not self._asking[probe]:
                del self._asking[probe]
        for probe in probes - before:
            self._asking.setdefault(probe, set()).add(key)
        self._changed_probes.update(dict.fromkeys(before ^ probes))
        if probes:
            self._probes[key] = probes
        else:
            self._probes.pop(key, None)

    def _frontends(self, service: Service) -> Frontends:
        """The Service's frontends, as far as it has claimed them: it may have changed since."""
        found = external_frontends(service, self._settings, self._machine, self._owners)
        return self._claims.claimed(service.key, found)

    def _keep(self, plan: ServicePlan) -> ServicePlan:
        """Give the plan its generation and store it."""
        self._generation += 1
        plan = msgspec.structs.replace(plan, generation=self._generation)
        if plan.is_empty:
            del self._plans[plan.key]
        else:
            self._plans[plan.key] = plan
        return plan
