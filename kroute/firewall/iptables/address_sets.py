"""The IP sets that the rules look up: each AddressSet has one for each family. Names, definitions, and growth.

`maxelem` of a set that exists cannot be changed, so a larger set takes its name. The larger set is filled before the
kernel swaps the names in one step, so rules never look into a set that is empty or half full. A set that is left
because the agent was killed meanwhile has our prefix, and is destroyed like any set that no rule needs.
"""

from functools import lru_cache

import structlog

from kroute.firewall.sets import ROOM, SHAPES, FullSets, Room
from kroute.kernel.clients import IpsetClient
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import AddEntry, SetDefinition
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet
from kroute.reconcile.cleanup_report import CleanupReport

log = structlog.get_logger(__name__)

LARGER = "-LARGER"
"""What follows the name of the set that is being filled. ipset allows 31 bytes for all."""

PREFIX = "KROUTE-"
"""The prefix of every name that kroute makes in iptables and ipset for Services."""

POLICIES = "KROUTENP-"
"""The same for network policies."""

HASH_SIZE = 1024
"""The initial size of a set's hash table, which the kernel enlarges as the set grows."""

_PREFIXES = {Family.IPV4: PREFIX, Family.IPV6: f"{PREFIX}6-"}


@lru_cache(64)
def set_name(family: Family, which: AddressSet) -> str:
    """The name of this family's set. The cache makes each name one string, shared by all entries."""
    return f"{_PREFIXES[family]}{which}"


def set_definitions(room: Room = ROOM) -> list[SetDefinition]:
    """All sets of both families, as they are made."""
    return [
        SetDefinition(set_name(family, which), f"hash:{','.join(parts)}", family.number, HASH_SIZE, room.first)
        for family in Family
        for which, parts in SHAPES.items()
    ]


BY_NAME = {set_name(family, which): which for family in Family for which in AddressSet}


async def are_present(ipset: IpsetClient, *prefixes: str) -> bool:
    """Whether the kernel has sets whose names have one of the prefixes. Raises KernelError."""
    return any(name.startswith(prefixes) for name in await ipset.names())


async def destroy_sets(ipset: IpsetClient, prefix: str, report: CleanupReport) -> None:
    """Destroy the sets whose names have the prefix."""
    for name in sorted(name for name in await ipset.names() if name.startswith(prefix)):
        with report.step(f"set {name}"):
            await ipset.destroy(name)
            report.add(f"destroy set {name}")


class SetGrowth:
    """Enlarges the sets of one firewall. `standing` is how many elements each set has room for, by its name."""

    def __init__(self, ipset: IpsetClient, room: Room) -> None:
        self.standing: dict[str, int] = {}
        self._ipset = ipset
        self._room = room
        self._full = FullSets()

    def found(self, name: str, room: int) -> None:
        """Note how many elements a set has room for."""
        self.standing[name] = room

    async def grow(self, name: str) -> bool:
        """Give a full set the next size; False if it has the largest already, which is logged once. KernelError."""
        found = await self._ipset.definition(name)
        if found is None:
            return False
        if found.maxelem >= self._room.most:
            self._full.report(name, found.maxelem)
            return False
        await self.enlarge(found, self._room.after(found.maxelem))
        return True

    async def enlarge(self, found: SetDefinition, room: int) -> None:
        """Give a set room for so many elements. KernelError, with the set as it was, when there is no memory for it."""
        name, larger = found.name, found._replace(name=found.name + LARGER, maxelem=room)
        await self._ipset.destroy(larger.name)
        await self._ipset.create(larger)
        try:
            elements = await self._ipset.read(name)
            for failure in await self._ipset.write([AddEntry(larger.name, element) for element in elements]):
                raise KernelError(f"{failure}; set {name} stays as it is", errno=failure.errno)
            await self._ipset.swap(name, larger.name)
            self.standing[name] = room
        finally:
            await self._ipset.destroy(larger.name)
        log.warning("set.grown", set=name, elements=len(elements), room=room, was=found.maxelem)
