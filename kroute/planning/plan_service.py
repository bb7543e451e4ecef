"""Plan one Service on one node: a pure function of the Service, its slices, the node and the settings."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from kroute.base.forwarding import MASQUERADING, TUNNEL
from kroute.base.schedulers import HASHING, SCHEDULERS
from kroute.model.addresses import Family, family_of
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey, Service
from kroute.model.plan import (
    AddressSet,
    Problem,
    Problems,
    Protocol,
    ServicePlan,
    SetEntry,
    Vip,
    VirtualServer,
    VirtualServerKey,
)
from kroute.model.steps import UNITS_A_STEP, Steps, parts, sort
from kroute.planning.address_conflicts import conflict
from kroute.planning.address_owners import AddressOwners
from kroute.planning.backend_slices import BackendSlice, PortKey
from kroute.planning.endpoints import (
    LOCAL,
    Chosen,
    Endpoints,
    MergedSlices,
    choice_steps,
    health_check_entries,
    health_check_of,
    in_order,
    leaving,
    merging,
    refusals,
)
from kroute.planning.features import apply_annotations, beginning, needing_shares, unknown_annotations
from kroute.planning.features.step import Backends, FeatureStep, PlanInputs
from kroute.planning.features.weights.rule import are_weighed
from kroute.planning.frontends import Frontend, Frontends, frontends_of
from kroute.planning.options import MAX_PERSISTENCE_TIMEOUT, SCHEDULER, Options
from kroute.planning.weight_facts import WeightFacts
from kroute.settings import AUTO, Settings

DEFAULT_AFFINITY_TIMEOUT = 10800
"""Seconds; the API's default for a Service with ClientIP affinity and no timeout."""

NOTHING_HELD: Mapping[VirtualServerKey, ObjectKey] = MappingProxyType({})


def planning(
    service: Service,
    slices: Collection[BackendSlice],
    node: NodeFacts,
    settings: Settings,
    held: Mapping[VirtualServerKey, ObjectKey] = NOTHING_HELD,
    frontends: Frontends | None = None,
    facts: WeightFacts | None = None,
    owners: AddressOwners | None = None,
) -> Steps[ServicePlan]:
    """Plan one Service for one node, in steps.

    `slices` are those of the Service. `held` names, for each address and port that another Service has, that Service.
    `frontends` saves computing them again if the caller has them. `facts` are what its real servers are weighed by.
    `owners` has the addresses of Nodes and Services. Never fails: everything that cannot be done is a Problem of the
    plan, and the rest is planned. The parts of a plan are sorted, so that plans of equal content are equal.
    """
    served, known_problems, more_problems = frontends or frontends_of(service, node, settings)
    problems = Problems(known_problems, more_problems)
    if not served:
        return ServicePlan(service.key, problems=problems.all())
    options = yield from _options(service, slices, settings, facts, problems)
    merged: dict[Family, MergedSlices] = {}
    for family in sorted({family_of(frontend.key.address) for frontend in served}):
        merged[family] = yield from merging(slices, family, settings.max_backends)
    problems.extend(refusals(merged.values()))
    if held:
        problems.extend(conflict(one.key, held[one.key]) for one in served if one.key in held)
    features: Sequence[FeatureStep] = ()
    if options.asked or facts is not None or service.spec.load_balancer_source_ranges or settings.announce:
        balanced = {family_of(frontend.key.address) for frontend in served if frontend.is_balanced}
        owners = owners or AddressOwners()
        inputs = PlanInputs(service, node, settings, options, problems, balanced, facts, owners, merged)
        features = yield from beginning(inputs)
    chooser = _BackendChooser(service, options, merged, node, settings.max_backends, features)
    ours = [frontend for frontend in served if frontend.key not in held]
    virtual_servers, vips, entries = yield from _serving(ours, chooser, options, features)
    health_check = health_check_of(service, merged, node)
    if health_check is not None and not settings.protects(health_check.port):
        entries.update(health_check_entries(health_check, node))
    for feature in features:
        feature.finish()
    if chooser.left_out:
        problems.put_first(too_many_backends(chooser.left_out, settings.max_backends))
    plan = ServicePlan(
        service.key,
        virtual_servers=tuple(sorted(virtual_servers, key=lambda server: server.key)),
        vips=tuple([Vip(address, node.address_for(address)) for address in sorted(vips)]),
        set_entries=tuple(sorted(entries) if len(entries) < UNITS_A_STEP else (yield from sort(entries))),
        health_check=health_check,
        problems=problems.all(),
        no_local_inside=chooser.no_local_inside(),
    )
    for feature in features:
        plan = feature.amend(plan)
    return plan


