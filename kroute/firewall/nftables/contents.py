"""The elements of the sets of both tables: what the kernel has, and how they are changed.

The kernel's sets have no bound of their own, so the elements are counted here. In a set of networks alone those that
overlap are left to `Networks`, which needs to know what stands: the first change or listing of such a set reads it.
"""

import errno
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network

import msgspec
import structlog

from kroute.firewall.nftables.names import BY_NAME, DEFINITIONS, TABLES, full_name, set_name
from kroute.firewall.sets import SHAPES, FullSets, Room
from kroute.kernel.clients import NftablesClient
from kroute.kernel.errors import KernelError, describe_errno
from kroute.kernel.nftables.objects import AddElements, DeleteElements, ElementChange, FlushSet, NftChange, is_interval
from kroute.kernel.set_elements import element_text
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet, Element, SetEntry
from kroute.reconcile.batches import sliced

log = structlog.get_logger(__name__)

FULL = "the set is full"
OVERLAPS = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT})
"""Refusals which mean that another program has changed a set of networks."""
ATTEMPTS = 3
"""How often changes of networks are tried; before each further attempt the set is read again."""

WITH_NETWORKS = frozenset(which for which, definition in DEFINITIONS.items() if is_interval(definition.parts))

Changes = dict[Element, bool]
Key = tuple[Family, AddressSet]


class NetworkEdit(msgspec.Struct, frozen=True):
    """What to write in one transaction: first the deletions, then the additions.

    `standing` is what then stands in the kernel, and `wanted` what is then wanted.
    """

    delete: tuple[str, ...]
    add: tuple[str, ...]
    standing: frozenset[str]
    wanted: frozenset[str]


class Networks:
    """Knows which networks of a set are in the kernel (they stand), and which others are wanted too.

    nf_tables refuses networks that overlap: the smaller one says nothing that the larger does not. So only those wanted
    networks stand that are in no other one. The rest are remembered, and written when the network that covers them is
    deleted. Networks are text in canonical form.

    `standing` are those that stand, `wanted` also those that are covered by one that stands.
    """

    def __init__(self) -> None:
        self.standing: frozenset[str] = frozenset()
        self.wanted: frozenset[str] = frozenset()

    def found(self, standing: Iterable[str]) -> None:
        """Take in what stands in the kernel. What is wanted and not covered by it has been deleted there."""
        self.standing = frozenset(standing)
        hidden = self.wanted - self.standing
        while uncovered := outermost(hidden | self.standing) & hidden:
            hidden -= uncovered
        self.wanted = self.standing | hidden

    def edit(self, changes: Mapping[str, bool]) -> NetworkEdit:
        """What to write so that these networks are wanted (True), or not any more (False). Nothing is noted yet."""
        unwanted = {network for network, is_wanted in changes.items() if not is_wanted}
        wanted = self.wanted - unwanted | (changes.keys() - unwanted)
        standing = frozenset(outermost(wanted))
        gone, new = sorted(self.standing - standing), sorted(standing - self.standing)
        return NetworkEdit(tuple(gone), tuple(new), standing, wanted)

    def settle(self, edit: NetworkEdit) -> None:
        """Note that an edit has been written."""
        self.standing, self.wanted = edit.standing, edit.wanted


def outermost(networks: Collection[str]) -> set[str]:
    """Those of the networks, all of one family, that are in no other."""
    if len(networks) < 2:
        return set(networks)
    found: set[str] = set()
    last = -1
    for network, text in sorted(((ip_network(text), text) for text in networks), key=lambda one: _order(one[0])):
        first = int(network.network_address)
        if first > last:
            last = first | int(network.hostmask)
            found.add(text)
    return found


def _order(network: IPv4Network | IPv6Network) -> tuple[int, int]:
    """Networks in the order of their first addresses, the larger before those in it."""
    return int(network.network_address), network.prefixlen


