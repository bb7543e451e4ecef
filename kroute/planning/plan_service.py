"""Plan one Service on one node: a pure function of the Service, its slices, the node and the settings."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kroute.model.addresses import Family, family_of
from kroute.model.bounds import MOST_RANGE_ENTRIES, UNITS_A_STEP, Problems, Steps, finish, parts, sort
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import (
    AddressSet,
    Problem,
    RealServer,
    ServicePlan,
    SetEntry,
    Vip,
    VirtualServer,
    VirtualServerKey,
)
from kroute.planning.address_conflicts import conflict
from kroute.planning.address_owners import AddressOwners
from kroute.planning.annotations.options import Options
from kroute.planning.annotations.table import (
    MAX_PERSISTENCE_TIMEOUT,
    apply_annotations,
    chosen_scheduler,
    needing_shares,
)
from kroute.planning.annotations.unknown import unknown_annotations
from kroute.planning.backend_slices import BackendSlice, PortKey
from kroute.planning.endpoints import (
    LOCAL,
    Backends,
    Chosen,
    MergedSlices,
    choice_steps,
    in_order,
    merging,
    refusals,
)
from kroute.planning.frontends import Frontend, Frontends, frontends_of
from kroute.planning.service_parts.direct_return import DirectReturn
from kroute.planning.service_parts.health_check import health_check_entries, health_check_of
from kroute.planning.source_ranges import Ranges, source_ranges
from kroute.planning.weights.facts import WeightFacts
from kroute.planning.weights.rule import Weighing, are_weighed, problems_of, weighing_of
from kroute.planning.weights.slow_start import in_steps
from kroute.settings import AUTO, Settings

DEFAULT_AFFINITY_TIMEOUT = 10800
"""Seconds; the API's default for a Service with ClientIP affinity and no timeout."""

NOTHING_HELD: Mapping[VirtualServerKey, ObjectKey] = MappingProxyType({})


class _Reach(NamedTuple):
    """The endpoints that serve a frontend, and the sets that contain its address and port.

    `real_servers` are the endpoints with their weights, in order, and `on_this_node` some of them; both are empty till
    there is room for them. `lacks_local`: policy Local leaves none of the endpoints that there are. `is_direct`: the
    real servers answer the clients themselves.
    """

    chosen: Chosen
    sets: tuple[AddressSet, ...]
    real_servers: tuple[RealServer, ...] = ()
    on_this_node: tuple[RealServer, ...] = ()
    lacks_local: bool = False
    is_direct: bool = False


def plan_service(
    service: Service,
    slices: Collection[BackendSlice],
    node: NodeFacts,
    settings: Settings,
    held: Mapping[VirtualServerKey, ObjectKey] = NOTHING_HELD,
    frontends: Frontends | None = None,
    facts: WeightFacts | None = None,
    owners: AddressOwners | None = None,
) -> ServicePlan:
    """Plan one Service for one node.

    `slices` are those of the Service. `held` names, for each address and port that another Service has, that Service.
    `frontends` saves computing them again if the caller has them. `facts` are what its real servers are weighed by.
    `owners` has the addresses of Nodes and Services. Never fails: everything that cannot be done is a Problem of the
    plan, and the rest is planned. The parts of a plan are sorted, so that plans of equal content are equal.
    """
    return finish(planning(service, slices, node, settings, held, frontends, facts, owners))


