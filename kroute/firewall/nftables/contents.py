"""The elements of the sets of both tables: what the kernel has, and how they are changed.

The kernel's sets have no bound of their own, so the elements are counted here.

In a set of networks alone, nf_tables refuses networks that overlap: the smaller one says nothing that the larger does
not. So only those wanted networks stand there that are in no other one. The rest are remembered, and written when the
network that covers them is deleted. Such a set has a few networks, and a change writes all of them.
"""

import errno
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Set

from kroute.firewall.nftables.names import BY_NAME, DEFINITIONS, TABLES, full_name, set_name
from kroute.firewall.sets import SHAPES, FullSets, Room, networks_of
from kroute.kernel.clients import NftablesClient
from kroute.kernel.errors import KernelError, describe_errno
from kroute.kernel.nftables.objects import AddElements, DeleteElements, ElementChange, FlushSet, NftChange, is_interval
from kroute.kernel.set_elements import element_text
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet, Element, SetEntry
from kroute.reconcile.batches import sliced

FULL = "the set is full"

WITH_NETWORKS = frozenset(which for which, definition in DEFINITIONS.items() if is_interval(definition.parts))

Changes = dict[Element, bool]
Key = tuple[Family, AddressSet]


class SetContents:
    """Writes and reads the elements of the sets, each up to its capacity."""

    def __init__(self, nftables: NftablesClient, room: Room) -> None:
        self._nftables = nftables
        self._room = room
        self._full = FullSets()
        self._counts: dict[Key, int] = {}
        self._exact: set[Key] = set()
        self._wanted: dict[Key, frozenset[Element]] = {}
        """The networks of a set of networks alone that stand, or are in one that stands."""

    def made(self, family: Family, which: AddressSet) -> None:
        """Note that a set was made, and is empty."""
        self._counts[family, which] = 0
        if which in WITH_NETWORKS:
            self._wanted[family, which] = frozenset()

    async def all(self, family: Family) -> AsyncIterator[list[SetEntry]]:
        """All elements of one family, in parts. KernelError ENOENT if a set is missing."""
        for which in SHAPES:
            if which in WITH_NETWORKS:
                async for part in sliced(await self._read_networks(family, which)):
                    yield [SetEntry(which, element) for element in part]
                continue
            count = 0
            async for part in self._nftables.elements(TABLES[family], DEFINITIONS[which]):
                count += len(part)
                yield [SetEntry(which, element) for element in part]
            self._counts[family, which] = count

    async def read(self, family: Family, which: AddressSet) -> set[Element]:
        """The elements that the kernel has of one set. KernelError ENOENT if it is missing."""
        found: set[Element] = set()
        async for part in self._nftables.elements(TABLES[family], DEFINITIONS[which]):
            found.update(part)
        return found

    async def change(self, family: Family, changes: Mapping[AddressSet, Changes]) -> Mapping[SetEntry, str]:
        """Add elements (True) or delete them; returns those that are refused, each with a sentence that says why."""
        refused: dict[SetEntry, str] = {}
        single: dict[AddressSet, Changes] = {}
        for which, of_set in changes.items():
            surplus = await self._surplus(family, which, of_set)
            refused |= {
                SetEntry(which, element): _sentence(family, which, element, FULL, is_added=True) for element in surplus
            }
            fitting = {element: is_wanted for element, is_wanted in of_set.items() if element not in surplus}
            if which in WITH_NETWORKS:
                refused |= await self._change_networks(family, which, fitting)
            else:
                single[which] = fitting
        return refused | await self._change_single(family, single)

    async def _change_single(self, family: Family, changes: Mapping[AddressSet, Changes]) -> dict[SetEntry, str]:
        written: list[ElementChange] = []
        for which, of_set in changes.items():
            deleted, added = _split(of_set)
            written += _element_changes(which, deleted, added)
            self._counts[family, which] = self._counts.get((family, which), 0) + len(added) - len(deleted)
            if added:
                self._exact.discard((family, which))
        ordered = sorted(written, key=lambda change: isinstance(change, AddElements))
        refused: dict[SetEntry, str] = {}
        for failure in await self._nftables.write(TABLES[family], ordered):
            for entry, is_added in _entries(failure.change):
                why = describe_errno(failure.errno)
                refused[entry] = _sentence(family, entry.set, entry.element, why, is_added=is_added)
                self._counts[family, entry.set] += -1 if is_added else 1
        return refused

    async def _change_networks(self, family: Family, which: AddressSet, changes: Changes) -> dict[SetEntry, str]:
        """Empty the set and fill it again, in one transaction. A refusal leaves all networks as they are."""
        deleted, added = _split(changes)
        try:
            known = self._wanted.get((family, which))
            wanted = (await self._read_networks(family, which) if known is None else known).difference(deleted)
            wanted |= frozenset(added)
            filling = _element_changes(which, (), (network for network in wanted if not _is_within(network, wanted)))
            failures = await self._nftables.transact(TABLES[family], [FlushSet(set_name(which)), *filling])
            number = failures[0].errno if failures else 0
        except KernelError as error:
            number = error.errno or errno.EIO
        if number:
            return {
                SetEntry(which, element): _sentence(family, which, element, describe_errno(number), is_added=is_added)
                for element, is_added in changes.items()
            }
        self._wanted[family, which] = wanted
        self._counts[family, which] = len(wanted)
        return {}

    async def _read_networks(self, family: Family, which: AddressSet) -> frozenset[Element]:
        """The wanted networks, of which those that nothing in the kernel covers have been deleted there.

        KernelError ENOENT if the set is missing.
        """
        standing = await self.read(family, which)
        hidden = {network for network in self._wanted.get((family, which), ()) if _is_within(network, standing)}
        self._wanted[family, which] = wanted = frozenset(standing | hidden)
        self._counts[family, which] = len(wanted)
        return wanted

    async def _surplus(self, family: Family, which: AddressSet, changes: Changes) -> Collection[Element]:
        """The elements for which there is no room, in their order.

        Only if it may be short is the set read, to know which elements are new.
        """
        deleted, added = _split(changes)
        key = family, which
        most = self._room.most
        if self._counts.get(key, 0) + len(added) <= most:
            return ()
        if key in self._exact and self._counts[key] >= most and not deleted:
            return dict.fromkeys(added)
        try:
            read = self._read_networks if which in WITH_NETWORKS else self.read
            present = await read(family, which)
        except KernelError:
            return ()  # the write will say why
        self._counts[key] = len(present)
        self._exact.add(key)
        new = [element for element in added if element not in present]
        room = most - len(present) + sum(element in present for element in deleted)
        if len(new) > room:
            self._full.report(full_name(family, which), most)
        return dict.fromkeys(new[max(0, room) :])