class SetContents:
    """Writes and reads the elements of the sets, each up to its capacity."""

    def __init__(self, nftables: NftablesClient, room: Room) -> None:
        self._nftables = nftables
        self._room = room
        self._full = FullSets()
        self._counts: dict[Key, int] = {}
        self._exact: set[Key] = set()
        self._networks: dict[Key, Networks] = {}

    def made(self, family: Family, which: AddressSet) -> None:
        """Note that a set was made, and is empty."""
        self._counts[family, which] = 0
        if which in WITH_NETWORKS:
            self._networks[family, which] = Networks()

    async def all(self, family: Family) -> AsyncIterator[list[SetEntry]]:
        """All elements of one family, in parts. KernelError ENOENT if a set is missing."""
        for which in SHAPES:
            if which in WITH_NETWORKS:
                networks = await self._read_networks(family, which)
                async for part in sliced(_elements(networks.wanted)):
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
        """What the kernel refuses leaves all networks as they are."""
        refused = {element: errno.EINVAL for element in changes if not _is_network(element)}
        waiting = {str(element[0]): is_wanted for element, is_wanted in changes.items() if element not in refused}
        try:
            number = await self._write_networks(family, which, waiting)
        except KernelError as error:
            number = error.errno or errno.EIO
        if number:
            refused = dict.fromkeys(changes, number) | refused
        networks = self._networks.get((family, which))
        self._counts[family, which] = len(networks.wanted) if networks is not None else 0
        why = {element: describe_errno(number) for element, number in refused.items()}
        return {
            SetEntry(which, element): _sentence(family, which, element, text, is_added=changes[element])
            for element, text in why.items()
        }

    async def _write_networks(self, family: Family, which: AddressSet, changes: Mapping[str, bool]) -> int:
        """Write all changes or none; returns the errno with which the kernel refuses them, or 0.

        Where the set is not as it was left, it is read again. Another program may also have added an interval that is
        no network, and cannot be deleted by any name that is known here: then the set is emptied and filled again.
        """
        networks = self._networks.get((family, which))
        number = 0
        for _ in range(ATTEMPTS):
            if networks is None:
                networks = await self._read_networks(family, which)
            edit = networks.edit(changes)
            written = _element_changes(which, _elements(edit.delete), _elements(edit.add))
            number = await self._transact(family, written)
            if number not in OVERLAPS:
                break
            networks = None
        if networks is None:
            networks = await self._read_networks(family, which)
            edit = networks.edit(changes)
            filling = _element_changes(which, (), _elements(edit.standing))
            number = await self._transact(family, [FlushSet(set_name(which)), *filling])
            if not number:
                log.warning("set.rebuilt", set=full_name(family, which), why="it had ranges that are not networks")
        if not number:
            networks.settle(edit)
        return number

    async def _transact(self, family: Family, changes: Sequence[NftChange]) -> int:
        """Make all changes or none; returns the errno of the first that is refused, or 0."""
        return next((failure.errno for failure in await self._nftables.transact(TABLES[family], changes)), 0)

    async def _read_networks(self, family: Family, which: AddressSet) -> Networks:
        """Take in what the kernel has of a set with networks. KernelError ENOENT if it is missing."""
        networks = self._networks.setdefault((family, which), Networks())
        try:
            networks.found(str(element[0]) for element in await self.read(family, which))
        except KernelError:
            del self._networks[family, which]
            raise
        self._counts[family, which] = len(networks.wanted)
        return networks

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
            present = await self._present(family, which)
        except KernelError:
            return ()  # the write will say why
        self._counts[key] = len(present)
        self._exact.add(key)
        new = [element for element in added if element not in present]
        room = most - len(present) + sum(element in present for element in deleted)
        if len(new) > room:
            self._full.report(full_name(family, which), most)
        return dict.fromkeys(new[max(0, room) :])

    async def _present(self, family: Family, which: AddressSet) -> Collection[Element]:
        if which in WITH_NETWORKS:
            return frozenset(_elements((await self._read_networks(family, which)).wanted))
        return await self.read(family, which)


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


def _is_network(element: Element) -> bool:
    try:
        [network] = element
        return "/" in str(ip_network(str(network)))
    except ValueError:
        return False


def _elements(networks: Iterable[str]) -> list[Element]:
    return [(network,) for network in networks]


def _sentence(family: Family, which: AddressSet, element: Element, why: str, *, is_added: bool) -> str:
    verb, preposition = ("add", "to") if is_added else ("delete", "from")
    return f"cannot {verb} {element_text(element)} {preposition} set {full_name(family, which)}: {why}"