def _serving(
    frontends: Iterable[Frontend], chooser: "_BackendChooser", options: Options, features: Sequence[FeatureStep]
) -> Steps[tuple[list[VirtualServer], set[str], set[SetEntry]]]:
    """The virtual servers of the frontends for which there is room, the addresses to bind, and the set entries."""
    virtual_servers: list[VirtualServer] = []
    vips: set[str] = set()
    entries: set[SetEntry] = set()
    for frontend in frontends:
        if (backends := (yield from chooser.choose(frontend))) is None:
            continue
        protocol, address, number = key = frontend.key
        if frontend.is_bound and address not in vips:
            vips.add(address)
            entries.add(SetEntry(AddressSet.VIP, (address,)))
        entries.update([SetEntry(one, (address, int(protocol), number)) for one in backends.sets])
        units = 1 + len(backends.sets)
        # Without its entry a pod that reaches itself would answer itself directly.
        for part in parts(backends.on_this_node if options.hairpin else ()):
            entries.update([SetEntry(AddressSet.HAIRPIN, (real, int(protocol), port, real)) for real, port, _ in part])
            yield units + len(part)
            units = 0
        if units:
            yield units
        method = TUNNEL if backends.is_direct else MASQUERADING
        server = options.virtual_server(key, backends.real_servers, method)
        if backends.leaving and server.scheduler not in HASHING:
            server = msgspec.structs.replace(server, leaving=backends.leaving)
        for feature in features:
            server = feature.virtual_server(server)
            for more in parts(feature.entries(frontend)):
                entries.update(more)
                yield len(more)
        virtual_servers.append(server)
    return virtual_servers, vips, entries


class _BackendChooser:
    """What serves the frontends, while there is room. Those with the same port, family and policy share one answer.

    `left_out` counts the real servers for which there was none.
    """

    def __init__(
        self,
        service: Service,
        options: Options,
        merged: Mapping[Family, MergedSlices],
        node: NodeFacts,
        room: int,
        features: Sequence[FeatureStep],
    ) -> None:
        self.left_out = sum([each.left_out for each in merged.values()])
        self._is_local = service.spec.internal_traffic_policy == LOCAL
        self._is_local_outside = options.is_local or service.spec.external_traffic_policy == LOCAL
        self._merged = merged
        self._node = node
        self._room = room
        self._features = features
        self._known: dict[tuple[PortKey, Family, bool], Backends] = {}

    def choose(self, frontend: Frontend) -> Steps[Backends | None]:
        """The backends of a frontend, with weights; None: it is not served, since there is no room or for a feature."""
        family, is_external = family_of(frontend.key.address), frontend.is_external
        question = (frontend.port, family, is_external)
        backends = self._known.get(question)
        if backends is None:
            endpoints = self._merged[family].backends.get(frontend.port, {})
            backends = self._from_outside(endpoints) if is_external else self._inside(endpoints)
            if frontend.key.protocol == Protocol.UDP:
                backends = backends._replace(leaving=leaving(endpoints))
            self._known[question] = backends
            yield len(endpoints) * 3 // 4
        count, refusing = len(backends.chosen), [feature for feature in self._features if feature.refuses(frontend)]
        if count > self._room:
            self.left_out += count
            return None
        if refusing:
            return None
        self._room -= count
        if len(backends.real_servers) < count:
            backends = self._known[question] = yield from self._weighed(backends)
        for feature in self._features:
            backends = feature.serve(frontend, backends)
            yield count
        return backends

    def no_local_inside(self) -> tuple[Family, ...]:
        """The families in which `internalTrafficPolicy` Local leaves none of the endpoints that there are."""
        if not self._is_local:
            return ()
        return tuple(sorted({family for (_, family, _), backends in self._known.items() if backends.lacks_local}))

    def _inside(self, endpoints: Endpoints) -> Backends:
        """Apply `internalTrafficPolicy`. With policy Local and no endpoint on this node, nothing serves."""
        chosen = self._choose(endpoints, only_local=self._is_local)
        lacks_local = self._is_local and not chosen and bool(self._choose(endpoints))
        return Backends(chosen, _sets(chosen, AddressSet.CLUSTER_IP), lacks_local=lacks_local)

    def _from_outside(self, endpoints: Endpoints) -> Backends:
        """Apply `externalTrafficPolicy`. Policy Local restricts outside clients; this node's clients may use any
        endpoint.

        A virtual server cannot tell the two kinds of clients apart. So when no endpoint is on this node, the virtual
        server gets the cluster's endpoints, and the set NO_LOCAL keeps outside clients away from it
        (kubernetes/kubernetes#97081 without its black hole).
        """
        if self._is_local_outside and (local := self._choose(endpoints, only_local=True)):
            return Backends(local, (AddressSet.EXTERNAL_LOCAL,))
        chosen = self._choose(endpoints)
        if not self._is_local_outside:
            return Backends(chosen, _sets(chosen, AddressSet.EXTERNAL))
        return Backends(chosen, _sets(chosen, AddressSet.EXTERNAL_LOCAL, AddressSet.NO_LOCAL))

    def _choose(self, endpoints: Endpoints, *, only_local: bool = False) -> Chosen:
        return choice_steps(endpoints, self._node, only_local=only_local).chosen

    def _weighed(self, backends: Backends) -> Steps[Backends]:
        """With its real servers in order, which have weights."""
        chosen, name = (yield from in_order(backends.chosen)), self._node.name
        servers = tuple([server for server, _ in chosen])
        for feature in self._features:
            servers = yield from feature.weigh(chosen, servers)
        near = tuple([server for server, traits in chosen if traits.node_name is None or traits.node_name == name])
        return backends._replace(chosen=chosen, real_servers=servers, on_this_node=near)


