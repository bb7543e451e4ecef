"""Plan one Service with external IPs for a director: virtual servers whose real servers are nodes."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from kroute.model.addresses import Family, canonical, family_of
from kroute.model.bounds import MOST_ADDRESSES, Problems, finish
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import Node, ObjectKey, Service, ServiceStatus
from kroute.model.plan import (
    Problem,
    Protocol,
    RealServer,
    ServicePlan,
    Vip,
    VirtualServer,
    VirtualServerKey,
)
from kroute.planning.address_owners import AddressOwners
from kroute.planning.annotations.options import Options
from kroute.planning.annotations.table import apply_annotations
from kroute.planning.backend_slices import BackendSlice, Traits
from kroute.planning.endpoints import LOCAL, choose, external_policy, merge
from kroute.planning.external_addresses import nodes_having
from kroute.planning.frontends import Frontends, Kind, frontends_of
from kroute.planning.plan_service import plan_service
from kroute.planning.weights.facts import Nodes, NodeTraits, WeightFacts, traits_of
from kroute.planning.weights.rule import Weighing
from kroute.planning.weights.slow_start import in_steps
from kroute.settings import Settings

EXCLUSION_LABEL = "node.kubernetes.io/exclude-from-external-load-balancers"
"""A Node with this label gets no traffic from load balancers (KEP-1143), whatever the label's value."""

NOWHERE = NodeFacts("")
"""A director is no node: no endpoint is local to it, and no hint names it."""


class ProbeKind(StrEnum):
    """What a node must do to pass."""

    HTTP = "GET /"
    """Answer with a status of 200 to 399 on the `healthCheckNodePort`."""
    CONNECT = "connect"
    """Accept a TCP connection on a node port."""
    REACH = "reach"
    """Accept or refuse a TCP connection: either answer shows that the node is reachable. In direct routing a node
    serves the VIP and not its own address, so without a node port nothing need listen on it."""


class Probe(NamedTuple):
    """One check of one node."""

    kind: ProbeKind
    address: str
    port: int


class DirectorNode(NamedTuple):
    """A Node as a director sees it: the first InternalIP of each family, and what it is weighed by."""

    name: str
    ipv4: str | None
    ipv6: str | None
    weight: int = 1
    zone: str | None = None

    def address_for(self, vip: str) -> str | None:
        """The node's address of the VIP's family."""
        return self.ipv6 if ":" in vip else self.ipv4


class DirectorPlan(NamedTuple):
    """The plan of a Service, and the checks that its real servers depend on."""

    plan: ServicePlan
    probes: frozenset[Probe]


def director_node(node: Node) -> DirectorNode | None:
    """The Node if it takes traffic: it is ready, has an InternalIP and is not excluded by the label. Else None."""
    ready = any(it.type == "Ready" and it.status == "True" for it in node.status.conditions or ())
    if not ready or EXCLUSION_LABEL in (node.metadata.labels or {}):
        return None
    own = [canonical(it.address) for it in node.status.addresses or () if it.type == "InternalIP"]
    first = {family_of(address): address for address in reversed(list(filter(None, own)))}
    traits = traits_of(node)
    addresses = first.get(Family.IPV4), first.get(Family.IPV6)
    return DirectorNode(node.metadata.name, *addresses, traits.weight, traits.zone) if first else None


def external_frontends(service: Service, settings: Settings, machine: NodeFacts, owners: AddressOwners) -> Frontends:
    """The external IPs of a Service that a director may serve. They are admitted as on a node.

    `machine` are the facts of the director's machine. A Node's address is left to the Node, which would be cut off if a
    director bound it.
    """
    problems = Problems()
    left = []
    for written in (service.spec.external_ips or ())[: MOST_ADDRESSES + 1]:
        address = canonical(written) or ""
        if nodes := nodes_having(address, settings, owners) if address else ():
            problems.append(_of_a_machine(address, f"node {min(nodes)}"))
        elif address in machine.own and not settings.external_ips_on_node_addresses:
            problems.append(_of_a_machine(address, "this director's machine"))
        else:
            left.append(written)
    if not left:
        return Frontends((), tuple(problems.kept), problems.more)
    spec = msgspec.structs.replace(service.spec, external_ips=tuple(left))
    bare = msgspec.structs.replace(service, spec=spec, status=ServiceStatus())
    served, others, more = frontends_of(bare, machine, settings, owners)
    external = tuple(it for it in served if it.kind is Kind.EXTERNAL_IP)
    return Frontends(external, (*problems.kept, *others), problems.more + more)


