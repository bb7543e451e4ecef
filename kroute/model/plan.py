"""Plans: the desired state of this node, which planning makes and the controllers apply.

There is one `ServicePlan` for each Service, and one `NodePlan` for what depends on no Service.
"""

from enum import IntEnum, StrEnum
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

import msgspec

from kroute.model.addresses import Family, family_of
from kroute.model.node_facts import NodeFacts
from kroute.model.objects import ObjectKey

T = TypeVar("T")

LONGEST_QUOTE = 80
"""Characters of an object's own text that a Problem repeats."""


class Protocol(IntEnum):
    """The transport protocols of Services, by their IP protocol number."""

    TCP = 6
    UDP = 17
    SCTP = 132


class VirtualServerKey(NamedTuple):
    """What names an IPVS virtual server; the address is in canonical text form."""

    protocol: Protocol
    address: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.protocol.name} {host}:{self.port}"


class RealServer(NamedTuple):
    """A destination of a virtual server."""

    address: str
    port: int
    weight: int = 1


class Persistence(NamedTuple):
    """Clients of one network (`prefix_length` bits) keep their real server; `timeout`: seconds after the last use."""

    timeout: int
    prefix_length: int


class VirtualServer(msgspec.Struct, frozen=True, gc=False):
    """An IPVS virtual server as it should be. `flags` are the kernel's `IP_VS_SVC_F_SCHED1..3` bits."""

    key: VirtualServerKey
    scheduler: str
    flags: int
    persistence: Persistence | None
    real_servers: tuple[RealServer, ...]

    def renewing(self, before: "VirtualServer | None") -> "VirtualServer":
        """The same, made of the same objects as the one before it as far as they are equal."""
        if before is None:
            return self
        if self == before:
            return before
        real_servers = _renewed(self.real_servers, before.real_servers)
        return msgspec.structs.replace(self, key=before.key, real_servers=real_servers)


class Vip(NamedTuple):
    """An address to bind, and the source address that the node itself uses towards it (None: the kernel chooses)."""

    address: str
    source: str | None


class AddressSet(StrEnum):
    """The sets that the rules look up, one of each for each address family; the value is how people see it.

    Every port that has endpoints is in just one of the first three, every port without any in NO_ENDPOINT. The rules
    lean on that: a VIP refuses what is in none of the three.
    """

    CLUSTER_IP = "CLUSTER-IP"
    """(address, protocol, port) of every ClusterIP port with endpoints."""
    EXTERNAL = "EXTERNAL"
    """(address, protocol, port) of every node port and external port with policy Cluster: masqueraded."""
    EXTERNAL_LOCAL = "EXTERNAL-LOCAL"
    """(address, protocol, port) of the same with policy Local: the client's address is kept."""
    NO_LOCAL = "NO-LOCAL"
    """(address, protocol, port) out of EXTERNAL_LOCAL that only this node's own clients may use: its endpoints are on
    other nodes, and would answer a client outside behind this node's back."""
    NO_ENDPOINT = "NO-ENDPOINT"
    """(address, protocol, port) of every port that nothing serves: refused."""
    RESTRICTED = "RESTRICTED"
    """(address, protocol, port) of every LoadBalancer port that is for some clients only."""
    SOURCE_RANGE = "SOURCE-RANGE"
    """(address, protocol, port, network) of the clients that are let in to one of RESTRICTED."""
    HAIRPIN = "HAIRPIN"
    """(address, protocol, port, address) of every real server that may be on this node."""
    VIP = "VIP"
    """(address,) of every address on the dummy interface: it answers on Services' ports and to ping only."""
    POD_NETWORK = "POD-NETWORK"
    """(network,) of every network whose addresses are pods', as far as pods are distinguished by networks."""


Element = tuple[str | int, ...]
"""What is in a set; it begins with an address or a network. `AddressSet` says what it consists of."""


class SetEntry(NamedTuple):
    """One entry of an address set, in the set of the family that its first address is of."""

    set: AddressSet
    element: Element

    @property
    def family(self) -> Family:
        """Which family's set it is in."""
        return family_of(str(self.element[0]))


