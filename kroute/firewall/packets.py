"""What the rules do to the first packet of a connection, in words that fit every backend."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from kroute.firewall.sets import Sets
from kroute.model.addresses import Family, family_of


class Packet(NamedTuple):
    """The first packet of a connection. Without `in_interface` it is one of this node's own processes.

    `mark` is the kernel's mark on it (`--masquerade-mark`), which the rules set and look at.
    """

    protocol: int
    source: str
    destination: str
    port: int
    in_interface: str = ""
    mark: int = 0

    @property
    def family(self) -> Family:
        """That of its addresses."""
        return family_of(self.destination)


class Ruling(StrEnum):
    """What the rules make of a packet before IPVS takes it."""

    PASSED = "passed"
    REFUSED = "refused"
    """The client gets a TCP reset or an ICMP error at once."""
    DROPPED = "dropped"
    """The client waits in vain."""


class Admission(NamedTuple):
    """Whether a packet gets as far as IPVS. `why` is the deciding rule's own comment, "" when no rule was for it."""

    ruling: Ruling
    why: str


class SourceChoice(NamedTuple):
    """The source with which a packet leaves for a real server.

    `is_kept`: it is the client's. Else it is `address`, or one of the node's that the kernel chooses where that is "".
    `why` is the deciding rule's own comment, "" when no rule was for it.
    """

    is_kept: bool
    address: str
    why: str


class Rules(Protocol):
    """The rules of one family as the backend writes them. A packet is sent through these very rules."""

    def admission(self, packet: Packet, sets: Sets, *, has_virtual_server: bool) -> Admission:
        """What becomes of a packet to an address of this node's before a virtual server takes it.

        Of a packet of the node's own processes, less is decided where there is a virtual server: IPVS takes it as it
        leaves the process. Without one it comes in by the loopback interface and meets the other rules too.
        """
        ...

    def sources(self, packet: Packet, real_servers: Sequence[tuple[str, int]], sets: Sets) -> list[SourceChoice]:
        """The source that each of these real servers sees of an admitted packet, in their order."""
        ...