def _sets(chosen: Chosen, *sets: AddressSet) -> tuple[AddressSet, ...]:
    """The sets of a frontend that has these endpoints."""
    return sets if chosen else (AddressSet.NO_ENDPOINT,)


def _options(
    service: Service,
    slices: Collection[BackendSlice],
    settings: Settings,
    facts: WeightFacts | None,
    problems: Problems,
) -> Steps[Options]:
    """Scheduling and persistence: the settings, then weights and `sessionAffinity`, then the annotations."""
    timeout = _affinity_timeout(service, problems) if service.spec.session_affinity == "ClientIP" else 0
    options = Options.by_default(settings, timeout)
    if facts is not None and options.is_open and (yield from are_weighed(slices, facts)):
        options = options.sharing()
    annotations = service.metadata.annotations
    if annotations:
        options, complaints = apply_annotations(options, annotations)
        problems.extend(complaints)
        problems.extend(unknown_annotations(annotations))
    return options


class Scheduling(NamedTuple):
    """The scheduler of a Service, what has chosen it, and the steps of the features that weigh its real servers."""

    scheduler: str
    why: str
    features: Sequence[FeatureStep]


def scheduling_of(
    service: Service, slices: Collection[BackendSlice], node: NodeFacts, settings: Settings, facts: WeightFacts | None
) -> Steps[Scheduling]:
    """How connections are divided over the real servers, and why so."""
    options = yield from _options(service, slices, settings, facts, Problems())
    annotations = service.metadata.annotations or {}
    name = SCHEDULER.written_in(annotations)
    if name is not None and annotations[name].strip() in SCHEDULERS:
        why = f"by annotation {name}"
    elif settings.scheduler != AUTO:
        why = "by --scheduler"
    elif (name := needing_shares(annotations)) is not None:
        why = f"implied by annotation {name}, since nothing chooses a scheduler"
    elif options.scheduler != settings.usual_scheduler:
        why = "implied by weights of Nodes or Pods, since nothing chooses a scheduler"
    else:
        why = "the default"
    features = yield from beginning(
        PlanInputs(service, node, settings, options, Problems(), (), facts, AddressOwners(), {})
    )
    return Scheduling(options.scheduler, why, features)


def _affinity_timeout(service: Service, problems: Problems) -> int:
    config = service.spec.session_affinity_config
    timeout = config.client_ip.timeout_seconds if config and config.client_ip else None
    if timeout is None:
        return DEFAULT_AFFINITY_TIMEOUT
    if not 1 <= timeout <= MAX_PERSISTENCE_TIMEOUT:
        subject = f"sessionAffinityConfig.clientIP.timeoutSeconds {timeout}"
        rest = f"is out of range; {DEFAULT_AFFINITY_TIMEOUT} serves. Allowed: 1 to {MAX_PERSISTENCE_TIMEOUT} seconds."
        problems.append(Problem.about("InvalidSessionAffinity", subject, rest))
        return DEFAULT_AFFINITY_TIMEOUT
    return timeout


def too_many_backends(left_out: int, most: int) -> Problem:
    """The Problem of a Service that asks for so many more than `--max-backends`."""
    beyond = f"beyond the first {most} are not served, with the virtual servers that have them"
    rest = f"{beyond}. Split the Service, or raise --max-backends."
    return Problem.about("TooManyBackends", f"{left_out} real servers", rest)
