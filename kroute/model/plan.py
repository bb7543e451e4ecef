"""Plans: the desired state of this node, which planning makes and the controllers apply.

There is one `ServicePlan` for each Service, and one `NodePlan` for what depends on no Service.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from kroute.base.forwarding import MASQUERADING
from kroute.base.wording import host_port
from kroute.model.addresses import Family, family_of
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey

T = TypeVar("T")

SLOW_START_STEPS = 20
"""In so many steps the weight of a real server climbs to its own, where a Service asks for a slow start."""
LONGEST_QUOTE = 80
"""The most characters of an object's own text that a Problem repeats."""
MOST_PROBLEMS = 20
"""Problems of a plan; one more says how many are left out."""


class Protocol(IntEnum):
    """The transport protocols of Services, by their IP protocol number."""

    TCP = 6
    UDP = 17
    SCTP = 132


_NAMES = {protocol: protocol.name for protocol in Protocol}
"""`name` is computed at each call."""


class VirtualServerKey(NamedTuple):
    """The name of an IPVS virtual server. The address is in canonical text."""

    protocol: Protocol
    address: str
    port: int

    def __str__(self) -> str:
        return f"{_NAMES[self.protocol]} {host_port(self.address, self.port)}"


class RealServer(NamedTuple):
    """A real server of a virtual server."""

    address: str
    port: int
    weight: int = 1


class Persistence(NamedTuple):
    """Clients of one network (`prefix_length` bits) keep their real server for `timeout` seconds after its last use."""

    timeout: int
    prefix_length: int


class Ejection(NamedTuple):
    """A real server that does not answer for `after` seconds gets no new connections for `hold` seconds."""

    after: int = 5
    hold: int = 30


class VirtualServer(msgspec.Struct, frozen=True, gc=False):
    """A desired IPVS virtual server. `flags` are the kernel's `IP_VS_SVC_F_SCHED1..3` bits.

    `slow_start` is for how many seconds the weight of a new real server climbs; 0: it has its whole weight at once.
    `method`: how packets are forwarded to the real servers (`kroute/base/forwarding.py`).
    `ejection`: whether real servers are ejected that do not answer; None: they are not.
    `leaving`: the endpoints that terminate and still serve, also those that take no new flows; only of UDP, and not
    with a scheduler that hashes, whose clients would meet them.
    """

    key: VirtualServerKey
    scheduler: str
    flags: int
    persistence: Persistence | None
    real_servers: tuple[RealServer, ...]
    slow_start: int = 0
    method: str = MASQUERADING
    ejection: Ejection | None = None
    leaving: tuple[tuple[str, int], ...] = ()

    def sharing_parts_of(self, before: "VirtualServer") -> "VirtualServer":
        """The same value, with equal parts of `before` in place of its own."""
        if self == before:
            return before
        real_servers = _shared(self.real_servers, before.real_servers)
        return msgspec.structs.replace(self, key=before.key, real_servers=real_servers)


class Vip(NamedTuple):
    """An address to bind, and the source address of the node's own calls to it (None: the kernel chooses)."""

    address: str
    source: str | None


class TunnelEnd(NamedTuple):
    """A pod on this node, by its address, that answers a VIP's clients itself."""

    pod: str
    vip: str


class AddressSet(StrEnum):
    """The sets that the rules look up, one of each for each address family. The value is the name that people see.

    Every port that has endpoints is in exactly one of the first three, and every port without any is in NO_ENDPOINT.
    The rules depend on that: a VIP refuses a port that is in none of the three.
    """

    CLUSTER_IP = "CLUSTER-IP"
    """(address, protocol, port) of every ClusterIP port with endpoints."""
    EXTERNAL = "EXTERNAL"
    """(address, protocol, port) of every node port and external port with policy Cluster: masqueraded."""
    EXTERNAL_LOCAL = "EXTERNAL-LOCAL"
    """(address, protocol, port) of every node port and external port with policy Local: the client's address is
    kept."""
    NO_LOCAL = "NO-LOCAL"
    """(address, protocol, port) of the entries of EXTERNAL_LOCAL that only this node's own clients may use. Their
    endpoints are on other nodes, and would answer an outside client directly, past this node."""
    NO_ENDPOINT = "NO-ENDPOINT"
    """(address, protocol, port) of every port that nothing serves: refused."""
    RESTRICTED = "RESTRICTED"
    """(address, protocol, port) of every LoadBalancer port that only some clients may use."""
    SOURCE_RANGE = "SOURCE-RANGE"
    """(address, protocol, port, network) of the clients that may use an entry of RESTRICTED. Each network has one of
    the `range_lengths`."""
    HEALTH_CHECK = "HEALTH-CHECK"
    """(address, protocol, port) of every health check port, on each address of the node that serves node ports."""
    HAIRPIN = "HAIRPIN"
    """(address, protocol, port, address) of every real server that may be on this node."""
    VIP = "VIP"
    """(address,) of every address on the dummy interface: it answers to ping and on Services' ports only."""
    POD_NETWORK = "POD-NETWORK"
    """(network,) of every pod network, if pods are told from other clients by network."""


def range_lengths(family: Family) -> range:
    """The prefix lengths of the networks in SOURCE_RANGE: 32 of each family, the longest first. None is 0."""
    return range(32, 0, -1) if family is Family.IPV4 else range(128, 0, -4)


Element = tuple[str | int, ...]
"""The value of a set entry. It begins with an address or a network; `AddressSet` gives the parts of each set's
values."""


class SetEntry(NamedTuple):
    """One entry of an address set, in the set of the first address's family."""

    set: AddressSet
    element: Element

    @property
    def family(self) -> Family:
        """Which family's set it is in."""
        return family_of(str(self.element[0]))