def planning(
    service: Service,
    slices: Collection[BackendSlice],
    node: NodeFacts,
    settings: Settings,
    held: Mapping[VirtualServerKey, ObjectKey],
    frontends: Frontends | None,
    facts: WeightFacts | None = None,
    owners: AddressOwners | None = None,
) -> Steps[ServicePlan]:
    """As `plan_service`, in steps."""
    served, known_problems, more_problems = frontends or frontends_of(service, node, settings)
    problems = Problems(known_problems, more_problems)
    if not served:
        return ServicePlan(service.key, problems=problems.all())
    options = yield from _options(service, slices, settings, facts, problems)
    problems.extend(unknown_annotations(service.metadata.annotations))
    merged = {}
    for family in sorted({family_of(it.key.address) for it in served}):
        merged[family] = yield from merging(slices, family, settings.max_backends)
    problems.extend(refusals(merged.values()))
    weighing = weighing_of(node, facts, options.scheduler, options.weights, options.locality)
    problems.extend(problems_of(weighing) if weighing is not None else ())
    problems.extend(conflict(it.key, held[it.key]) for it in served if it.key in held)
    balanced = {family_of(it.key.address) for it in served if it.is_balanced}
    ranges = yield from source_ranges(service, balanced, problems)
    answered = _Answered(service, options, merged, node, ranges, settings.max_backends, weighing)
    direct = DirectReturn(service, options, node, settings, owners) if options.direct_return else None

    vips: set[str] = set()
    entries: set[SetEntry] = set()
    virtual_servers: list[VirtualServer] = []
    for frontend in served:
        if frontend.key in held or (reach := (yield from answered.reach(frontend))) is None:
            continue
        if direct is not None:
            reach = _direct(direct, frontend, reach)
            yield len(reach.real_servers)
        if frontend.is_bound and frontend.key.address not in vips:
            vips.add(frontend.key.address)
            entries.add(SetEntry(AddressSet.VIP, (frontend.key.address,)))
        virtual_servers.append(options.virtual_server(frontend.key, reach.real_servers, is_tunnelled=reach.is_direct))
        for part in parts(_entries(frontend, options, reach, ranges)):
            entries.update(part)
            yield 1 + len(part)
    health_check = health_check_of(service, merged, node)
    if health_check is not None and not settings.protects(health_check.port):
        entries.update(health_check_entries(health_check, node))
    for problem in answered.problems(settings.max_backends):
        problems.put_first(problem)

    virtual_servers.sort(key=lambda server: server.key)
    directly = direct.vips if direct is not None else frozenset[str]()
    problems.extend(direct.problems if direct is not None else ())
    return ServicePlan(
        service.key,
        virtual_servers=tuple(virtual_servers),
        vips=tuple(Vip(address, node.address_for(address)) for address in sorted(vips - directly)),
        set_entries=tuple(sorted(entries) if len(entries) < UNITS_A_STEP else (yield from sort(entries))),
        health_check=health_check,
        problems=problems.all(),
        no_local_inside=answered.no_local_inside(),
        tunnel_ends=direct.tunnel_ends if direct is not None else (),
        direct_vips=tuple(sorted(directly)),
    )


