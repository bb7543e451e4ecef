"""The contents of the sets that the rules look up; they are the same for every backend."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_network
from typing import NamedTuple

import msgspec
import structlog

from kroute.model.plan import AddressSet, Element

log = structlog.get_logger(__name__)


class Room(msgspec.Struct, frozen=True):
    """How many elements a set of one family can hold at first, and how many after it has grown as often as it may."""

    first: int = 262_144
    most: int = 2_097_152

    def after(self, held: int) -> int:
        """The room to grow to, from a set that can hold `held` elements."""
        return min(max(2 * held, self.first), self.most)


class Capacity(NamedTuple):
    """How many elements a set can hold as it is, and how many at most, since a full set grows."""

    now: int
    most: int


ROOM = Room()
"""The room of each set. The usual 65,536 are fewer than a large cluster's ports; `most` bounds the kernel's memory."""

Sets = Mapping[AddressSet, Collection[Element]]
"""The elements of one family's sets; a set without an item here is empty."""


class ElementPart(StrEnum):
    """A part of an element."""

    ADDRESS = "ip"
    PORT = "port"
    """Two fields: the protocol's number, and the port."""
    NETWORK = "net"
    """`address/prefix length`. A packet's address is looked up in it."""


_PORT = (ElementPart.ADDRESS, ElementPart.PORT)

SHAPES: Mapping[AddressSet, tuple[ElementPart, ...]] = {
    AddressSet.CLUSTER_IP: _PORT,
    AddressSet.EXTERNAL: _PORT,
    AddressSet.EXTERNAL_LOCAL: _PORT,
    AddressSet.NO_LOCAL: _PORT,
    AddressSet.NO_ENDPOINT: _PORT,
    AddressSet.RESTRICTED: _PORT,
    AddressSet.HEALTH_CHECK: _PORT,
    AddressSet.SOURCE_RANGE: (*_PORT, ElementPart.NETWORK),
    AddressSet.HAIRPIN: (*_PORT, ElementPart.ADDRESS),
    AddressSet.VIP: (ElementPart.ADDRESS,),
    AddressSet.POD_NETWORK: (ElementPart.NETWORK,),
}
"""The parts of an element of each set, in this order."""


class End(StrEnum):
    """One of a packet's addresses."""

    SOURCE = "src"
    DESTINATION = "dst"


_TO_PORT = (End.DESTINATION,)

LOOKED_UP: Mapping[AddressSet, tuple[End, ...]] = {
    **dict.fromkeys(SHAPES, _TO_PORT),
    AddressSet.SOURCE_RANGE: (End.DESTINATION, End.SOURCE),
    AddressSet.HAIRPIN: (End.DESTINATION, End.SOURCE),
    AddressSet.POD_NETWORK: (End.SOURCE,),
}
"""The packet's address for each address or network of an element. A port is always the destination's."""

SERVED_EVERYWHERE = (AddressSet.CLUSTER_IP, AddressSet.EXTERNAL)
"""The sets of ports that no rule refuses but those of source ranges. Most new connections are to these."""

SERVED = (*SERVED_EVERYWHERE, AddressSet.EXTERNAL_LOCAL)
"""The sets of ports that Services serve: a VIP answers on these and on no other."""


def holds(elements: Collection[Element], key: Element) -> bool:
    """Whether `key` is an element, or would be one if a network at the element's end were `key`'s last address."""
    if key in elements:
        return True
    return isinstance(key[-1], str) and any((*key[:-1], network) in elements for network in networks_of(key[-1]))


@lru_cache(256)
def networks_of(address: str) -> tuple[str, ...]:
    """The network of each prefix length, from 0 on, that an address is in."""
    alone = ip_network(address)
    return tuple([str(alone.supernet(new_prefix=length)) for length in range(alone.max_prefixlen + 1)])


class SetFill(msgspec.Struct):
    """One set. `entries` are those that kroute has written or found.

    `capacity` is how many it can hold as it is. A full set grows, up to `limit` entries.
    """

    set: str
    entries: int
    capacity: int
    limit: int


class FullSets:
    """The sets of one firewall that have been reported as full."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, name: str, elements: int) -> None:
        """Log that the set cannot hold more than so many elements, unless that has been logged before."""
        if name in self._reported:
            return
        self._reported.add(name)
        log.error(
            "set.full",
            set=name,
            elements=elements,
            next_step="find the Services with the most ports or source ranges: `kroute show services`",
        )
