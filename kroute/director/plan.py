"""Plan one Service with external addresses for a director: virtual servers whose real servers are nodes."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kroute.base.forwarding import DIRECT_ROUTING
from kroute.model.addresses import Family, canonical, family_of
from kroute.model.node_facts import EXCLUSION_LABEL, NodeFacts, first_of_each_family
from kroute.model.objects import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Node,
    ObjectKey,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)
from kroute.model.plan import (
    Problem,
    Problems,
    Protocol,
    RealServer,
    ServicePlan,
    Vip,
    VirtualServer,
    VirtualServerKey,
)
from kroute.model.probes import Probe, ProbeKind
from kroute.model.steps import Steps
from kroute.planning.address_owners import MOST_ADDRESSES, AddressOwners, load_balancer_ips
from kroute.planning.backend_slices import BackendSlice, PortKey, Traits
from kroute.planning.endpoints import LOCAL, MergedSlices, choice_steps, external_policy, merging, refusals
from kroute.planning.external_addresses import nodes_having
from kroute.planning.features import apply_annotations
from kroute.planning.features.slow_start import in_steps
from kroute.planning.features.weights.rule import weighing_of
from kroute.planning.features.weights.text import Locality, ServiceWeights
from kroute.planning.frontends import Frontends, Kind, frontends_of
from kroute.planning.options import Options
from kroute.planning.plan_service import planning, too_many_backends
from kroute.planning.weight_facts import Nodes, NodeTraits, WeightFacts, traits_of
from kroute.settings import Settings

MOST_CHECKS = 1000
"""Checks of nodes that one Service may ask for: a second of what a director begins. One of each node is always made."""

NOWHERE = NodeFacts("")
"""A director is no node: no endpoint is local to it, and no hint names it."""


class DirectorNode(NamedTuple):
    """A Node as a director sees it: the first InternalIP of each family, and what it is weighed by."""

    name: str
    addresses: Mapping[Family, str]
    traits: NodeTraits


class DirectorPlan(NamedTuple):
    """The plan of a Service, and the checks that its real servers depend on."""

    plan: ServicePlan
    probes: frozenset[Probe]


class TakingTraffic:
    """The Nodes that take traffic, and what they are weighed by."""

    def __init__(self, nodes: Collection[DirectorNode]) -> None:
        self.traits = Nodes({node.name: node.traits for node in nodes})
        self._addresses = {
            family: {node.name: node.addresses[family] for node in nodes if family in node.addresses}
            for family in Family
        }
        self.of_family = {
            family: sorted((address, name) for name, address in addresses.items())
            for family, addresses in self._addresses.items()
        }
        """Address and name of each Node, in the order of the addresses."""

    def having(self, family: Family, names: Iterable[str | None]) -> list[tuple[str, str]]:
        """Address and name of the Nodes with these names, in the order of the addresses."""
        addresses = self._addresses[family]
        return sorted((addresses[name], name) for name in names if name is not None and name in addresses)


def director_node(node: Node) -> DirectorNode | None:
    """The Node if it takes traffic: it is ready, has an InternalIP and is not excluded by the label. Else None."""
    traits = traits_of(node)
    if not traits.is_ready or EXCLUSION_LABEL in (node.metadata.labels or {}):
        return None
    own = [canonical(address.address) for address in node.status.addresses or () if address.type == "InternalIP"]
    first = first_of_each_family(own)
    return DirectorNode(node.metadata.name, first, traits) if first else None


def external_frontends(service: Service, settings: Settings, machine: NodeFacts, owners: AddressOwners) -> Frontends:
    """The external IPs and LoadBalancer addresses of a Service that a director may serve, admitted as on a node.

    `machine` are the facts of the director's machine. A Node's address is left to the Node, which would be cut off if a
    director bound it. LoadBalancer addresses are served only in a range for them: others may answer for them.
    """
    problems = Problems()
    balanced = load_balancer_ips(service) if settings.load_balancer_ip_ranges else ()
    left: dict[Kind, list[str]] = {Kind.EXTERNAL_IP: [], Kind.LOAD_BALANCER_IP: []}
    for kind, addresses in ((Kind.EXTERNAL_IP, service.spec.external_ips), (Kind.LOAD_BALANCER_IP, balanced)):
        for written in (addresses or ())[: MOST_ADDRESSES + 1]:
            address = canonical(written) or ""
            if nodes := nodes_having(address, settings, owners) if address else ():
                problems.append(_of_a_machine(kind, address, f"node {min(nodes)}"))
            elif address in machine.own and not settings.external_ips_on_node_addresses:
                problems.append(_of_a_machine(kind, address, "this director's machine"))
            else:
                left[kind].append(written)
    if not any(left.values()):
        return Frontends((), tuple(problems.kept), problems.more)
    spec = msgspec.structs.replace(service.spec, external_ips=tuple(left[Kind.EXTERNAL_IP]))
    status = ServiceStatus(LoadBalancerStatus(tuple(map(LoadBalancerIngress, left[Kind.LOAD_BALANCER_IP]))))
    bare = msgspec.structs.replace(service, spec=spec, status=status)
    served, others, more = frontends_of(bare, machine, settings, owners)
    external = tuple(frontend for frontend in served if frontend.kind in left)
    return Frontends(external, (*problems.kept, *others), problems.more + more)


def planning_director(
    service: Service,
    slices: Collection[BackendSlice],
    nodes: TakingTraffic,
    settings: Settings,
    held: Mapping[VirtualServerKey, ObjectKey],
    frontends: Frontends,
    failing: Collection[Probe],
) -> Steps[DirectorPlan]:
    """Plan one Service for a director, in steps. `failing` are the checks that fail.

    Scheduler, flags and persistence are those of the nodes' own plans. The real servers are nodes: all of them with
    policy Cluster, those with a local endpoint with policy Local. They are weighed as on a node, but for locality: a
    director is no node. A node whose check fails has weight 0. `max_backends` of the settings bounds the real servers
    of all virtual servers together, and the endpoints that are looked at.
    """
    base = yield from planning(service, (), NOWHERE, settings, held, frontends)
    problems = Problems(base.problems)
    options, _ = apply_annotations(Options(), service.metadata.annotations)
    if base.virtual_servers and options.of(Locality) is not None:
        problems.append(_no_locality())
    ports = {frontend.key: frontend.port for frontend in frontends.served}
    families = sorted({family_of(server.key.address) for server in base.virtual_servers})
    is_local = external_policy(service) == LOCAL
    merged: dict[Family, MergedSlices] = {}
    for family in families if is_local or options.weighs_endpoints else ():
        merged[family] = yield from merging(slices, family, settings.max_backends)
    problems.extend(refusals(merged.values()))
    asked = (service.spec.ports or ())[: settings.max_virtual_servers]
    checks = _Checks(
        service.spec, asked, base.virtual_servers, sum(len(nodes.of_family[family]) for family in families), failing
    )
    directed = _Directed(nodes, merged, options, checks, is_local=is_local)
    room, left_out = settings.max_backends, sum(slices_of_family.left_out for slices_of_family in merged.values())
    servers: list[VirtualServer] = []
    for server in base.virtual_servers:
        yield 1
        candidates = yield from directed.candidates(family_of(server.key.address), ports[server.key])
        if len(candidates) > room:
            left_out += len(candidates)
        else:
            room -= len(candidates)
            servers.append((yield from directed.virtual_server(server, ports[server.key], candidates)))
    if left_out:
        problems.put_first(too_many_backends(left_out, settings.max_backends))
    bound = {frontend.key.address for frontend in frontends.served if frontend.is_bound}
    plan = ServicePlan(
        service.key,
        virtual_servers=tuple(servers),
        vips=tuple(Vip(address, None) for address in sorted(bound & {server.key.address for server in servers})),
        problems=problems.all(),
    )
    return DirectorPlan(plan, frozenset(checks.probes))


Candidates = list[tuple[str, str]]
"""Address and name of each node that serves a port, in the order of the addresses."""


class _Directed:
    """Gives virtual servers nodes as their real servers. Those of one family and port have the same."""

    def __init__(
        self,
        nodes: TakingTraffic,
        merged: Mapping[Family, MergedSlices],
        options: Options,
        checks: "_Checks",
        *,
        is_local: bool,
    ) -> None:
        self._nodes = nodes
        self._merged = merged
        self._options = options
        self._checks = checks
        self._is_local = is_local
        self._endpoints: dict[tuple[Family, PortKey], Counter[str | None]] = {}
        self._candidates: dict[tuple[Family, PortKey], Candidates] = {}
        self._weights: dict[tuple[Family, PortKey | None], list[int]] = {}
        self._real_servers: dict[tuple[Family, PortKey, Protocol, int], tuple[RealServer, ...]] = {}

    def candidates(self, family: Family, port: PortKey) -> Steps[Candidates]:
        """The nodes that serve the port."""
        if not self._is_local:
            return self._nodes.of_family[family]
        if (known := self._candidates.get((family, port))) is None:
            endpoints = yield from self._endpoints_on(family, port)
            known = self._candidates[family, port] = self._nodes.having(family, endpoints)
        return known

    def virtual_server(self, server: VirtualServer, port: PortKey, candidates: Candidates) -> Steps[VirtualServer]:
        """The virtual server with its real servers. None is ejected: their answers bypass the director."""
        family, number = family_of(server.key.address), server.key.port
        question = (family, port, server.key.protocol, number)
        if (known := self._real_servers.get(question)) is None:
            weights = yield from self._weigh(family, port, candidates, server.scheduler)
            check = self._checks.of(server.key)
            yield len(candidates)
            known = tuple(
                [
                    RealServer(address, number, weight if check.passes(address) else 0)
                    for (address, _), weight in zip(candidates, weights, strict=True)
                ]
            )
            if server.slow_start:
                known = yield from in_steps(known)
            self._real_servers[question] = known
        return msgspec.structs.replace(server, real_servers=known, ejection=None, method=DIRECT_ROUTING)

    def _weigh(self, family: Family, port: PortKey, candidates: Candidates, scheduler: str) -> Steps[list[int]]:
        """The weight of each candidate."""
        by_endpoints = self._options.weighs_endpoints
        question = (family, port if self._is_local or by_endpoints else None)
        if (known := self._weights.get(question)) is None:
            counts = (yield from self._endpoints_on(family, port)) if by_endpoints else Counter[str | None]()
            chosen = [(RealServer(address, 0), Traits(name)) for address, name in candidates]
            pods = {server: counts[traits.node_name] for server, traits in chosen} if by_endpoints else {}
            yield len(candidates)
            facts = WeightFacts(self._nodes.traits, pods)
            weighing = weighing_of(NOWHERE, facts, scheduler, self._options.of(ServiceWeights))
            weighed = [server for server, _ in chosen] if weighing is None else (yield from weighing.weigh(chosen))
            known = self._weights[question] = [server.weight for server in weighed]
        return known

    def _endpoints_on(self, family: Family, port: PortKey) -> Steps[Counter[str | None]]:
        """How many endpoints of the port each node has."""
        if (known := self._endpoints.get((family, port))) is None:
            backends = self._merged[family].backends.get(port, {})
            known = Counter(traits.node_name for _, traits in choice_steps(backends, NOWHERE).chosen)
            self._endpoints[family, port] = known
            yield len(backends)
        return known


class _Check:
    """What a node must pass to serve some ports: one of these checks. If there are none, it passes."""

    def __init__(self, checks: Sequence[tuple[ProbeKind, int]], failing: Collection[Probe], probes: set[Probe]) -> None:
        self._checks = checks
        self._failing = failing
        self._probes = probes
        self._passing: dict[str, bool] = {}

    def passes(self, address: str) -> bool:
        """Whether the node of this address passes, by what is known."""
        known = self._passing.get(address)
        if known is None:
            probes = [Probe(kind, address, number) for kind, number in self._checks]
            self._probes.update(probes)
            known = self._passing[address] = not probes or not all(probe in self._failing for probe in probes)
        return known


class _Checks:
    """The checks of the nodes for one Service. `probes` are those that its real servers depend on.

    There are `MOST_CHECKS` of them at most, or one of each node. Node ports are checked on each node, from the first
    port on. For the other ports a node fails if it fails all these checks.

    In direct routing a node serves the VIP and not its own address. So without a node port nothing need listen there,
    an answer of any kind will do, and one port says as much as another.
    """

    def __init__(
        self,
        spec: ServiceSpec,
        ports: Sequence[ServicePort],
        servers: Sequence[VirtualServer],
        nodes: int,
        failing: Collection[Probe],
    ) -> None:
        self.probes: set[Probe] = set()
        self._nothing = _Check((), failing, self.probes)
        self._health: _Check | None = None
        self._of_port: dict[int, _Check] = {}
        if spec.external_traffic_policy == "Local" and 1 <= spec.health_check_node_port <= 65535:
            self._health = _Check([(ProbeKind.HTTP, spec.health_check_node_port)], failing, self.probes)
            return
        node_ports = {
            port.port: port.node_port
            for port in reversed(ports)
            if port.protocol == "TCP" and 1 <= port.node_port <= 65535
        }
        numbers = sorted({server.key.port for server in servers if server.key.protocol is Protocol.TCP})
        checked = [number for number in numbers if number in node_ports][: max(MOST_CHECKS // (nodes or 1), 1)]
        shared = _Check([(ProbeKind.CONNECT, node_ports[number]) for number in checked], failing, self.probes)
        without = [number for number in numbers if number not in node_ports]
        reached = _Check([(ProbeKind.REACH, number) for number in without[:1]], failing, self.probes)
        self._of_port = {number: shared if number in node_ports else reached for number in numbers}
        self._of_port |= {
            number: _Check([(ProbeKind.CONNECT, node_ports[number])], failing, self.probes) for number in checked
        }

    def of(self, key: VirtualServerKey) -> _Check:
        """What a node must pass for one virtual server. For UDP and SCTP that is nothing."""
        if self._health is not None:
            return self._health
        return self._of_port[key.port] if key.protocol is Protocol.TCP else self._nothing


def _no_locality() -> Problem:
    rest = "has no effect on a director, which is near no node."
    return Problem.about("NoLocality", "annotation kroute.io/locality", rest)


def _of_a_machine(kind: Kind, address: str, owner: str) -> Problem:
    rest = f"is not served by the director: it is an address of {owner}. Choose one that no machine has."
    return Problem.about("NodeAddress", f"{kind.value} {address}", rest)