def _split(changes: Changes) -> tuple[list[Element], list[Element]]:
    """The elements to delete and those to add."""
    deleted = [element for element, is_wanted in changes.items() if not is_wanted]
    return deleted, [element for element, is_wanted in changes.items() if is_wanted]


def _element_changes(which: AddressSet, deleted: Iterable[Element], added: Iterable[Element]) -> list[ElementChange]:
    definition = DEFINITIONS[which]
    found: list[ElementChange] = [DeleteElements(definition, tuple(deleted)), AddElements(definition, tuple(added))]
    return [change for change in found if change.elements]


def _entries(change: NftChange) -> list[tuple[SetEntry, bool]]:
    """The entries of a refused change, and whether it would have added them."""
    if not isinstance(change, AddElements | DeleteElements):
        return []
    which = BY_NAME[change.set.name]
    return [(SetEntry(which, element), isinstance(change, AddElements)) for element in change.elements]


def _is_within(network: Element, others: Set[Element]) -> bool:
    """Whether a network is in a larger one of these."""
    address, _, length = str(network[0]).partition("/")
    return not others.isdisjoint((larger,) for larger in networks_of(address)[: int(length)])


def _sentence(family: Family, which: AddressSet, element: Element, why: str, *, is_added: bool) -> str:
    verb, preposition = ("add", "to") if is_added else ("delete", "from")
    return f"cannot {verb} {element_text(element)} {preposition} set {full_name(family, which)}: {why}"
