"""What clients of a Service may address on a node: ClusterIPs, external addresses, and node ports."""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from kroute.planning.addresses import unicast
from kroute.planning.endpoints import PortKey
from kroute.planning.node_facts import NodeFacts
from kroute.planning.objects import HEADLESS_LABEL, SERVICE_PROXY_NAME_LABEL, Service, ServicePort
from kroute.planning.plan import Problem, Protocol, VirtualServerKey, quoted, shortened
from kroute.settings import Settings


class Kind(Enum):
    """Where an address comes from, which says who may bind it and which traffic policy holds."""

    CLUSTER_IP = "ClusterIP"
    EXTERNAL_IP = "externalIP"
    LOAD_BALANCER_IP = "load balancer address"
    NODE_PORT = "node port"


class Frontend(NamedTuple):
    """An address and port that clients of a Service use, and the Service port behind it."""

    key: VirtualServerKey
    port: PortKey
    kind: Kind = Kind.CLUSTER_IP

    @property
    def is_external(self) -> bool:
        """Whether `externalTrafficPolicy` holds here, and not `internalTrafficPolicy`."""
        return self.kind is not Kind.CLUSTER_IP


class Frontends(NamedTuple):
    """Everything that clients of a Service may address on a node, and what is wrong with the rest."""

    served: tuple[Frontend, ...]
    problems: tuple[Problem, ...]


def is_ours(service: Service, settings: Settings) -> bool:
    """Whether the Service is a proxy's matter, and this proxy's."""
    labels = service.metadata.labels or {}
    name = settings.service_proxy_name
    return (
        service.spec.type != "ExternalName"
        and HEADLESS_LABEL not in labels
        and labels.get(SERVICE_PROXY_NAME_LABEL, name) == name
    )


def cluster_ips(service: Service) -> tuple[str, ...]:
    """The Service's ClusterIPs as written; none for a headless one. `clusterIPs` beats `clusterIP`."""
    return tuple(ip for ip in service.spec.cluster_ips or (service.spec.cluster_ip,) if ip not in {"", "None"})


def external_ips(service: Service) -> tuple[str, ...]:
    """The Service's external IPs and LoadBalancer addresses as written."""
    return (*(service.spec.external_ips or ()), *load_balancer_ips(service))


def load_balancer_ips(service: Service) -> tuple[str, ...]:
    """The addresses of the Service's load balancer that nodes serve: not those with `ipMode: Proxy`, nor host names."""
    ingress = service.status.load_balancer.ingress if service.spec.type == "LoadBalancer" else None
    return tuple(it.ip for it in ingress or () if it.ip and it.ip_mode in {None, "", "VIP"})


def has_node_ports(service: Service) -> bool:
    """Whether the Service has ports on the nodes' own addresses."""
    return service.spec.type in {"NodePort", "LoadBalancer"} and any(it.node_port for it in service.spec.ports or ())


def frontends_of(service: Service, node: NodeFacts, settings: Settings) -> Frontends:
    """What clients of the Service may address on this node, as far as no other Service has it."""
    if not is_ours(service, settings) or not cluster_ips(service):
        return Frontends((), ())
    problems: list[Problem] = []
    ports = _by_number(service, problems)
    served = {
        key: Frontend(key, PortKey(port.name, port.protocol), kind)
        for kind, address in _addresses(service, problems)
        if node.serves(address)
        for (protocol, number), port in ports.items()
        if (key := VirtualServerKey(protocol, address, number))
    }
    for key, port in _node_ports(service, node, ports.values(), problems):
        served.setdefault(key, Frontend(key, PortKey(port.name, port.protocol), Kind.NODE_PORT))
    return Frontends(tuple(served.values()), tuple(dict.fromkeys(problems)))


def _by_number(service: Service, problems: list[Problem]) -> dict[tuple[Protocol, int], ServicePort]:
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


def _addresses(service: Service, problems: list[Problem]) -> Iterator[tuple[Kind, str]]:
    """The addresses that can be served; one that occurs twice is what it is first."""
    seen: set[str] = set()
    for kind, field, reason, written in _written_addresses(service, problems):
        address = unicast(written)
        if address is None:
            subject = f"{field} {quoted(written)}"
            message = f"{subject} is not served: it is no unicast IPv4 or IPv6 address that may leave a machine."
            problems.append(Problem(reason, subject, message))
        elif address not in seen:
            seen.add(address)
            yield kind, address


def _written_addresses(service: Service, problems: list[Problem]) -> Iterator[tuple[Kind, str, str, str]]:
    """Every address of the Service with its kind, the field it is in, and the reason of a Problem with it."""
    for ip in cluster_ips(service):
        yield Kind.CLUSTER_IP, "clusterIP", "InvalidClusterIP", ip
    for ip in service.spec.external_ips or ():
        yield Kind.EXTERNAL_IP, "externalIP", "InvalidExternalIP", ip
    balanced = load_balancer_ips(service)
    if balanced and _has_source_ranges(service):
        subject = "loadBalancerSourceRanges"
        message = (
            f"the load balancer's addresses are not served, since {subject} is not enforced by kroute. "
            "Remove it, or have the load balancer enforce it and set ipMode: Proxy."
        )
        problems.append(Problem("SourceRangesUnsupported", subject, message))
        return
    for ip in balanced:
        yield Kind.LOAD_BALANCER_IP, "loadBalancer.ingress.ip", "InvalidLoadBalancerIP", ip


def _has_source_ranges(service: Service) -> bool:
    """Whether only some clients may use the load balancer's addresses; a /0 among the ranges lets everybody in."""
    ranges = [text.strip() for text in service.spec.load_balancer_source_ranges or ()]
    return bool(ranges) and not any(text.endswith("/0") for text in ranges)


def _node_ports(
    service: Service, node: NodeFacts, ports: Iterable[ServicePort], problems: list[Problem]
) -> Iterator[tuple[VirtualServerKey, ServicePort]]:
    """Each node port on each address, in the families that the Service has."""
    if not has_node_ports(service):
        return
    families = {":" in ip for ip in cluster_ips(service)}
    addresses = [address for address in node.node_port_addresses if (":" in address) in families]
    for port in ports:
        if not 0 <= port.node_port <= 65535:
            subject = f"nodePort {port.node_port}"
            problems.append(Problem("InvalidPort", subject, f"{subject} is not served. Allowed: 1 to 65535."))
        elif port.node_port:
            for address in addresses:
                yield VirtualServerKey(Protocol[port.protocol], address, port.node_port), port
