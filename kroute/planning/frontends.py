"""Find the frontends of a Service on a node: its ClusterIPs, external addresses and node ports."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from kroute.model.addresses import family_of, unicast
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import SERVICE_PROXY_NAME_LABEL, Service, ServicePort
from kroute.model.plan import Problem, Problems, Protocol, VirtualServerKey, quoted, shortened
from kroute.planning.address_owners import (
    MOST_ADDRESSES,
    AddressOwners,
    cluster_ips,
    has_family,
    has_node_ports,
    load_balancer_ips,
    virtual_ips,
)
from kroute.planning.backend_slices import NO_BOUND, PortKey, port_key
from kroute.planning.external_addresses import ANOTHER, Admission, Allowed, Place, admit, balanced_range, kernels_use
from kroute.settings import Settings

_FREE_RANGE = "Give the cluster a Service range that is free on every node."
_IF_UNMEANT = "If this is not intended, take the address off the interface, or give the cluster a free Service range."
_NOT_A_PORT = "is not served. Allowed: 1 to 65535."
_SERVED = (Place.OWN, Place.VIP)


class Kind(StrEnum):
    """The origin of an address, which decides who may bind it and which traffic policy applies."""

    CLUSTER_IP = "clusterIP"
    EXTERNAL_IP = "externalIP"
    LOAD_BALANCER_IP = "loadBalancerIP"
    NODE_PORT = "nodePort"


class Frontend(msgspec.Struct, frozen=True):
    """An address and port that clients of a Service use, and the Service port behind it.

    `is_bound`: whether the address belongs on the dummy interface, and not on another interface of the node.
    """

    key: VirtualServerKey
    port: PortKey
    kind: Kind = Kind.CLUSTER_IP
    is_bound: bool = True

    @property
    def is_balanced(self) -> bool:
        """Whether the address is the load balancer's, so that `loadBalancerSourceRanges` apply."""
        return self.kind is Kind.LOAD_BALANCER_IP

    @property
    def is_external(self) -> bool:
        """Whether `externalTrafficPolicy` applies here, and not `internalTrafficPolicy`."""
        return self.kind is not Kind.CLUSTER_IP


class Frontends(NamedTuple):
    """Everything that clients of a Service may address on a node, and what is wrong with the rest.

    ClusterIPs come first, then node ports. `more_problems` is how many are not listed.
    """

    served: tuple[Frontend, ...]
    problems: tuple[Problem, ...]
    more_problems: int = 0


def is_ours(service: Service, settings: Settings) -> bool:
    """Whether a proxy should serve the Service, and whether it is this one."""
    labels = service.metadata.labels or {}
    name = settings.service_proxy_name
    return service.spec.type != "ExternalName" and labels.get(SERVICE_PROXY_NAME_LABEL, name) == name


def frontends_of(
    service: Service, node: NodeFacts, settings: Settings, owners: AddressOwners | None = None
) -> Frontends:
    """The frontends of the Service on this node, regardless of whether another Service has an address and port.

    `owners` has the addresses of all Nodes and Services. Without it, no external address counts as owned.
    """
    if not is_ours(service, settings) or not cluster_ips(service):
        return Frontends((), ())
    problems = Problems()
    limit = settings.max_virtual_servers
    ports = _by_number(service, limit, problems)
    addresses = list(_addresses(service, node, settings, owners or AddressOwners(), problems))
    asked = chain(
        _at_addresses([each for each in addresses if each[0] is Kind.CLUSTER_IP], ports, settings, problems),
        _at_node_ports(service, node, ports.values(), problems),
        _at_addresses([each for each in addresses if each[0] is not Kind.CLUSTER_IP], ports, settings, problems),
    )
    served = {frontend.key: frontend for frontend in islice(asked, limit)}
    if next(asked, None) is not None or _are_left_out(service, limit):
        return Frontends(tuple(served.values()), (_too_many(service, node, limit), *problems.kept), problems.more)
    return Frontends(tuple(served.values()), tuple(problems.kept), problems.more)


def _at_addresses(
    addresses: Iterable[tuple[Kind, str, Place]],
    ports: Mapping[tuple[Protocol, int], ServicePort],
    settings: Settings,
    problems: Problems,
) -> Iterator[Frontend]:
    """Each port on each address."""
    for kind, address, place in addresses:
        for (protocol, number), port in ports.items():
            if place is Place.OWN and settings.protects(number):
                problems.append(_protected(kind, address, number))
                continue
            key = VirtualServerKey(protocol, address, number)
            yield Frontend(key, port_key(port.name, port.protocol), kind, place is Place.VIP)


def _at_node_ports(
    service: Service, node: NodeFacts, ports: Iterable[ServicePort], problems: Problems
) -> Iterator[Frontend]:
    """Each node port on each address of the families that the Service has."""
    if not has_node_ports(service):
        return
    families = {":" in ip for ip in cluster_ips(service)}
    addresses = [address for address in node.node_port_addresses if (":" in address) in families]
    for port in ports:
        if not 0 <= port.node_port <= 65535:
            problems.append(Problem.about("InvalidPort", f"nodePort {port.node_port}", _NOT_A_PORT))
        elif port.node_port:
            for address in addresses:
                key = VirtualServerKey(Protocol[port.protocol], address, port.node_port)
                yield Frontend(key, port_key(port.name, port.protocol), Kind.NODE_PORT, is_bound=False)


def _are_left_out(service: Service, limit: int) -> bool:
    """Whether something was not looked at because there is too much of it."""
    spec, status = service.spec, service.status.load_balancer
    addresses = max(len(spec.external_ips or ()), len(status.ingress or ()), len(spec.cluster_ips or ()))
    return addresses > MOST_ADDRESSES or len(spec.ports or ()) > limit