class _Answered:
    """What serves the frontends, while there is room. Those with the same port, family and policy share one answer.

    `left_out` counts the real servers for which there was none, `ranges_left_out` the source ranges times ports.
    """

    def __init__(
        self,
        service: Service,
        options: Options,
        merged: Mapping[Family, MergedSlices],
        node: NodeFacts,
        ranges: Ranges,
        room: int,
        weighing: Weighing | None,
    ) -> None:
        self.left_out = sum(each.left_out for each in merged.values())
        self._is_local = service.spec.internal_traffic_policy == LOCAL
        self._is_local_outside = options.is_local or service.spec.external_traffic_policy == LOCAL
        self._slow_start = options.slow_start
        self._merged = merged
        self._node = node
        self._ranges = ranges
        self._room = room
        self._range_room = MOST_RANGE_ENTRIES
        self.ranges_left_out = 0
        self._weighing = weighing
        self._known: dict[tuple[PortKey, Family, bool], _Reach] = {}

    def reach(self, frontend: Frontend) -> Steps[_Reach | None]:
        """None if there is no room for it. What has room is weighed."""
        family = family_of(frontend.key.address)
        question = (frontend.port, family, frontend.is_external)
        reach = self._known.get(question)
        if reach is None:
            backends = self._merged[family].backends.get(frontend.port, {})
            reach = self._from_outside(backends) if frontend.is_external else self._inside(backends)
            self._known[question] = reach
            yield len(backends) // 2
        count, ranges = len(reach.chosen), len(_networks(frontend, self._ranges) or ())
        if count > self._room or ranges > self._range_room:
            self.left_out += count if count > self._room else 0
            self.ranges_left_out += ranges if ranges > self._range_room else 0
            return None
        self._room -= count
        self._range_room -= ranges
        if len(reach.real_servers) < len(reach.chosen):
            reach = self._known[question] = yield from self._weighed(reach)
        return reach

    def problems(self, max_backends: int) -> Iterator[Problem]:
        if self.ranges_left_out:
            yield _too_many_range_entries(self.ranges_left_out)
        if self.left_out:
            yield too_many_backends(self.left_out, max_backends)

    def no_local_inside(self) -> tuple[Family, ...]:
        return tuple(sorted({family for (_, family, _), reach in self._known.items() if reach.lacks_local}))

    def _inside(self, backends: Backends) -> _Reach:
        """Apply `internalTrafficPolicy`. With policy Local and no endpoint on this node, nothing serves."""
        chosen = self._choose(backends, only_local=self._is_local)
        lacks_local = self._is_local and not chosen and bool(self._choose(backends))
        return _reach(chosen, AddressSet.CLUSTER_IP)._replace(lacks_local=lacks_local)

    def _from_outside(self, backends: Backends) -> _Reach:
        """Apply `externalTrafficPolicy`. Policy Local restricts outside clients; this node's clients may use any
        endpoint.

        A virtual server cannot tell the two kinds of clients apart. So when no endpoint is on this node, the virtual
        server gets the cluster's endpoints, and the set NO_LOCAL keeps outside clients away from it
        (kubernetes/kubernetes#97081 without its black hole).
        """
        if not self._is_local_outside:
            return _reach(self._choose(backends), AddressSet.EXTERNAL)
        if local := self._choose(backends, only_local=True):
            return _reach(local, AddressSet.EXTERNAL_LOCAL)
        return _reach(self._choose(backends), AddressSet.EXTERNAL_LOCAL, AddressSet.NO_LOCAL)

    def _choose(self, backends: Backends, *, only_local: bool = False) -> Chosen:
        return choice_steps(backends, self._node, only_local=only_local).chosen

    def _weighed(self, reach: _Reach) -> Steps[_Reach]:
        """With its real servers in order, which have weights."""
        chosen, name = (yield from in_order(reach.chosen)), self._node.name
        if self._weighing is None:
            servers = tuple([server for server, _ in chosen])
        else:
            servers = yield from self._weighing.weighing(chosen)
        if self._slow_start:
            servers = yield from in_steps(servers)
        near = tuple([server for server, it in chosen if it.node_name is None or it.node_name == name])
        return reach._replace(chosen=chosen, real_servers=servers, on_this_node=near)


def _reach(chosen: Chosen, *sets: AddressSet) -> _Reach:
    return _Reach(chosen, sets if chosen else (AddressSet.NO_ENDPOINT,))


def _direct(direct: DirectReturn, frontend: Frontend, reach: _Reach) -> _Reach:
    """What pods answer themselves is not masqueraded, since the answers do not come back through this node."""
    has_unknown = any(traits.node_name is None for _, traits in reach.chosen)
    if not direct.answers(frontend, reach.real_servers, reach.on_this_node, has_unknown=has_unknown):
        return reach
    sets = tuple(AddressSet.EXTERNAL_LOCAL if it is AddressSet.EXTERNAL else it for it in reach.sets)
    return reach._replace(sets=sets, on_this_node=(), is_direct=True)


def _entries(frontend: Frontend, options: Options, reach: _Reach, ranges: Ranges) -> Iterator[SetEntry]:
    """The set entries of an address and port."""
    key = frontend.key
    port = (key.address, int(key.protocol), key.port)
    yield from (SetEntry(one, port) for one in reach.sets)
    networks = _networks(frontend, ranges)
    if networks is not None:
        yield SetEntry(AddressSet.RESTRICTED, port)
        yield from (SetEntry(AddressSet.SOURCE_RANGE, (*port, network)) for network in networks)
    if options.hairpin:
        yield from (_hairpin(key, real_server) for real_server in reach.on_this_node)


