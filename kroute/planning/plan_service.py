"""The plan of one Service on one node: a pure function of the Service, its slices, the node and the settings."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kroute.planning.addresses import family_of, unicast
from kroute.planning.annotations import MAX_PERSISTENCE_TIMEOUT, Options, apply_annotations
from kroute.planning.endpoints import PortKey, choose, merge
from kroute.planning.node_facts import NodeFacts
from kroute.planning.objects import (
    HEADLESS_LABEL,
    SERVICE_PROXY_NAME_LABEL,
    Endpoint,
    EndpointSlice,
    ObjectKey,
    Service,
    ServicePort,
)
from kroute.planning.plan import (
    AddressSet,
    Problem,
    Protocol,
    RealServer,
    ServicePlan,
    SetEntry,
    Vip,
    VirtualServer,
    VirtualServerKey,
    quoted,
    shortened,
)
from kroute.settings import Settings

OUR_PROXY_NAME = "kroute.io"
"""The value of the label `service.kubernetes.io/service-proxy-name` that gives a Service to kroute."""

DEFAULT_AFFINITY_TIMEOUT = 10800
"""Seconds; what the API writes where a Service asks for ClientIP affinity and names no timeout."""

NOTHING_HELD: Mapping[VirtualServerKey, ObjectKey] = MappingProxyType({})


class Frontend(NamedTuple):
    """An address and port that clients of a Service use, and the Service port behind it."""

    key: VirtualServerKey
    port: PortKey


class Frontends(NamedTuple):
    """Everything that clients of a Service may address on a node, and what is wrong with the rest."""

    served: tuple[Frontend, ...]
    problems: tuple[Problem, ...]


def is_ours(service: Service) -> bool:
    """Whether the Service is a proxy's matter, and this proxy's."""
    labels = service.metadata.labels or {}
    return (
        service.spec.type != "ExternalName"
        and HEADLESS_LABEL not in labels
        and labels.get(SERVICE_PROXY_NAME_LABEL, OUR_PROXY_NAME) == OUR_PROXY_NAME
    )


def cluster_ips(service: Service) -> tuple[str, ...]:
    """The Service's ClusterIPs as written; none for a headless one. `clusterIPs` beats `clusterIP`."""
    return tuple(ip for ip in service.spec.cluster_ips or (service.spec.cluster_ip,) if ip not in {"", "None"})


def frontends_of(service: Service, node: NodeFacts) -> Frontends:
    """What clients of the Service may address on this node, as far as no other Service has it."""
    if not is_ours(service) or not cluster_ips(service):
        return Frontends((), ())
    problems: list[Problem] = []
    ports = _ports(service, problems)
    addresses = [address for address in _addresses(service, problems) if node.serves(address)]
    served = [
        Frontend(VirtualServerKey(protocol, address, number), PortKey(port.name, port.protocol))
        for address in addresses
        for (protocol, number), port in ports.items()
    ]
    return Frontends(tuple(served), tuple(dict.fromkeys(problems)))


def plan_service(
    service: Service,
    slices: Collection[EndpointSlice],
    node: NodeFacts,
    settings: Settings,
    held: Mapping[VirtualServerKey, ObjectKey] = NOTHING_HELD,
    frontends: Frontends | None = None,
) -> ServicePlan:
    """Plan one Service for one node.

    `slices` are the Service's EndpointSlices. `held` names the older Service behind each address and port that is
    not this Service's to have. `frontends` are not computed again if the caller has asked for them already.
    Never fails: whatever cannot be done is a Problem of the plan, and the rest is planned. The parts of a plan are
    sorted, so plans that say the same are equal.
    """
    served, known_problems = frontends or frontends_of(service, node)
    if not served:
        return ServicePlan(service.key, problems=known_problems)
    problems = list(known_problems)
    options = _options(service, settings, problems)
    merged = {family: merge(slices, family) for family in sorted({family_of(it.key.address) for it in served})}
    problems += _endpoint_problems([text for each in merged.values() for text in each.refused])

    virtual_servers: list[VirtualServer] = []
    entries: set[SetEntry] = set()
    for key, port in served:
        if key in held:
            problems.append(_conflict(key, held[key]))
            continue
        chosen = choose(merged[family_of(key.address)].backends.get(port, {}))
        real_servers = tuple([real_server for real_server, _ in chosen])
        persistence = options.persistence_for(key.address)
        virtual_servers.append(VirtualServer(key, options.scheduler, options.flags, persistence, real_servers))
        entries.add(SetEntry(AddressSet.CLUSTER_IP, (key.address, int(key.protocol), key.port)))
        entries.update(_hairpins(key.protocol, chosen, node))

    virtual_servers.sort(key=lambda server: server.key)
    addresses = sorted({server.key.address for server in virtual_servers})
    return ServicePlan(
        service.key,
        virtual_servers=tuple(virtual_servers),
        vips=tuple(Vip(address, node.address_for(address)) for address in addresses),
        set_entries=tuple(sorted(entries)),
        problems=tuple(dict.fromkeys(problems)),
    )


