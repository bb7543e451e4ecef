"""Join Services with their slices and the node, and plan again what a change touches.

`take` and `set_node` keep what they are given and mark what it touches; `commit` plans what is marked. Any number of
changes may lie between two commits: each Service they touch is planned once. Nothing here awaits or is shared between
threads. Objects are kept as they were decoded; the catalog adds indexes by key, no copies.
"""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from kroute.planning.address_owners import AddressOwners
from kroute.planning.addresses import canonical, family_of
from kroute.planning.claims import Claimant, Claims
from kroute.planning.endpoints import has_hints
from kroute.planning.frontends import Frontends, frontends_of
from kroute.planning.node_facts import NodeFacts, NodeInterfaces, node_facts
from kroute.planning.objects import (
    HEADLESS_LABEL,
    Applied,
    Change,
    Deleted,
    EndpointSlice,
    KubernetesObject,
    Listed,
    Node,
    ObjectKey,
    Service,
)
from kroute.planning.plan import ServicePlan
from kroute.planning.plan_node import plan_node
from kroute.planning.plan_service import plan_service
from kroute.planning.service_addresses import cluster_ips, external_ips, has_node_ports
from kroute.settings import Settings

_KINDS: frozenset[type[KubernetesObject]] = frozenset({Service, EndpointSlice, Node})
_PROBES = {"IPv4": "0.0.0.0", "IPv6": "::"}


