"""What one Service means on this node: the values that planning makes and the controllers apply."""

from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from kroute.planning.objects import ObjectKey

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


class Vip(NamedTuple):
    """An address to bind, and the source address that the node itself uses towards it (None: the kernel chooses)."""

    address: str
    source: str | None


class AddressSet(StrEnum):
    """The sets that the masquerade rules look up; the value is the middle of the kernel's set name."""

    CLUSTER_IP = "CLUSTER-IP"
    """(address, protocol, port) of every ClusterIP port."""
    HAIRPIN = "HAIRPIN"
    """(address, protocol, port, address) of every real server that may be on this node."""


class SetEntry(NamedTuple):
    """One entry of an address set: (address, protocol, port), or those and a second address."""

    set: AddressSet
    element: tuple[str, int, int] | tuple[str, int, int, str]


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


class ServicePlan(msgspec.Struct, frozen=True, gc=False):
    """Everything that one Service means on this node. The plan of an absent Service is empty.

    `generation` grows with every plan that the catalog makes; equality of content is `same_as`.
    """

    key: ObjectKey
    generation: int = 0
    virtual_servers: tuple[VirtualServer, ...] = ()
    vips: tuple[Vip, ...] = ()
    set_entries: tuple[SetEntry, ...] = ()
    problems: tuple[Problem, ...] = ()

    def same_as(self, other: "ServicePlan") -> bool:
        """Whether both say the same, whenever they were made."""
        return msgspec.structs.replace(self, generation=other.generation) == other

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to serve and nothing to report."""
        return not (self.virtual_servers or self.vips or self.set_entries or self.problems)
