"""What the rules do to the first packet of a connection, in terms that fit every backend."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from kroute.firewall.sets import Sets
from kroute.model.addresses import Family, family_of


class Packet(NamedTuple):
    """The first packet of a connection. If `in_interface` is "", a process of this node sends it.

    `mark` is the packet mark (`--masquerade-mark`), which the rules set and read.
    """

    protocol: int
    source: str
    destination: str
    port: int
    in_interface: str = ""
    mark: int = 0

    @property
    def family(self) -> Family:
        return family_of(self.destination)


class Ruling(StrEnum):
    """What the rules do with a packet before IPVS takes it."""

    PASSED = "passed"
    REFUSED = "refused"
    """The client gets a TCP reset or an ICMP error at once."""
    DROPPED = "dropped"
    """The client gets no answer."""


class Admission(NamedTuple):
    """Whether a packet reaches IPVS. `why` is the comment of the rule that decided; "" if no rule matched."""

    ruling: Ruling
    why: str


class SourceChoice(NamedTuple):
    """The source with which a packet leaves for a real server.

    `is_kept`: it is the client's. Otherwise it is `address`; if that is "", the kernel chooses one of the node's own.
    `why` is the comment of the rule that decided; "" if no rule matched.
    """

    is_kept: bool
    address: str
    why: str


class Rules(Protocol):
    """The rules of one family as the backend writes them. The methods send a packet through these same rules."""

    def admission(self, packet: Packet, sets: Sets, *, has_virtual_server: bool) -> Admission:
        """What the rules do with a packet to one of this node's addresses before a virtual server takes it.

        A packet that a process of this node sends to a virtual server meets only the rules for outgoing packets,
        because IPVS then takes it. Without a virtual server it arrives on the loopback interface, and meets the rules
        for incoming packets too.
        """
        ...

    def sources(self, packet: Packet, real_servers: Sequence[tuple[str, int]], sets: Sets) -> list[SourceChoice]:
        """The source that each of these real servers sees in an admitted packet, in their order."""
        ...
