"""Convert EndpointSlices to what planning reads: validated once, as real servers, with equal parts shared.

A cluster may have 100,000 endpoints, but except for their addresses they differ little: node, conditions and hints. So
all endpoints that are equal in these share one `Traits`, and plans hold the same real server objects as the slices.
Each version of a slice is read once. A real server that the previous version had stays the same object.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter

import msgspec

from kroute.model.addresses import Family, unicast
from kroute.model.objects import EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ObjectKey, TargetRef
from kroute.model.plan import RealServer, quoted

NO_BOUND = 1 << 60

_KINDS_OF_ENDPOINTS = 1 << 14
"""How many different `Traits` are shared at most: more than any cluster has that Kubernetes supports."""


LARGE_SLICE = 10_000
"""Endpoints times ports: a slice of the EndpointSlice controller (100 endpoints) with 100 ports is none yet."""


class PortKey(msgspec.Struct, frozen=True):
    """What a Service port and its slice ports have in common. Their numbers may differ from slice to slice."""

    name: str
    protocol: str


_LONGEST_PORT_NAME = 63  # the API's own bound, which a manifest may exceed

_MOST_HINTS = 2
"""The most hints of an endpoint whose `Traits` are shared. The EndpointSlice controller writes at most one zone and one
node."""


def port_key(name: str, protocol: str) -> PortKey:
    """The key of a port. Equal keys share one object, up to 1,024 of them."""
    return _port_key(name, protocol) if len(name) + len(protocol) <= _LONGEST_PORT_NAME + 4 else PortKey(name, protocol)


@lru_cache(maxsize=1 << 10)
def _port_key(name: str, protocol: str) -> PortKey:
    return PortKey(name, protocol)


class Traits(msgspec.Struct, frozen=True, gc=False):
    """The properties that decide whether an endpoint takes traffic.

    `is_leaving`: it terminates and still serves. `preference`: of two copies of one endpoint, the one with the greater
    value is used. `has_hints`: `for_nodes` and `for_zones` say where its traffic should come from.
    """

    node_name: str | None
    is_ready: bool = True
    is_leaving: bool = False
    preference: tuple[bool, bool, bool] = (True, True, True)
    has_hints: bool = False
    for_nodes: frozenset[str] = frozenset()
    for_zones: frozenset[str] = frozenset()

    @property
    def is_terminating(self) -> bool:
        """Whether the endpoint terminates, still serving or not."""
        return not self.preference[0]


class PodRef(msgspec.Struct, frozen=True):
    """The Pod behind an endpoint, in the slice's own namespace. An empty uid fits any Pod of the name."""

    name: str
    uid: str


class SlicePort(msgspec.Struct, frozen=True):
    """One of a slice's ports: the real server of each of its endpoints, unless the slice is a large one."""

    key: PortKey
    number: int
    real_servers: tuple[RealServer, ...]


class BackendSlice(msgspec.Struct, frozen=True, gc=False):
    """The part of a slice that can be served. `traits` belong to the real servers of each port, in the same order.

    `family` is None for a slice of names; `refused` are the invalid addresses and ports. A large slice has `addresses`:
    it is kept as its endpoints and its ports, and not as all combinations of both, of which there may be millions.
    `pods` are in the order of `traits`, or empty if nobody asks for the weights of pods.
    """

    name: str
    family: Family | None
    ports: tuple[SlicePort, ...]
    traits: tuple[Traits, ...]
    refused: tuple[str, ...]
    addresses: tuple[str, ...] = ()
    pods: tuple[PodRef | None, ...] = ()

    def real_servers(self, port: SlicePort, most: int) -> Sequence[RealServer]:
        """The first real servers of one of the ports; `traits` are in the same order, and may be more."""
        if self.addresses:
            return [RealServer(address, port.number) for address in self.addresses[:most]]
        return port.real_servers[:most]

    @property
    def has_hints(self) -> bool:
        """Whether the choice among these endpoints may depend on where a node is."""
        return any(traits.has_hints for traits in self.traits)


class SlicesOfServices:
    """The slices of each Service, by the Service that they name. `with_pods` as at `read_slice`."""

    def __init__(self, *, with_pods: bool = False) -> None:
        self._with_pods = with_pods
        self.by_service: dict[ObjectKey, tuple[BackendSlice, ...]] = {}
        self._service_of: dict[ObjectKey, ObjectKey] = {}

    def of(self, service: ObjectKey) -> tuple[BackendSlice, ...]:
        return self.by_service.get(service, ())

    def named(self, key: ObjectKey) -> tuple[ObjectKey | None, BackendSlice | None]:
        """The Service of the slice of this name, and the slice; None if there is none."""
        service = self._service_of.get(key)
        pieces = self.by_service[service] if service is not None else ()
        return service, next((piece for piece in pieces if piece.name == key.name), None)

    def with_hints(self) -> list[ObjectKey]:
        """The Services some of whose endpoints have hints."""
        return [key for key, slices in self.by_service.items() if any(piece.has_hints for piece in slices)]

    def place(self, key: ObjectKey, piece: EndpointSlice | None) -> Iterable[ObjectKey]:
        """Put a slice under the Service that it names, and remove it from the one that it named before.

        Returns these Services, each once.
        """
        replaced: BackendSlice | None = None
        affected: dict[ObjectKey, None] = {}
        owner = self._service_of.pop(key, None)
        if owner is not None:
            [replaced] = [old for old in self.by_service[owner] if old.name == key.name]
            self._set(owner, (old for old in self.by_service[owner] if old is not replaced))
            affected[owner] = None
        service = piece.service_key if piece is not None else None
        if piece is not None and service is not None:
            self._service_of[key] = service
            read = read_slice(piece, replaced, with_pods=self._with_pods)
            self._set(service, (*self.by_service.get(service, ()), read))
            affected[service] = None
        return affected

    def _set(self, service: ObjectKey, slices: Iterable[BackendSlice]) -> None:
        self.by_service[service] = tuple(slices)
        if not self.by_service[service]:
            del self.by_service[service]