class HealthCheck(NamedTuple):
    """A Service's `healthCheckNodePort`, and how many of its ready endpoints are on this node."""

    port: int
    local_endpoints: int


class Problem(NamedTuple):
    """Something about a Service that kroute cannot do as asked, and what it does instead.

    `reason` is a CamelCase word for the Event, `subject` names the field or annotation with its value (an Event is
    written once for each Service and subject), `message` is one sentence that also says what is allowed.
    """

    reason: str
    subject: str
    message: str


def shortened(text: str) -> str:
    """Text out of an object, short enough for a Problem: an annotation may hold 256 KiB, an Event 1 KiB."""
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."


def quoted(text: str) -> str:
    """Text out of an object as a word of a Problem's sentence."""
    return repr(shortened(text))


def _renewed(after: tuple[T, ...], before: tuple[T, ...]) -> tuple[T, ...]:
    """What is equal to something before is that."""
    if after == before:
        return before
    known = {it: it for it in before}
    return tuple([known.get(it, it) for it in after])


class ServicePlan(msgspec.Struct, frozen=True, gc=False):
    """Everything that one Service means on this node. The plan of an absent Service is empty.

    A virtual server without real servers is a port that nothing serves; in the kernel it exists only for as long as
    real servers of it drain. `vips` are the addresses to bind: not those that another interface of the node has.
    `generation` grows with every plan that the catalog makes; equality of content is `same_as`.
    """

    key: ObjectKey
    generation: int = 0
    virtual_servers: tuple[VirtualServer, ...] = ()
    vips: tuple[Vip, ...] = ()
    set_entries: tuple[SetEntry, ...] = ()
    health_check: HealthCheck | None = None
    problems: tuple[Problem, ...] = ()

    def same_as(self, other: "ServicePlan") -> bool:
        """Whether both say the same, whenever they were made."""
        return self is other or msgspec.structs.replace(self, generation=other.generation) == other

    def renewing(self, before: "ServicePlan | None", generation: int) -> "ServicePlan":
        """The same with this generation, and made of the same objects as the plan before it as far as they are equal.

        An index that holds parts of plans, such as keys, then never holds an equal part twice.
        """
        if before is None:
            return msgspec.structs.replace(self, generation=generation)
        servers = {server.key: server for server in before.virtual_servers}
        return msgspec.structs.replace(
            self,
            key=before.key,
            generation=generation,
            virtual_servers=tuple([it.renewing(servers.get(it.key)) for it in self.virtual_servers]),
            vips=_renewed(self.vips, before.vips),
            set_entries=_renewed(self.set_entries, before.set_entries),
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to serve and nothing to report."""
        return not (self.virtual_servers or self.vips or self.set_entries or self.health_check or self.problems)

    @property
    def service_name(self) -> str:
        """The Service as NAMESPACE/NAME."""
        return str(self.key)


class NodePlan(msgspec.Struct, frozen=True, gc=False):
    """What the node itself means to the rules, whatever Services there are.

    It passes the same stages as the plans of Services. Its `key` is none that a Service can have, since a Service has a
    namespace; `generation` counts together with that of all plans.
    """

    key: ClassVar[ObjectKey] = ObjectKey("", "this node")
    is_empty: ClassVar[bool] = False
    service_name: ClassVar[str] = ""

    node: NodeFacts
    generation: int = 0
    set_entries: tuple[SetEntry, ...] = ()
    problems: tuple[Problem, ...] = ()

    def same_as(self, other: "NodePlan") -> bool:
        """Whether both say the same, whenever they were made."""
        return self is other or msgspec.structs.replace(self, generation=other.generation) == other

    def renewing(self, before: "NodePlan | None", generation: int) -> "NodePlan":
        """The same with this generation, with the set entries of the plan before it as far as they are equal."""
        entries = self.set_entries if before is None else _renewed(self.set_entries, before.set_entries)
        return msgspec.structs.replace(self, generation=generation, set_entries=entries)


Plan: TypeAlias = ServicePlan | NodePlan
"""What the broadcaster passes on. Every plan has a key, a generation, set entries and problems."""
