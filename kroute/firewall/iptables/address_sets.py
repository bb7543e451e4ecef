"""The names and definitions of the IP sets that the rules look up: each AddressSet has one for each family."""

from functools import lru_cache

from kroute.firewall.sets import ROOM, SHAPES, Room
from kroute.kernel.firewall_clients import IpsetClient
from kroute.kernel.ipset import SetDefinition
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet

PREFIX = "KROUTE-"
"""The prefix of every name that kroute makes in iptables and ipset."""

HASH_SIZE = 1024
"""The initial size of a set's hash table, which the kernel enlarges as the set grows."""

_PREFIXES = {Family.IPV4: PREFIX, Family.IPV6: f"{PREFIX}6-"}


@lru_cache(64)
def set_name(family: Family, which: AddressSet) -> str:
    """The name of this family's set. The cache makes each name one string, shared by all entries."""
    return f"{_PREFIXES[family]}{which}"


def set_named(name: str) -> AddressSet:
    return _BY_NAME[name]


def set_definitions(room: Room = ROOM) -> list[SetDefinition]:
    """All sets of both families, as they are made."""
    return [
        SetDefinition(set_name(family, which), f"hash:{','.join(parts)}", family.number, HASH_SIZE, room.first)
        for family in Family
        for which, parts in SHAPES.items()
    ]


_BY_NAME = {set_name(family, which): which for family in Family for which in AddressSet}


async def are_present(ipset: IpsetClient) -> bool:
    """Whether the kernel has sets of kroute's. Raises KernelError."""
    return any(name.startswith(PREFIX) for name in await ipset.names())