class HealthCheck(NamedTuple):
    """A Service's `healthCheckNodePort`, and how many of its ready endpoints are on this node, by its families."""

    port: int
    local_endpoints: Mapping[Family, int]


class Problem(NamedTuple):
    """A request of a Service that kroute cannot fulfil, and what it does instead.

    `reason` is a CamelCase word for the Event. `subject` names the field or annotation with its value; one Event is
    written for each Service and subject. `message` is one sentence that also says what is allowed.
    """

    reason: str
    subject: str
    message: str

    @classmethod
    def about(cls, reason: str, subject: str, rest: str) -> Self:
        """A problem whose message begins with its subject."""
        return cls(reason, subject, f"{subject} {rest}")


class Problems:
    """The first problems of a Service, each once, and how many more there are."""

    def __init__(self, known: Iterable[Problem] = (), more: int = 0) -> None:
        self.kept: dict[Problem, None] = {}
        self.more = more
        self.extend(known)

    def append(self, problem: Problem) -> None:
        if len(self.kept) < MOST_PROBLEMS or problem in self.kept:
            self.kept[problem] = None
        else:
            self.more += 1

    def put_first(self, problem: Problem) -> None:
        self.kept = {problem: None, **self.kept}

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.append(problem)

    def all(self) -> tuple[Problem, ...]:
        """Those kept, and one for the rest."""
        if not self.more:
            return tuple(self.kept)
        subject = "further problems"
        message = f"{self.more} {subject} are not listed. Correct those that are, and the others appear."
        return (*self.kept, Problem("MoreProblems", subject, message))


def shortened(text: str) -> str:
    """An object's text, short enough for a Problem: an annotation may hold 256 KiB, an Event 1 KiB."""
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."


def quoted(text: str) -> str:
    """An object's text, shortened and in quotes, as part of a Problem's sentence."""
    return repr(shortened(text))


def _shared(after: tuple[T, ...], before: tuple[T, ...]) -> tuple[T, ...]:
    """Replace each element that equals one of `before` by that one."""
    if after == before:
        return before
    known = {element: element for element in before}
    return tuple([known.get(element, element) for element in after])


class ServicePlan(msgspec.Struct, frozen=True, gc=False):
    """Everything that one Service means on this node. The plan of an absent Service is empty.

    A virtual server without real servers is a port without endpoints. It exists in the kernel only while real servers
    of it drain. `vips` are the addresses to bind, without those that another interface of the node has. `generation`
    grows with every plan that the catalog makes. `same_as` compares plans without it. `no_local_inside`: the families
    in which `internalTrafficPolicy` is Local and no endpoint is on this node, though there are some elsewhere.
    `direct_vips` are the addresses that are on no link of the node, because pods answer from them; `tunnel_ends` are
    this node's pods among those. `announced` are the addresses that routers may learn from this node, each with the
    nodes that have a ready endpoint if no others may announce the address, else with none.
    """

    key: ObjectKey
    generation: int = 0
    virtual_servers: tuple[VirtualServer, ...] = ()
    vips: tuple[Vip, ...] = ()
    set_entries: tuple[SetEntry, ...] = ()
    health_check: HealthCheck | None = None
    problems: tuple[Problem, ...] = ()
    no_local_inside: tuple[Family, ...] = ()
    tunnel_ends: tuple[TunnelEnd, ...] = ()
    direct_vips: tuple[str, ...] = ()
    announced: tuple[tuple[str, frozenset[str]], ...] = ()

    def same_as(self, other: "ServicePlan") -> bool:
        """Whether both are equal apart from their generations."""
        return self is other or msgspec.structs.replace(self, generation=other.generation) == other

    def sharing_parts_of(self, before: "ServicePlan") -> "ServicePlan":
        """The same plan, with equal parts of `before` in place of its own.

        So an index that holds parts of plans, such as keys, never holds two equal objects.
        """
        servers = {server.key: server for server in before.virtual_servers}
        shared = tuple([server.sharing_parts_of(servers.get(server.key, server)) for server in self.virtual_servers])
        vips, entries = _shared(self.vips, before.vips), _shared(self.set_entries, before.set_entries)
        return msgspec.structs.replace(self, key=before.key, virtual_servers=shared, vips=vips, set_entries=entries)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to serve and nothing to report."""
        return not (self.virtual_servers or self.vips or self.set_entries or self.health_check or self.problems)

    @property
    def service_name(self) -> str:
        """The Service as NAMESPACE/NAME."""
        return str(self.key)


class NodePlan(msgspec.Struct, frozen=True, gc=False):
    """What the rules need to know of the node itself, independent of Services.

    It passes the same stages as the plans of Services. No Service can have its `key`, since the namespace is empty.
    `generation` counts together with the generations of all other plans. `whole` has the facts on which the routes to
    pods of other nodes depend; None where kroute does not connect pods.
    """

    key: ClassVar[ObjectKey] = ObjectKey("", "this node")
    is_empty: ClassVar[bool] = False
    service_name: ClassVar[str] = ""

    node: NodeFacts
    generation: int = 0
    set_entries: tuple[SetEntry, ...] = ()
    problems: tuple[Problem, ...] = ()
    whole: NodeFacts | None = None

    def same_as(self, other: "NodePlan") -> bool:
        """Whether both are equal apart from their generations."""
        return self is other or msgspec.structs.replace(self, generation=other.generation) == other

    def sharing_parts_of(self, before: "NodePlan") -> "NodePlan":
        """The same plan, with equal set entries of `before` in place of its own."""
        return msgspec.structs.replace(self, set_entries=_shared(self.set_entries, before.set_entries))


Plan: TypeAlias = ServicePlan | NodePlan
"""What the broadcaster publishes. Every plan has a key, a generation, set entries and problems."""
