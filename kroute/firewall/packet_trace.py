"""What the rules do to the first packet of a connection, in terms that fit every backend.

A backend traces a packet through its own rules at one hook (`Rules.trace`). The order of the hooks around IPVS is here.
"""

from collections.abc import Sequence
from enum import Enum, StrEnum, auto
from typing import NamedTuple

import msgspec

from kroute.firewall import reasons
from kroute.firewall.sets import LOOKED_UP, SHAPES, ElementPart, End, Sets, holds, networks_of
from kroute.model.addresses import Family, family_of
from kroute.model.plan import AddressSet, Element


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


class SourceChoice(NamedTuple):
    """The source with which a packet leaves for a real server.

    `is_kept`: it is the client's. Otherwise it is `address`; if that is "", the kernel chooses one of the node's own.
    `why` is the comment of the rule that decided; "" if no rule matched.
    """

    is_kept: bool
    address: str
    why: str


class Hook(Enum):
    """Where rules meet a packet."""

    OUTPUT = auto()
    """Packets of this node's own processes, before IPVS takes them."""
    INPUT = auto()
    """Packets to this node's addresses, before IPVS takes them; and what IPVS did not take in OUTPUT, from lo."""
    PREROUTING = auto()
    """Packets from elsewhere, before they are routed. Rules here only mark, so no packet is traced through them."""
    NAT_PREROUTING = auto()
    NAT_OUTPUT = auto()
    NAT_POSTROUTING = auto()
    """Packets that leave, after IPVS has replaced their destination."""


class Ending(StrEnum):
    """What ended a packet's way through a hook's rules."""

    NONE = ""
    """Nothing: it has passed all rules."""
    ACCEPTED = "accepted"
    DROPPED = "dropped"
    """The client gets no answer."""
    REFUSED = "refused"
    """The client gets a TCP reset or an ICMP error at once."""
    TRANSLATED = "translated"
    """It has another source."""


class PacketAdmission(NamedTuple):
    """Whether a packet reaches IPVS, unless `ending` is DROPPED or REFUSED.

    `why` is the comment of the rule that decided; "" if no rule matched.
    """

    ending: Ending
    why: str


class TraceResult(msgspec.Struct, frozen=True):
    """How a packet left a hook.

    `detail` says how it was refused, or which source it has ("" if the kernel chooses one). `met` has the comments of
    the rules that it matched, in order. `mark` is its mark afterwards.
    """

    ending: Ending
    detail: str
    met: tuple[str, ...]
    mark: int

    @property
    def why(self) -> str:
        """The comment of the last rule that the packet matched; "" if it matched none."""
        return self.met[-1] if self.met else ""


def is_in_set(
    packet: Packet, which: AddressSet, sets: Sets, *, by: tuple[End, ...] = (), length: int | None = None
) -> bool:
    """Whether a set has what is looked up of the packet: the parts of `LOOKED_UP`, unless `by` names others.

    `length`: only a network of this prefix length counts, if the element ends in one.
    """
    addresses = {End.SOURCE: packet.source, End.DESTINATION: packet.destination}
    ends = iter(by or LOOKED_UP[which])
    key: Element = ()
    for part in SHAPES[which]:
        key += (packet.protocol, packet.port) if part is ElementPart.PORT else (addresses[next(ends)],)
    if length is not None:
        return (*key[:-1], networks_of(str(key[-1]))[length]) in sets.get(which, ())
    return holds(sets.get(which, ()), key)


def is_interface(name: str, pattern: str) -> bool:
    """Whether a packet's input interface is the one named, or begins with a prefix that ends in `+`."""
    return bool(name) and (name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern)


_SAY_LITTLE = frozenset({reasons.REFUSED, reasons.RESTRICTED, reasons.WITHIN_RANGES})
"""Comments of rules that act on what another rule decides, or let the packet go on to the rules that do."""


class Rules(msgspec.Struct, frozen=True):
    """The rules of one family as a backend writes them. The methods send a packet through these same rules."""

    def trace(self, hook: Hook, packet: Packet, sets: Sets) -> TraceResult:
        """Send a packet through the rules of one hook, which each backend does in its own way."""
        raise NotImplementedError

    def admission(self, packet: Packet, sets: Sets, *, has_virtual_server: bool) -> PacketAdmission:
        """What the rules do with a packet to one of this node's addresses before a virtual server takes it.

        IPVS is after INPUT, and after OUTPUT for packets of this node's own processes: these meet only the rules for
        outgoing packets, because IPVS then takes them. Without a virtual server they arrive on the loopback interface,
        and meet the rules for incoming packets too.
        """
        is_own = not packet.in_interface
        outcome = self.trace(Hook.OUTPUT if is_own else Hook.INPUT, packet, sets)
        if outcome.ending is Ending.NONE and is_own and not has_virtual_server:
            outcome = self.trace(Hook.INPUT, packet._replace(in_interface="lo"), sets)
        *_, why = ["", *(text for text in outcome.met if text not in _SAY_LITTLE)]
        if outcome.ending is Ending.ACCEPTED:
            return PacketAdmission(Ending.NONE, why)
        refused = f" ({outcome.detail})" if outcome.ending is Ending.REFUSED else ""
        return PacketAdmission(outcome.ending, why + refused)

    def sources(self, packet: Packet, real_servers: Sequence[tuple[str, int]], sets: Sets) -> list[SourceChoice]:
        """The source that each of these real servers sees in an admitted packet, in their order.

        Packets are marked by the client's destination, and translated after IPVS.
        """
        before = self.trace(Hook.NAT_PREROUTING if packet.in_interface else Hook.NAT_OUTPUT, packet, sets)
        marked = [text for text in before.met if text != reasons.KEPT]
        leaving = packet._replace(mark=before.mark)
        choices = []
        for address, port in real_servers:
            outcome = self.trace(Hook.NAT_POSTROUTING, leaving._replace(destination=address, port=port), sets)
            is_kept = outcome.ending is Ending.NONE
            why = marked[0] if marked else outcome.met[0] if not is_kept else ""
            choices.append(SourceChoice(is_kept=is_kept, address=outcome.detail, why=why))
        return choices