def plan_director(
    service: Service,
    slices: Collection[BackendSlice],
    nodes: Sequence[DirectorNode],
    settings: Settings,
    held: Mapping[VirtualServerKey, ObjectKey],
    frontends: Frontends,
    failing: Collection[Probe],
) -> DirectorPlan:
    """Plan one Service for a director. `nodes` are those that take traffic, `failing` the checks that fail.

    Scheduler, flags and persistence are those of the nodes' own plans. The real servers are nodes: all of them with
    policy Cluster, those with a local endpoint with policy Local. They are weighed as on a node, but for locality: a
    director is no node. A node whose check fails has weight 0.
    """
    base = plan_service(service, slices, NOWHERE, settings, held, frontends)
    problems = Problems(base.problems)
    known = Nodes({it.name: NodeTraits(it.weight, it.zone) for it in nodes})
    options, _ = apply_annotations(Options(), service.metadata.annotations)
    if base.virtual_servers and options.locality is not None:
        problems.append(_no_locality())
    ports = {frontend.key: frontend.port for frontend in frontends.served}
    local_only = external_policy(service) == LOCAL
    bound = {frontend.key.address for frontend in frontends.served if frontend.is_bound}
    merged = {family: merge(slices, family) for family in {family_of(key.address) for key in ports}}
    probes: set[Probe] = set()
    servers: list[VirtualServer] = []
    for server in base.virtual_servers:
        backends = merged[family_of(server.key.address)].backends.get(ports[server.key], {})
        endpoints = Counter(it.node_name for _, it in choose(backends, NOWHERE))
        taking = [node for node in nodes if endpoints[node.name] or not local_only]
        candidates = _candidates(service, server.key, taking, endpoints if options.weighs_endpoints else None)
        probes |= {it.probe for it in candidates if it.probe is not None}
        facts = WeightFacts(known, {it.real_server: it.endpoints for it in candidates})
        weighing = Weighing(NOWHERE, facts, server.scheduler, options.weights)
        servers.append(_of_nodes(server, candidates, weighing, failing))
    plan = ServicePlan(
        service.key,
        virtual_servers=tuple(servers),
        vips=tuple(Vip(address, None) for address in sorted(bound & {it.key.address for it in servers})),
        problems=problems.all(),
    )
    return DirectorPlan(plan, frozenset(probes))


class _Candidate(NamedTuple):
    """A node as a real server: the endpoints that it weighs, and its check, if it has one."""

    node: str
    real_server: RealServer
    endpoints: int
    probe: Probe | None


def _candidates(
    service: Service, key: VirtualServerKey, nodes: Sequence[DirectorNode], endpoints: Counter[str | None] | None
) -> list[_Candidate]:
    """The nodes as real servers of one virtual server; without `endpoints` each counts once."""
    return [
        _Candidate(
            node.name,
            RealServer(address, key.port),
            1 if endpoints is None else endpoints[node.name],
            _probe(service, key, address),
        )
        for node in nodes
        if (address := node.address_for(key.address)) is not None
    ]


def _of_nodes(
    server: VirtualServer, candidates: Sequence[_Candidate], weighing: Weighing, failing: Collection[Probe]
) -> VirtualServer:
    """The virtual server with nodes as its real servers. None is ejected: their answers bypass the director."""
    weighed = weighing.weigh([(it.real_server, _traits(it.node)) for it in candidates])
    checked = [
        after._replace(weight=0) if it.probe in failing else after
        for it, after in zip(candidates, weighed, strict=True)
    ]
    real_servers = tuple(sorted(checked))
    stepped = finish(in_steps(real_servers)) if server.slow_start else real_servers
    return msgspec.structs.replace(server, real_servers=stepped, ejection=None)


def _traits(node: str) -> Traits:
    """A node as a real server."""
    return Traits(
        node,
        is_ready=True,
        is_leaving=False,
        preference=(True, True, True),
        has_hints=False,
        for_nodes=frozenset(),
        for_zones=frozenset(),
    )


def _no_locality() -> Problem:
    subject = "annotation kroute.io/locality"
    return Problem("NoLocality", subject, f"{subject} has no effect on a director, which is near no node.")


def _probe(service: Service, key: VirtualServerKey, address: str) -> Probe | None:
    """The check of a node for one virtual server, or None if there is nothing to check (UDP and SCTP)."""
    spec = service.spec
    if spec.external_traffic_policy == "Local" and 1 <= spec.health_check_node_port <= 65535:
        return Probe(ProbeKind.HTTP, address, spec.health_check_node_port)
    if key.protocol is not Protocol.TCP:
        return None
    numbers = (it.node_port for it in spec.ports or () if (it.protocol, it.port) == ("TCP", key.port))
    node_port = next((number for number in numbers if 1 <= number <= 65535), None)
    if node_port is not None:
        return Probe(ProbeKind.CONNECT, address, node_port)
    return Probe(ProbeKind.REACH, address, key.port)


def _of_a_machine(address: str, owner: str) -> Problem:
    subject = f"externalIP {address}"
    message = f"{subject} is not served by the director: it is an address of {owner}. Choose one that no machine has."
    return Problem("NodeAddress", subject, message)
