"""The base of the catalogs of a node and of a director: joins Services with their slices and the Nodes, and marks the
Services that a change affects.

Nothing here awaits, and only one thread uses it. Only the fields that planning reads are kept, and equal parts are
shared.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, assert_never

import msgspec

from kroute.model.kinds import InitialSync, WatchedKind
from kroute.model.objects import (
    Applied,
    Change,
    ClusterNetworkPolicy,
    Deleted,
    EndpointSlice,
    KubernetesObject,
    Listed,
    Namespace,
    NetworkPolicy,
    Node,
    ObjectKey,
    Pod,
    Service,
)
from kroute.model.plan import ServicePlan
from kroute.planning.address_conflicts import AddressClaims, Claimant, ranked
from kroute.planning.address_owners import API_SERVER, AddressOwners
from kroute.planning.backend_slices import SlicesOfServices, addresses_of
from kroute.planning.frontends import Frontends
from kroute.planning.interning import interned
from kroute.settings import Settings


class KnownService(msgspec.Struct):
    """A Service, and the frontends for which its claims were last settled; None: it has changed since."""

    service: Service
    frontends: Frontends | None = None


class ServiceCatalog(ABC):
    """The objects that exist, and the newest plan of each Service that has one."""

    def __init__(self, settings: Settings, kinds: Iterable[WatchedKind], owners: AddressOwners) -> None:
        self.settings = settings
        self.services: dict[ObjectKey, KnownService] = {}
        self.slices = SlicesOfServices(with_pods=settings.pod_weights)
        self.owners = owners
        self.claims = AddressClaims()
        self.plans: dict[ObjectKey, ServicePlan] = {}
        self.generation = 0
        self.marked: dict[ObjectKey, bool] = {}
        """The Services to plan, in the order of their marking. The value is whether the Service's claims may have
        changed."""
        self._initial_sync = InitialSync(kinds)
        self._places: dict[type[KubernetesObject], Callable[[ObjectKey, Any], None]] = {
            Service: self.place_service,
            EndpointSlice: self.place_slice,
            Node: self.place_node,
            Pod: self.place_pod,
            Namespace: _of_policies,
            NetworkPolicy: _of_policies,
            ClusterNetworkPolicy: _of_policies,
        }

    @property
    def ready(self) -> bool:
        """Whether the initial sync is complete, so that plans are complete."""
        return self._initial_sync.is_complete

    def uid_of(self, key: ObjectKey) -> str:
        """The uid of a Service; empty if no Service of that name exists."""
        known = self.services.get(key)
        return known.service.metadata.uid if known is not None else ""

    def take(self, changes: Iterable[Change]) -> None:
        """Store what the watchers saw, in order. Plans nothing."""
        for change in changes:
            match change:
                case Listed(kind):
                    self._initial_sync.listed(kind)
                case Applied(item):
                    self._places[type(item)](item.key, item)
                case Deleted(kind, key):
                    self._places[kind](key, None)
                case _:
                    assert_never(change)

    @abstractmethod
    def frontends_of(self, service: Service) -> Frontends:
        """The frontends that the Service wants."""

    def place_node(self, key: ObjectKey, node: Node | None) -> None:
        """Store what planning needs of a Node, and mark all that this affects; None: it was deleted."""
        self.mark_renewing_claims(self.owners.place_node(key.name, node))

    def place_pod(self, key: ObjectKey, pod: Pod | None) -> None:  # noqa: B027  not every catalog needs Pods
        """Store what planning needs of a Pod; None: it was deleted."""

    def place_service(self, key: ObjectKey, service: Service | None) -> None:
        """Store a Service, and mark all that this affects; None: it was deleted."""
        if service is not None:
            self.services[key] = KnownService(interned(service))
        elif self.services.pop(key, None) is None:
            return
        self.mark_renewing_claims([key, *self.owners.place_service(key, service)])

    def place_slice(self, key: ObjectKey, piece: EndpointSlice | None) -> None:
        """Put a slice under the Service that it names, and mark all that this affects; None: it was deleted."""
        for service in self.slices.place(key, piece):
            if service == API_SERVER:
                self.mark_renewing_claims(self.owners.place_api_servers(addresses_of(self.slices.of(service))))
            self.mark_keeping_claims([service])

    def mark_renewing_claims(self, keys: Iterable[ObjectKey]) -> None:
        """Mark these Services to be planned, with claims that may have changed."""
        for key in keys:
            self.marked[key] = True

    def mark_keeping_claims(self, keys: Iterable[ObjectKey]) -> None:
        """Mark these Services to be planned, with the claims that they have."""
        for key in keys:
            self.marked.setdefault(key, False)

    def renew_claims(self, key: ObjectKey) -> tuple[Frontends | None, set[ObjectKey]]:
        """Renew the claims of a Service. Returns its frontends, and the Services that an address moves to or from."""
        known = self.services.get(key)
        if known is None:
            return None, self.claims.withdraw(key)
        known.frontends = self.frontends_of(known.service)
        moved = self.claims.claim(Claimant.of(key, known.service), ranked(known.service, known.frontends.served))
        return known.frontends, moved

    def claimed_frontends(self, service: Service) -> Frontends:
        """The frontends of a Service that has changed since its claims were renewed, as far as it has claimed them."""
        return self.claims.claimed(service.key, self.frontends_of(service))

    def keep(self, plan: ServicePlan) -> ServicePlan:
        """Give the plan its generation and store it."""
        self.generation += 1
        plan = msgspec.structs.replace(plan, generation=self.generation)
        if plan.is_empty:
            del self.plans[plan.key]
        else:
            self.plans[plan.key] = plan
        return plan


def _of_policies(_key: ObjectKey, _item: KubernetesObject | None) -> None:
    """Nothing: `kroute.planning.policies` has what only network policies need."""
