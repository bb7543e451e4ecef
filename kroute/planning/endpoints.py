"""Choose the endpoints that serve a Service port: merge the slices, then keep the endpoints that take traffic.

The rules are those of the API (`discovery.k8s.io/v1`), and of kube-proxy where the API is silent. Hints count only if
every ready endpoint has them (KEP-2433, KEP-3015).
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter, itemgetter
from typing import NamedTuple

import msgspec

from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Service
from kroute.model.plan import AddressSet, HealthCheck, Problem, Protocol, RealServer, SetEntry
from kroute.model.steps import UNITS_A_STEP, Steps, sort
from kroute.planning.backend_slices import BackendSlice, PortKey, Traits, first_backends
from kroute.planning.options import LOCAL_OUTSIDE, alone

LOCAL = "Local"
"""The value of a traffic policy that keeps traffic on the node that it has reached."""

LONG = 16 * UNITS_A_STEP
"""Endpoints of one port, beyond which they are sorted in steps: that takes several times as long."""

Endpoints = dict[RealServer, Traits]
"""The endpoints of one Service port, by the real server that each of them is."""

Chosen = list[tuple[RealServer, Traits]]
"""The endpoints that take new connections."""


class MergedSlices(msgspec.Struct, frozen=True):
    """The slices of one Service and one family, merged; `refused` are the invalid addresses and ports.

    `left_out` is how many more backends there would be if there were room for them.
    """

    backends: dict[PortKey, Endpoints]
    refused: tuple[str, ...]
    left_out: int = 0


def external_policy(service: Service) -> str | None:
    """The traffic policy for clients outside: `externalTrafficPolicy`, or Local by the annotation `kroute.io/local`."""
    is_local = alone(LOCAL_OUTSIDE, service.metadata.annotations).is_local
    return LOCAL if is_local else service.spec.external_traffic_policy


def merging(slices: Iterable[BackendSlice], family: Family, most: int) -> Steps[MergedSlices]:
    """Merge the slices of one family. The result does not depend on their order.

    Two slices may hold the same endpoint, since an endpoint moves between slices one write at a time. Then the copy
    that is not terminating wins (kubernetes/kubernetes#135266), then the one that is ready, then the one that is
    serving. Of more than `most` backends the first are taken, by the names of the slices.
    """
    merged: dict[PortKey, Endpoints] = {}
    ours = [piece for piece in sorted(slices, key=attrgetter("name")) if piece.family == family]
    left_out = sum([len(piece.traits) * len(piece.ports) for piece in ours])
    for piece, port, count in first_backends(ours, most):
        left_out -= count
        yield count
        servers = piece.real_servers(port, count)
        known = merged.get(port.key)
        if known is None:
            merged[port.key] = dict(zip(servers, piece.traits, strict=False))
        else:
            _add(known, servers, piece.traits)
    return MergedSlices(merged, tuple(dict.fromkeys([text for piece in ours for text in piece.refused])), left_out)


def health_check_of(service: Service, merged: Mapping[Family, MergedSlices], node: NodeFacts) -> HealthCheck | None:
    """Where load balancers ask for this node's endpoints; None if nowhere."""
    port = service.spec.health_check_node_port
    if not 1 <= port <= 65535 or service.spec.type != "LoadBalancer" or service.spec.external_traffic_policy != LOCAL:
        return None
    return HealthCheck(port, {family: _ready_on(node, slices) for family, slices in merged.items()})


def health_check_entries(check: HealthCheck, node: NodeFacts) -> Iterator[SetEntry]:
    """Where the node's firewall lets load balancers in, as kube-proxy does on every address."""
    for address in node.node_port_addresses:
        yield SetEntry(AddressSet.HEALTH_CHECK, (address, int(Protocol.TCP), check.port))


def _ready_on(node: NodeFacts, slices: MergedSlices) -> int:
    """How many ready endpoints are on this node, each once, whatever its ports."""
    here = {
        server.address
        for backends in slices.backends.values()
        for server, traits in backends.items()
        if traits.node_name == node.name and traits.is_ready
    }
    return len(here)


def refusals(merged: Iterable[MergedSlices]) -> list[Problem]:
    """One Problem for all of a Service's invalid endpoints: there may be thousands, and each Problem is an Event."""
    refused = [text for each in merged for text in each.refused]
    if not refused:
        return []
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    message = (
        f"{refused[0]}{more} cannot be served. Allowed: unicast addresses of the slice's addressType, ports to 65535."
    )
    return [Problem("InvalidEndpoint", refused[0], message)]


class ChoiceSteps(NamedTuple):
    """The endpoints of a port that are left after each step. Each list is part of the one before it."""

    allowed: Chosen
    """After the traffic policy: all endpoints, or with policy Local those on this node."""
    able: Chosen
    """After the state: those that are ready; if none is, those that still serve while they terminate (KEP-1669)."""
    chosen: Chosen
    """After hints: those near this node, if hints apply."""


def in_order(chosen: Chosen) -> Steps[Chosen]:
    """The endpoints sorted by address and port."""
    if len(chosen) > LONG:
        return (yield from sort(chosen))
    if len(chosen) > UNITS_A_STEP:
        yield len(chosen) // 4
    return sorted(chosen, key=itemgetter(0))


def choice_steps(backends: Endpoints, node: NodeFacts, *, only_local: bool = False) -> ChoiceSteps:
    """Choose the endpoints that take new connections on this node, and keep the result of each step. Not sorted.

    These are the ready endpoints, or those of them near this node if hints apply. If none is ready, they are those that
    still serve while they terminate. `only_local` is policy Local: endpoints of other nodes are left out first.
    """
    allowed = list(backends.items())
    if only_local:
        allowed = [item for item in allowed if item[1].node_name == node.name]
    ready = [item for item in allowed if item[1].is_ready]
    if not ready:
        last = [item for item in allowed if item[1].is_leaving]
        return ChoiceSteps(allowed, last, last)
    return ChoiceSteps(allowed, ready, ready if only_local else _near(ready, node))


def leaving(backends: Endpoints) -> tuple[tuple[str, int], ...]:
    """The address and port of each endpoint that terminates and still serves, sorted."""
    return tuple(sorted([server[:2] for server, traits in backends.items() if traits.is_leaving]))


def _add(backends: Endpoints, real_servers: Iterable[RealServer], traits: Iterable[Traits]) -> None:
    for real_server, its_traits in zip(real_servers, traits, strict=False):
        known = backends.setdefault(real_server, its_traits)
        if its_traits.preference > known.preference:
            backends[real_server] = its_traits


def _near(ready: Chosen, node: NodeFacts) -> Chosen:
    """The endpoints hinted for this node, else those for its zone, else all. All if one endpoint has no hint."""
    if [True for _, traits in ready if not traits.has_hints]:
        return ready
    for hints_of, here in ((attrgetter("for_nodes"), node.name), (attrgetter("for_zones"), node.zone)):
        near = [item for item in ready if here in hints_of(item[1])]
        if near and all(hints_of(traits) for _, traits in ready):
            return near
    return ready
