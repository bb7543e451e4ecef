"""Explain a Service's plan: its frontends, and for each endpoint the reason why it serves or does not."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from kroute.model.addresses import Family, family_of
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import AddressSet, Protocol, RealServer, ServicePlan, SetEntry, VirtualServerKey
from kroute.model.steps import Steps, parts
from kroute.planning.backend_slices import NO_BOUND, BackendSlice, Traits
from kroute.planning.endpoints import (
    LOCAL,
    Endpoints,
    MergedSlices,
    choice_steps,
    external_policy,
    in_order,
    merging,
)  # fmt: skip
from kroute.planning.features.step import FeatureStep
from kroute.planning.frontends import Frontend
from kroute.planning.plan_service import Scheduling


class EndpointView(msgspec.Struct, frozen=True, rename="camel"):
    """One endpoint of a port. `serves`: whether it takes new connections from this frontend."""

    address: str
    port: int
    node: str | None
    serves: bool
    reason: str


class FrontendView(msgspec.Struct, frozen=True, rename="camel"):
    """An address and port of the Service.

    `kind` is clusterIP, externalIP, loadBalancerIP or nodePort. `policy` is the traffic policy that applies there.
    `held_by` is the Service that has the address and port instead, or empty. `port_name` is empty for the only port of
    a Service, which needs no name. `forwarding` says how packets reach the pods, and why, where the Service asks for
    direct return; elsewhere it is by address translation, and this is empty.
    """

    protocol: str
    address: str
    port: int
    port_name: str
    kind: str
    policy: str
    held_by: str
    endpoints: list[EndpointView]
    forwarding: str = ""

    @property
    def key(self) -> VirtualServerKey:
        """The key of its virtual server."""
        return VirtualServerKey(Protocol[self.protocol], self.address, self.port)


class ServiceView(msgspec.Struct, frozen=True, rename="camel"):
    """A Service as planning reads it, and its frontends with their endpoints.

    `scheduler` is the one that it should have, and `scheduler_reason` says what has chosen that.
    """

    service: Service
    frontends: list[FrontendView]
    scheduler: str = ""
    scheduler_reason: str = ""


def viewing_service(
    service: Service,
    slices: Collection[BackendSlice],
    node: NodeFacts,
    frontends: Iterable[Frontend],
    held: Mapping[VirtualServerKey, ObjectKey],
    plan: ServicePlan,
    scheduling: Scheduling,
) -> Steps[ServiceView]:
    """Explain the `plan` of a Service by the objects that it was made from, and by how they are scheduled."""
    merged: dict[Family, MergedSlices] = {}
    for family in Family:
        merged[family] = yield from merging(slices, family, NO_BOUND)
    outside, inside = external_policy(service) or "Cluster", service.spec.internal_traffic_policy or "Cluster"
    views = []
    for frontend in frontends:
        backends = merged[family_of(frontend.key.address)].backends.get(frontend.port, {})
        policy = outside if frontend.is_external else inside
        is_narrow = policy == LOCAL and not _is_widened(frontend, plan)
        endpoints = yield from _viewing(backends, node, only_local=is_narrow, features=scheduling.features)
        holder = held.get(frontend.key)
        protocol, address, port = frontend.key
        views.append(
            FrontendView(
                protocol=protocol.name,
                address=address,
                port=port,
                port_name=frontend.port.name,
                kind=frontend.kind.value,
                policy=policy,
                held_by=str(holder or ""),
                endpoints=endpoints,
                forwarding=next(filter(None, [one.explain(frontend, plan) for one in scheduling.features]), ""),
            )
        )
    return ServiceView(service, views, scheduling.scheduler, scheduling.why)


def _viewing(
    endpoints: Endpoints, node: NodeFacts, *, only_local: bool, features: Iterable[FeatureStep]
) -> Steps[list[EndpointView]]:
    """Each endpoint of a port, sorted, with the reason why it serves or does not. Takes the same steps as a plan.

    If the Service is weighed, the reason of one that serves ends with its weight: `ready, weight 12 = pod 4 x node 3`.
    """
    steps = choice_steps(endpoints, node, only_local=only_local)
    left = [{server for server, _ in step} for step in steps]
    weights: dict[RealServer, str] = {}
    chosen = yield from in_order(steps.chosen)  # as they are planned
    for feature in features:
        weights |= yield from feature.explain_weights(chosen)
    views: list[EndpointView] = []
    for part in parts((yield from in_order(list(endpoints.items())))):
        views += [
            EndpointView(
                server.address,
                server.port,
                traits.node_name,
                server in left[-1],
                _reason(server, traits, left) + (f", weight {weights[server]}" if server in weights else ""),
            )
            for server, traits in part
        ]
        yield len(part)
    return views


def _is_widened(frontend: Frontend, plan: ServicePlan) -> bool:
    """Whether policy Local finds no endpoint on this node, so that the node's own clients use the cluster's."""
    protocol, address, port = frontend.key
    return SetEntry(AddressSet.NO_LOCAL, (address, int(protocol), port)) in plan.set_entries


def _reason(server: RealServer, traits: Traits, left: Sequence[set[RealServer]]) -> str:
    """The step that excluded the endpoint, or how it passed all. `left` are the endpoints after each step."""
    allowed, able, chosen = left
    if server not in allowed:
        return "on another node, and the policy is Local"
    if server not in able:
        return _state(traits)
    if server not in chosen:
        return f"its hints are for {_hints(traits)}"
    return "ready" if traits.is_ready else "terminating, but none is ready"


def _state(traits: Traits) -> str:
    if traits.is_terminating:
        return "terminating" if traits.is_leaving else "terminating, and does not serve any more"
    return "not ready"


def _hints(traits: Traits) -> str:
    nodes = [f"node {name}" for name in sorted(traits.for_nodes)]
    zones = [f"zone {name}" for name in sorted(traits.for_zones)]
    return ", ".join(nodes + zones) or "nobody"