def _ports(service: Service, problems: list[Problem]) -> dict[tuple[Protocol, int], ServicePort]:
    """The ports that can be served; of two with one number and protocol the first."""
    ports: dict[tuple[Protocol, int], ServicePort] = {}
    for port in service.spec.ports or ():
        protocol = Protocol.__members__.get(port.protocol)
        subject = f"port {port.port}/{shortened(port.protocol)}"
        if protocol is None:
            message = f"{subject} is not served: the protocol is unknown. Allowed: {', '.join(Protocol.__members__)}."
            problems.append(Problem("InvalidPort", subject, message))
        elif not 1 <= port.port <= 65535:
            problems.append(Problem("InvalidPort", subject, f"{subject} is not served. Allowed: 1 to 65535."))
        elif (protocol, port.port) in ports:
            message = f"{subject} occurs twice; the first, {quoted(ports[protocol, port.port].name)}, serves."
            problems.append(Problem("DuplicatePort", subject, message))
        else:
            ports[protocol, port.port] = port
    return ports


def _addresses(service: Service, problems: list[Problem]) -> Iterable[str]:
    """The ClusterIPs that can be served, each once."""
    addresses: dict[str, None] = {}
    for written in cluster_ips(service):
        address = unicast(written)
        if address is None:
            subject = f"clusterIP {quoted(written)}"
            message = f"{subject} is not served: it is no unicast IPv4 or IPv6 address. Recreate the Service."
            problems.append(Problem("InvalidClusterIP", subject, message))
        else:
            addresses[address] = None
    return addresses


def _options(service: Service, settings: Settings, problems: list[Problem]) -> Options:
    """Scheduling and persistence: the settings, then `sessionAffinity`, then the annotations."""
    timeout = _affinity_timeout(service, problems) if service.spec.session_affinity == "ClientIP" else 0
    options, complaints = apply_annotations(
        Options(scheduler=settings.scheduler, persistence_timeout=timeout), service.metadata.annotations
    )
    problems += complaints
    return options


def _affinity_timeout(service: Service, problems: list[Problem]) -> int:
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


def _hairpins(protocol: Protocol, chosen: Iterable[tuple[RealServer, Endpoint]], node: NodeFacts) -> list[SetEntry]:
    """The real servers that may be on this node: a connection of theirs to themselves must be masqueraded."""
    return [
        SetEntry(AddressSet.HAIRPIN, (address, int(protocol), port, address))
        for (address, port, _), endpoint in chosen
        if endpoint.node_name is None or endpoint.node_name == node.name
    ]


def _conflict(key: VirtualServerKey, holder: ObjectKey) -> Problem:
    subject = f"address {key}"
    message = f"{subject} is not served for this Service: the older Service {holder} has it. Change one of the two."
    return Problem("AddressConflict", subject, message)


def _endpoint_problems(refused: list[str]) -> list[Problem]:
    """One Problem for all of a Service's bad endpoints: there may be thousands, and each Problem is an Event."""
    if not refused:
        return []
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    message = (
        f"{refused[0]}{more} cannot be served. Allowed: unicast addresses of the slice's addressType, ports to 65535."
    )
    return [Problem("InvalidEndpoint", refused[0], message)]