def first_backends(slices: Iterable[BackendSlice], most: int) -> Iterator[tuple[BackendSlice, SlicePort, int]]:
    """The ports of these slices with how many of their endpoints count, till that are `most` together."""
    for piece in slices:
        for port in piece.ports if piece.traits else ():
            count = min(len(piece.traits), most)
            if not count:
                return
            most -= count
            yield piece, port, count


def addresses_of(slices: Iterable[BackendSlice]) -> frozenset[str]:
    """The addresses of all endpoints of these slices."""
    return frozenset(
        server.address for piece in slices for port in piece.ports for server in piece.real_servers(port, NO_BOUND)
    )


def read_slice(piece: EndpointSlice, before: BackendSlice | None = None, *, with_pods: bool = False) -> BackendSlice:
    """Validate a slice. `before` is the version that it replaces. `with_pods`: keep which Pod each endpoint is.

    Absent conditions mean ready, serving and not terminating. Only the first address of an endpoint counts. A port
    without a number is not served, nor is a slice without ports. kube-proxy does the same. A port without a name has
    the empty one, as the API server writes it into objects (pkg/apis/discovery/v1/defaults.go), and manifests do not.
    """
    refused: dict[str, None] = {}
    family = _FAMILIES.get(piece.address_type)
    ports = [port for port in piece.ports or () if _is_served(port, refused)] if family is not None else []
    if not ports:
        return BackendSlice(piece.metadata.name, family, (), (), tuple(refused))
    endpoints = sorted(_endpoints(piece, refused).items(), key=itemgetter(0))
    known = {server: server for port in before.ports for server in port.real_servers} if before is not None else {}
    addresses = [address for address, _ in endpoints]
    pods = [_pod(ref) for _, (_, ref) in endpoints] if with_pods else []
    is_large = len(endpoints) * len(ports) > LARGE_SLICE
    return BackendSlice(
        piece.metadata.name,
        family,
        tuple([_slice_port(port, [] if is_large else addresses, known) for port in ports]),
        tuple([traits for _, (traits, _) in endpoints]),
        tuple(refused),
        tuple(addresses) if is_large else (),
        tuple(pods) if any(pods) else (),
    )


_FAMILIES: dict[str, Family] = {family.value: family for family in Family}
"""Families by `addressType`. `addressType` may also be FQDN, which is not served."""


def _is_served(port: EndpointPort, refused: dict[str, None]) -> bool:
    if not port.port:
        return False
    if not 1 <= port.port <= 65535:
        refused[f"endpoint port {port.port}"] = None
        return False
    return True


def _endpoints(piece: EndpointSlice, refused: dict[str, None]) -> dict[str, tuple[Traits, TargetRef | None]]:
    """The endpoints with a valid address, by address. Of two copies the one with the greater `preference` is kept."""
    endpoints: dict[str, tuple[Traits, TargetRef | None]] = {}
    is_ipv6 = piece.address_type == "IPv6"
    for endpoint in piece.endpoints or ():
        written = endpoint.addresses[0] if endpoint.addresses else ""
        address = unicast(written)
        if address is None or (":" in address) is not is_ipv6:
            refused[f"endpoint address {quoted(written)}"] = None
            continue
        hints = endpoint.hints
        are_many = hints is not None and len(hints.for_zones or ()) + len(hints.for_nodes or ()) > _MOST_HINTS
        described = _new_traits if are_many else _known_traits
        traits = described(endpoint.node_name, endpoint.conditions, hints)
        known, _ = endpoints.setdefault(address, (traits, endpoint.target_ref))
        if traits.preference > known.preference:
            endpoints[address] = traits, endpoint.target_ref
    return endpoints


def _pod(ref: TargetRef | None) -> PodRef | None:
    return PodRef(ref.name, ref.uid) if ref is not None and ref.kind == "Pod" else None


def _slice_port(port: EndpointPort, addresses: Iterable[str], known: dict[RealServer, RealServer]) -> SlicePort:
    number = port.port or 0
    # as RealServer(address, number), without a call of Python's for each
    real_servers = [tuple.__new__(RealServer, (address, number, 1)) for address in addresses]
    shared = [known.get(server, server) for server in real_servers] if known else real_servers
    return SlicePort(port_key(port.name or "", port.protocol), number, tuple(shared))


def _new_traits(node_name: str | None, conditions: EndpointConditions, hints: EndpointHints | None) -> Traits:
    """What an endpoint is, except its address."""
    not_terminating, ready = conditions.terminating is not True, conditions.ready is not False
    serving = conditions.serving is not False
    return Traits(
        node_name,
        is_ready=ready,
        is_leaving=serving and not not_terminating,
        preference=(not_terminating, ready, serving),
        has_hints=hints is not None,
        for_nodes=frozenset(hint.name for hint in hints.for_nodes or ()) if hints else frozenset(),
        for_zones=frozenset(hint.name for hint in hints.for_zones or ()) if hints else frozenset(),
    )


_known_traits = lru_cache(maxsize=_KINDS_OF_ENDPOINTS)(_new_traits)
"""The same; equal ones share one object."""