def _too_many(service: Service, node: NodeFacts, limit: int) -> Problem:
    """One Problem for all that is too much, with what it would be if every address and port were valid."""
    ports = service.spec.ports or ()
    addresses = len(_written_addresses(service, NO_BOUND))
    on_node = (
        sum(port.node_port != 0 for port in ports) * len(node.node_port_addresses) if has_node_ports(service) else 0
    )
    subject = f"{len(ports) * addresses + on_node} virtual servers"
    rest = (
        f"are asked for: {len(ports)} ports on {addresses} addresses, and node ports. At most {limit} are "
        f"served, ClusterIPs and node ports first, and of each kind {MOST_ADDRESSES} addresses. "
        "Split the Service, or raise --max-virtual-servers."
    )
    return Problem.about("TooManyVirtualServers", subject, rest)


def _by_number(service: Service, most: int, problems: Problems) -> dict[tuple[Protocol, int], ServicePort]:
    """The valid ports; of two with the same number and protocol the first. Looks at `most` ports."""
    ports: dict[tuple[Protocol, int], ServicePort] = {}
    for port in (service.spec.ports or ())[:most]:
        protocol = Protocol.__members__.get(port.protocol)
        subject = f"port {port.port}/{shortened(port.protocol)}"
        if protocol is None:
            rest = f"is not served: the protocol is unknown. Allowed: {', '.join(Protocol.__members__)}."
            problems.append(Problem.about("InvalidPort", subject, rest))
        elif not 1 <= port.port <= 65535:
            problems.append(Problem.about("InvalidPort", subject, _NOT_A_PORT))
        elif (protocol, port.port) in ports:
            message = f"{subject} occurs twice; the first, {quoted(ports[protocol, port.port].name)}, serves."
            problems.append(Problem("DuplicatePort", subject, message))
        else:
            ports[protocol, port.port] = port
    return ports


def _addresses(
    service: Service, node: NodeFacts, settings: Settings, owners: AddressOwners, problems: Problems
) -> Iterator[tuple[Kind, str, Place]]:
    """The addresses to serve here, and where they are bound. Of two equal addresses, the first is taken.

    An external IP that the load balancer has too is the load balancer's, so that its source ranges hold; it is served
    if it is allowed as one of the two.
    """
    balanced = {unicast(ip) for ip in virtual_ips(service)}
    tried: set[tuple[Kind, str]] = set()
    taken: set[str] = set()
    for kind, written in _written_addresses(service):
        address = unicast(written)
        if address is None:
            reason = f"is not served: it is not a unicast IPv4 or IPv6 address that may leave a machine. {ANOTHER}"
            problems.append(_problem(kind, written, "Invalid", reason))
        elif address not in taken and (kind, address) not in tried and node.serves(address):
            tried.add((kind, address))
            place, problem, reason = _admission(service, kind, address, node, settings, owners)
            if problem:
                problems.append(_problem(kind, written, problem, reason))
            if place in _SERVED or kind is Kind.CLUSTER_IP:
                taken.add(address)
            if place in _SERVED:
                is_balanced = kind is Kind.EXTERNAL_IP and address in balanced
                yield Kind.LOAD_BALANCER_IP if is_balanced else kind, address, place


def _admission(
    service: Service, kind: Kind, address: str, node: NodeFacts, settings: Settings, owners: AddressOwners
) -> Admission:
    """Where an address is served: external ones are admitted, a ClusterIP is bound unless the node has it already.

    As with kube-proxy, whose proxier of a family knows the Services with a ClusterIP of that family, an external
    address of another family is left out: there are no endpoints for it.
    """
    if kind is not Kind.CLUSTER_IP:
        admission = admit(address, _allowed(kind, settings), node, settings, owners)
        if admission.place not in _SERVED or has_family(service, family := family_of(address)):
            return admission
        reason = f"is not served: the Service has no {family.value} ClusterIP. Make it dual-stack (ipFamilyPolicy)."
        return Admission(Place.NOWHERE, "Invalid", reason)
    if address in node.own:
        reason = (
            "is not served here: an interface of this node has the address, and the program that listens there answers"
        )
        return Admission(Place.NOWHERE, "NodeAddress", f"{reason} (node-local-dns does so). {_IF_UNMEANT}")
    if use := kernels_use(address, node):
        reason = f"is not served here: it is {use}. {_FREE_RANGE}"
        return Admission(Place.NOWHERE, "NeededAddress", reason)
    return Admission(Place.VIP)


def _written_addresses(service: Service, most: int = MOST_ADDRESSES) -> list[tuple[Kind, str]]:
    return [
        *[(Kind.CLUSTER_IP, ip) for ip in cluster_ips(service, most)],
        *[(Kind.LOAD_BALANCER_IP, ip) for ip in load_balancer_ips(service, most)],
        *[(Kind.EXTERNAL_IP, ip) for ip in (service.spec.external_ips or ())[:most]],
    ]


def _allowed(kind: Kind, settings: Settings) -> Allowed:
    if kind is Kind.EXTERNAL_IP:
        return Allowed(settings.external_ip_ranges, "--external-ip-range")
    return balanced_range(settings)


def _problem(kind: Kind, written: str, name: str, reason: str) -> Problem:
    name = f"Invalid{kind.value[0].upper()}{kind.value[1:]}" if name == "Invalid" else name
    return Problem.about(name, f"{kind.value} {quoted(written)}", reason)


def _protected(kind: Kind, address: str, port: int) -> Problem:
    rest = "is not served: the address is this node's own, and --protected-ports keeps that port for the node."
    return Problem.about("ProtectedPort", f"{kind.value} {address} port {port}", rest)