class Catalog:
    """What exists, and the newest plan of each Service.

    `node` is what is known of the node before its Node object is seen.
    """

    def __init__(self, settings: Settings, node: NodeFacts) -> None:
        self._settings = settings
        self._node = node
        self._interfaces = NodeInterfaces(node.own, tuple(filter(None, (node.ipv4, node.ipv6))))
        self._node_object: Node | None = None
        self._awaited = set(_KINDS)
        self._services: dict[ObjectKey, Service] = {}
        self._slices: dict[ObjectKey, dict[ObjectKey, EndpointSlice]] = {}
        self._service_of_slice: dict[ObjectKey, ObjectKey] = {}
        self._claims = Claims()
        self._owners = AddressOwners()
        self._plans: dict[ObjectKey, ServicePlan] = {}
        self._generation = 0
        self._dirty: dict[ObjectKey, None] = {}
        self._claims_dirty: dict[ObjectKey, None] = {}

    @property
    def ready(self) -> bool:
        """Whether Services, EndpointSlices and the Node have each been listed once, so that plans are whole."""
        return not self._awaited

    @property
    def awaited(self) -> list[str]:
        """The kinds that have not been listed yet."""
        return sorted(kind.__name__ for kind in self._awaited)

    @property
    def node(self) -> NodeFacts:
        """The node that plans are made for."""
        return self._node

    def take(self, changes: Iterable[Change]) -> None:
        """Take what the watchers saw, in order. Nothing is planned yet."""
        for change in changes:
            match change:
                case Listed(kind):
                    self._awaited.discard(kind)
                case Applied(item):
                    self._apply(item)
                case Deleted(kind, key):
                    self._delete(kind, key)
                case _:
                    assert_never(change)

    def uid_of(self, key: ObjectKey) -> str:
        """The uid of a Service; empty when there is none of that name (any more)."""
        service = self._services.get(key)
        return service.metadata.uid if service is not None else ""

    def set_interfaces(self, interfaces: NodeInterfaces) -> None:
        """Take what the node's interfaces say now.

        A family that has lost its last address keeps the one it had: between the end of one DHCP lease and the
        beginning of the next is no time to stop serving a family.
        """
        default = {family_of(address): address for address in (*self._interfaces.default, *interfaces.default)}
        self._interfaces = NodeInterfaces(interfaces.own, tuple(default.values()))
        self.set_node(node_facts(self._settings, self._node_object, self._interfaces))

    def set_node(self, node: NodeFacts) -> None:
        """Plan for these facts from now on. Marks the Services to which the difference matters."""
        before, self._node = self._node, node
        if node == before:
            return
        families = {family for family, probe in _PROBES.items() if _as_source(before, probe) != _as_source(node, probe)}
        moved = before.own ^ node.own
        node_ports_moved = before.node_port_addresses != node.node_port_addresses
        for key, service in self._services.items():
            if (
                any(family_of(address) in families for address in cluster_ips(service))
                or (node_ports_moved and has_node_ports(service))
                or not moved.isdisjoint(map(canonical, external_ips(service)))
                or (before.pod_cidrs != node.pod_cidrs and external_ips(service))
            ):
                self._mark(key)
        if before.zone != node.zone:
            self._dirty.update(
                dict.fromkeys(key for key, slices in self._slices.items() if any(map(has_hints, slices.values())))
            )

    def commit(self) -> list[ServicePlan]:
        """Plan what is marked; return the plans that differ from those before, an empty one for a Service that went.

        The node's own plan is the first, if it is among them.

        Before the catalog is ready there is nothing to return: half of the endpoints would be a plan to drop the rest.
        """
        if not self.ready:
            return []
        frontends = self._settle_claims()
        plans = [plan_node(self._settings, self._node, is_known=self._node_object is not None)]
        plans += [self._plan(key, frontends.pop(key, None)) for key in self._dirty]
        self._dirty.clear()
        return [
            self._keep(plan) for plan in plans if not plan.same_as(self._plans.get(plan.key) or ServicePlan(plan.key))
        ]

    def _keep(self, plan: ServicePlan) -> ServicePlan:
        """Give the plan its generation, and remember it."""
        self._generation += 1
        plan = msgspec.structs.replace(plan, generation=self._generation)
        if plan.is_empty:
            del self._plans[plan.key]
        else:
            self._plans[plan.key] = plan
        return plan

    def _mark(self, *keys: ObjectKey) -> None:
        """Plan these Services again; what they claim may have changed, too."""
        for key in keys:
            self._dirty[key] = None
            self._claims_dirty[key] = None

    def _apply(self, item: KubernetesObject) -> None:
        match item:
            case Service():
                self._services[item.key] = item
                self._mark(item.key, *self._owners.place_service(item))
            case EndpointSlice():
                self._place_slice(item.key, item)
            case Node():
                self._mark(*self._owners.place_node(item))
                if item.key.name == self._settings.node_name:
                    self._node_object = item
                    self.set_node(node_facts(self._settings, item, self._interfaces))
            case _:
                assert_never(item)

    def _delete(self, kind: type[KubernetesObject], key: ObjectKey) -> None:
        """Forget an object. A Node object that goes leaves the node's addresses what they were, so they are kept."""
        if kind is Service and self._services.pop(key, None) is not None:
            self._mark(key, *self._owners.forget_service(key))
        elif kind is EndpointSlice:
            self._place_slice(key, None)
        elif kind is Node:
            self._mark(*self._owners.forget_node(key.name))

    def _place_slice(self, key: ObjectKey, piece: EndpointSlice | None) -> None:
        """Put a slice under the Service that it names, and take it from the one that it named before."""
        before = self._service_of_slice.pop(key, None)
        if before is not None:
            self._slices[before].pop(key)
            if not self._slices[before]:
                del self._slices[before]
            self._dirty[before] = None
        if piece is None or HEADLESS_LABEL in (piece.metadata.labels or {}):
            return
        service = piece.service_key
        if service is not None:
            self._service_of_slice[key] = service
            self._slices.setdefault(service, {})[key] = piece
            self._dirty[service] = None

    def _settle_claims(self) -> dict[ObjectKey, Frontends]:
        """Renew the claims of the marked Services, whose frontends are returned, and mark those that this affects."""
        renewed: dict[ObjectKey, Frontends] = {}
        for key in self._claims_dirty:
            service = self._services.get(key)
            if service is None:
                affected = self._claims.withdraw(key)
            else:
                frontends = renewed[key] = frontends_of(service, self._node, self._settings, self._owners)
                affected = self._claims.claim(Claimant.of(service), [frontend.key for frontend in frontends.served])
            self._dirty.update(dict.fromkeys(affected))
        self._claims_dirty.clear()
        return renewed

    def _plan(self, key: ObjectKey, frontends: Frontends | None) -> ServicePlan:
        service = self._services.get(key)
        if service is None:
            return ServicePlan(key)
        slices = self._slices.get(key, {}).values()
        held = self._claims.held_by_others(key)
        if frontends is None:
            frontends = frontends_of(service, self._node, self._settings, self._owners)
        return plan_service(service, slices, self._node, self._settings, held, frontends)


def _as_source(node: NodeFacts, probe: str) -> tuple[str, bool, str | None]:
    """What a node means to the Services of a family, node ports aside."""
    return node.name, node.serves(probe), node.address_for(probe)
