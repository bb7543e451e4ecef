"""The fate of a packet, from its way through the rules of each hook: the same for every backend.

A backend traces a packet through its own rules at one hook (`Trace`). The order of the hooks around IPVS is here.
"""

from collections.abc import Callable, Sequence
from enum import Enum, StrEnum, auto
from typing import TypeAlias

import msgspec

from kroute.firewall import reasons
from kroute.firewall.packets import Admission, Packet, Ruling, SourceChoice
from kroute.firewall.sets import LOOKED_UP, SHAPES, End, Part, Sets, holds, networks_of
from kroute.model.plan import AddressSet, Element


class Hook(Enum):
    """Where rules meet a packet."""

    OUTPUT = auto()
    """Packets of this node's own processes, before IPVS takes them."""
    INPUT = auto()
    """Packets to this node's addresses, before IPVS takes them; and what IPVS did not take in OUTPUT, from lo."""
    PREROUTING = auto()
    """Packets from elsewhere, before they are routed. Rules here only mark, so no fate is traced through them."""
    NAT_PREROUTING = auto()
    NAT_OUTPUT = auto()
    NAT_POSTROUTING = auto()
    """Packets that leave, after IPVS has replaced their destination."""


class Fate(StrEnum):
    """What ended a packet's way through a hook's rules."""

    NONE = ""
    """Nothing: it has passed all rules."""
    ACCEPTED = "accepted"
    DROPPED = "dropped"
    REFUSED = "refused"
    TRANSLATED = "translated"
    """It has another source."""


class TraceResult(msgspec.Struct, frozen=True):
    """How a packet left a hook.

    `detail` says how it was refused, or which source it has ("" if the kernel chooses one). `met` has the comments of
    the rules that it matched, in order. `mark` is its mark afterwards.
    """

    fate: Fate
    detail: str
    met: tuple[str, ...]
    mark: int

    @property
    def why(self) -> str:
        """The comment of the last rule that the packet matched; "" if it matched none."""
        return self.met[-1] if self.met else ""


Trace: TypeAlias = Callable[[Hook, Packet, Sets], TraceResult]
"""Sends a packet through a hook's rules."""


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
        key += (packet.protocol, packet.port) if part is Part.PORT else (addresses[next(ends)],)
    if length is not None:
        return (*key[:-1], networks_of(str(key[-1]))[length]) in sets.get(which, ())
    return holds(sets.get(which, ()), key)


def is_interface(name: str, pattern: str) -> bool:
    """Whether a packet's input interface is the one named, or begins with a prefix that ends in `+`."""
    return bool(name) and (name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern)


_SAY_LITTLE = frozenset({reasons.REFUSED, reasons.RESTRICTED, reasons.WITHIN_RANGES})
"""Comments of rules that act on what another rule decides, or let the packet go on to the rules that do."""


def admission(trace: Trace, packet: Packet, sets: Sets, *, has_virtual_server: bool) -> Admission:
    """As `Rules.admission`. IPVS is after INPUT, and after OUTPUT for this node's packets; others return on lo."""
    is_own = not packet.in_interface
    outcome = trace(Hook.OUTPUT if is_own else Hook.INPUT, packet, sets)
    if outcome.fate is Fate.NONE and is_own and not has_virtual_server:
        outcome = trace(Hook.INPUT, packet._replace(in_interface="lo"), sets)
    *_, why = ["", *(text for text in outcome.met if text not in _SAY_LITTLE)]
    if outcome.fate in {Fate.NONE, Fate.ACCEPTED}:
        return Admission(Ruling.PASSED, why)
    if outcome.fate is Fate.REFUSED:
        return Admission(Ruling.REFUSED, f"{why} ({outcome.detail})")
    return Admission(Ruling.DROPPED, why)


def sources(trace: Trace, packet: Packet, real_servers: Sequence[tuple[str, int]], sets: Sets) -> list[SourceChoice]:
    """As `Rules.sources`. Packets are marked by the client's destination, and translated after IPVS."""
    before = trace(Hook.NAT_PREROUTING if packet.in_interface else Hook.NAT_OUTPUT, packet, sets)
    leaving = packet._replace(mark=before.mark)
    choices = []
    for address, port in real_servers:
        outcome = trace(Hook.NAT_POSTROUTING, leaving._replace(destination=address, port=port), sets)
        is_kept = outcome.fate is Fate.NONE
        why = before.met[0] if before.met else outcome.met[0] if not is_kept else ""
        choices.append(SourceChoice(is_kept=is_kept, address=outcome.detail, why=why))
    return choices