def _networks(frontend: Frontend, ranges: Ranges) -> tuple[str, ...] | None:
    """The networks of the clients that are let in; None lets in all."""
    return ranges.get(family_of(frontend.key.address)) if frontend.is_balanced else None


def _hairpin(key: VirtualServerKey, real_server: RealServer) -> SetEntry:
    """The set entry that masquerades a real server's connections to itself.

    Without it the pod would answer itself directly.
    """
    address, port, _ = real_server
    return SetEntry(AddressSet.HAIRPIN, (address, int(key.protocol), port, address))


def _options(
    service: Service,
    slices: Collection[BackendSlice],
    settings: Settings,
    facts: WeightFacts | None,
    problems: Problems,
) -> Steps[Options]:
    """Scheduling and persistence: the settings, then weights and `sessionAffinity`, then the annotations."""
    timeout = _affinity_timeout(service, problems) if service.spec.session_affinity == "ClientIP" else 0
    before = Options.by_default(settings, timeout)
    if before.is_open and (yield from are_weighed(slices, facts)):
        before = before.sharing()
    options, complaints = apply_annotations(before, service.metadata.annotations)
    problems.extend(complaints)
    return options


class Scheduling(NamedTuple):
    """The scheduler of a Service, what has chosen it, and how the real servers are weighed (None: not at all)."""

    scheduler: str
    why: str
    weighing: Weighing | None


def scheduling_of(
    service: Service,
    slices: Collection[BackendSlice],
    node: NodeFacts,
    settings: Settings,
    facts: WeightFacts | None,
) -> Scheduling:
    """How connections are divided over the real servers, and why so."""
    options = finish(_options(service, slices, settings, facts, Problems()))
    annotations = service.metadata.annotations or {}
    if (name := chosen_scheduler(annotations)) is not None:
        why = f"by annotation {name}"
    elif settings.scheduler != AUTO:
        why = "by --scheduler"
    elif (name := needing_shares(annotations)) is not None:
        why = f"implied by annotation {name}, since nothing chooses a scheduler"
    elif options.scheduler != settings.usual_scheduler:
        why = "implied by weights of Nodes or Pods, since nothing chooses a scheduler"
    else:
        why = "the default"
    weighing = weighing_of(node, facts, options.scheduler, options.weights, options.locality)
    return Scheduling(options.scheduler, why, weighing)


def _affinity_timeout(service: Service, problems: Problems) -> int:
    config = service.spec.session_affinity_config
    timeout = config.client_ip.timeout_seconds if config and config.client_ip else None
    if timeout is None:
        return DEFAULT_AFFINITY_TIMEOUT
    if not 1 <= timeout <= MAX_PERSISTENCE_TIMEOUT:
        subject = f"sessionAffinityConfig.clientIP.timeoutSeconds {timeout}"
        message = (
            f"{subject} is out of range; {DEFAULT_AFFINITY_TIMEOUT} serves. "
            f"Allowed: 1 to {MAX_PERSISTENCE_TIMEOUT} seconds."
        )
        problems.append(Problem("InvalidSessionAffinity", subject, message))
        return DEFAULT_AFFINITY_TIMEOUT
    return timeout


def too_many_backends(left_out: int, most: int) -> Problem:
    """The Problem of a Service that asks for so many more than `--max-backends`."""
    subject = f"{left_out} real servers"
    beyond = f"beyond the first {most} are not served, with the virtual servers that have them"
    return Problem("TooManyBackends", subject, f"{subject} {beyond}. Split the Service, or raise --max-backends.")


def _too_many_range_entries(count: int) -> Problem:
    subject = f"{count} loadBalancerSourceRanges times ports"
    beyond = f"beyond the first {MOST_RANGE_ENTRIES} are not served, with the ports that have them"
    return Problem("TooManySourceRanges", subject, f"{subject} {beyond}. Join networks, or split the Service.")
