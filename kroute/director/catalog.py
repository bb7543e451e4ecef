"""The catalog of a director: the Services that have external IPs, with their slices and the Nodes.

A Node's heartbeat changes nothing that a director reads. Services are affected only if a Node appears, disappears, or
changes its addresses, readiness or exclusion.
"""

from collections.abc import Collection

from kroute.director.plan import (
    DirectorNode,
    TakingTraffic,
    director_node,
    external_frontends,
    planning_director,
)
from kroute.model.kinds import ENDPOINT_SLICES, NODES, SERVICES
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Node, ObjectKey, Service
from kroute.model.plan import ServicePlan
from kroute.model.probes import Probe
from kroute.model.steps import UNITS_A_STEP, Batch, Meter, Steps
from kroute.planning.address_owners import AddressOwners
from kroute.planning.frontends import Frontends
from kroute.planning.service_catalog import ServiceCatalog
from kroute.settings import Settings

UNITS_A_SERVICE = UNITS_A_STEP // 10
"""What is read of a Service takes as long as so many real servers."""

KINDS = (SERVICES, ENDPOINT_SLICES, NODES)
"""The kinds that a director watches."""


class DirectorCatalog(ServiceCatalog):
    """The catalog of a director. `machine` are the facts of its machine."""

    def __init__(self, settings: Settings, machine: NodeFacts) -> None:
        super().__init__(settings, KINDS, AddressOwners())
        self._machine = machine
        self._nodes: dict[ObjectKey, DirectorNode] = {}
        self._taking_traffic = TakingTraffic(())
        self._have_nodes_changed = False
        self._failing: Collection[Probe] = frozenset()
        self._probes: dict[ObjectKey, frozenset[Probe]] = {}
        self._asking: dict[Probe, set[ObjectKey]] = {}
        self._changed_probes: dict[Probe, None] = {}

    @property
    def probes(self) -> Collection[Probe]:
        """The checks that any plan depends on."""
        return self._asking.keys()

    def take_asked(self) -> dict[Probe, frozenset[str]]:
        """The checks whose namespaces have changed since the last call, each with those that ask for it now."""
        changed, self._changed_probes = self._changed_probes, {}
        return {probe: frozenset([service.namespace for service in self._asking.get(probe, ())]) for probe in changed}

    def frontends_of(self, service: Service) -> Frontends:
        return external_frontends(service, self.settings, self._machine, self.owners)

    def place_node(self, key: ObjectKey, node: Node | None) -> None:
        """Store what a director needs of a Node, if it takes traffic; a change affects all Services."""
        super().place_node(key, node)
        taking = director_node(node) if node is not None else None
        if taking == self._nodes.get(key):
            return
        if taking is None:
            del self._nodes[key]
        else:
            self._nodes[key] = taking
        self._have_nodes_changed = True

    def set_machine(self, machine: NodeFacts) -> None:
        """Store what is known now about the director's own machine."""
        if machine != self._machine:
            self._machine = machine
            self.mark_renewing_claims(self.owners.with_external_ips())

    def set_failing(self, failing: Collection[Probe]) -> bool:
        """Store the probes that fail now. Marks the Services whose plans depend on a probe that has changed.

        Returns whether there are any.
        """
        changed = set(self._failing) ^ set(failing)
        self._failing = failing
        affected = [key for probe in changed for key in self._asking.get(probe, ())]
        self.mark_keeping_claims(affected)
        return bool(affected)

    def planning_marked(self) -> Steps[list[ServicePlan]]:
        """Plan what is marked, in steps: with many Nodes and ports, one Service takes long.

        Returns the plans that differ from the previous ones; none before the initial sync is complete. Changes that
        arrive between two steps are planned with the next call, as if they had come later.
        """
        if not self.ready:
            return []
        if self._have_nodes_changed:
            self._have_nodes_changed = False
            self._taking_traffic = TakingTraffic(self._nodes.values())
            self.mark_keeping_claims(self.owners.with_external_ips())
        batch = Batch[ObjectKey, Frontends | None, ServicePlan]((yield from self._taking_marked()))
        while not batch.advance(meter := Meter(UNITS_A_STEP), self._planning):
            yield meter.spent
        return [
            self.keep(plan)
            for plan in batch.made
            if not plan.same_as(self.plans.get(plan.key) or ServicePlan(plan.key))
        ]

    def _taking_marked(self) -> Steps[dict[ObjectKey, Frontends | None]]:
        """Take all marked Services, and those that their renewed claims affect.

        Returns the frontends that were computed for the claims. What is marked meanwhile is planned now, with the
        claims that it has, and again by the next call.
        """
        due: dict[ObjectKey, Frontends | None] = {}
        for key in [key for key, renews_claims in self.marked.items() if renews_claims]:
            self.marked[key] = False
            frontends, moved = self.renew_claims(key)
            due[key] = frontends
            self.mark_keeping_claims(moved)
            yield 1 + (len(frontends.served) if frontends is not None else 0)
        self.mark_keeping_claims(self.claims.take_losers())
        due |= {key: None for key in self.marked if key not in due or self.marked[key]}
        self.marked = {key: True for key, renews_claims in self.marked.items() if renews_claims}
        return due

    def _planning(self, key: ObjectKey, frontends: Frontends | None) -> Steps[ServicePlan]:
        yield UNITS_A_SERVICE
        known = self.services.get(key)
        if known is None:
            self._ask(key, frozenset())
            return ServicePlan(key)
        planned = yield from planning_director(
            known.service,
            self.slices.of(key),
            self._taking_traffic,
            self.settings,
            self.claims.held_by_others(key),
            frontends or known.frontends or self.claimed_frontends(known.service),
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
