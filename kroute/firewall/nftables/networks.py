"""Which networks of a set stand in the kernel, though others are wanted too.

nf_tables refuses networks that overlap: the smaller one says nothing that the larger does not. So of the networks that
are wanted for one key, only those stand that are in no other. The rest are remembered, and written when the network
that covers them goes. The key is what an element has before its network: an address, protocol and port, or nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network

import msgspec

from kroute.model.plan import Element
from kroute.reconcile.batches import in_portions

Key = Element


ADD_SECONDS = 30e-6
ADD_SECONDS_EACH, DELETE_SECONDS_EACH = 40e-9, 1.1e-6
"""What the kernel takes to add a network to a set of concatenations, and more for each network of the set; and to
delete one of the newest, for each network of the set. Measured with 20,000 of them, Linux 6.18."""
TRANSACTION_SECONDS = 0.006
"""How long the event loop should wait for the edits of one transaction, unless one edit alone takes longer."""


class Edit(msgspec.Struct, frozen=True):
    """What to write for one key, in one transaction: first the deletions, then the additions.

    `wanted` are the networks that are then wanted.
    """

    key: Key
    delete: tuple[Element, ...]
    add: tuple[Element, ...]
    wanted: frozenset[str]


class Networks:
    """The networks of one set; they are text in canonical form."""

    def __init__(self, standing: Iterable[Element] = ()) -> None:
        self._standing: defaultdict[Key, set[str]] = defaultdict(set)
        self._wanted: dict[Key, frozenset[str]] = {}
        self._count = 0
        self.found(standing)

    def __len__(self) -> int:
        """How many networks are wanted."""
        return self._count

    def found(self, standing: Iterable[Element]) -> None:
        """Take in what stands in the kernel. What is wanted and not covered by it has been deleted there."""
        before = self._wanted
        self._standing, self._wanted = defaultdict(set), {}
        for element in standing:
            self._standing[element[:-1]].add(str(element[-1]))
        for key, networks in self._standing.items():
            hidden = before.get(key, frozenset()) - networks
            self._wanted[key] = frozenset(networks | (hidden - outermost(hidden | networks)))
        self._count = sum(map(len, self._wanted.values()))

    def all(self) -> Iterator[Element]:
        """Every network that stands, or that is wanted and covered by one that stands."""
        return ((*key, network) for key, networks in self._wanted.items() for network in networks)

    def standing(self) -> Iterator[Element]:
        """Every network that stands."""
        return ((*key, network) for key, networks in self._standing.items() for network in networks)

    def edits(self, changes: Mapping[Element, bool]) -> list[Edit]:
        """What to write so that these networks are wanted (True), or not any more (False). Nothing is noted yet."""
        changed: defaultdict[Key, dict[str, bool]] = defaultdict(dict)
        for element, is_wanted in changes.items():
            changed[element[:-1]][str(element[-1])] = is_wanted
        return [part for key, networks in changed.items() for part in self._parts(self._edit(key, networks))]

    def settle(self, edit: Edit) -> None:
        """Note that an edit has been written."""
        standing = self._standing[edit.key]
        standing.difference_update(str(it[-1]) for it in edit.delete)
        standing.update(str(it[-1]) for it in edit.add)
        if not standing:
            del self._standing[edit.key]
        self._count += len(edit.wanted) - len(self._wanted.get(edit.key, ()))
        if edit.wanted:
            self._wanted[edit.key] = edit.wanted
        else:
            self._wanted.pop(edit.key, None)

    def _parts(self, edit: Edit) -> Iterator[Edit]:
        """An edit that only adds, or only deletes, in parts that are short for the size of the set."""
        elements = edit.add or edit.delete
        seconds = _seconds(len(edit.add), len(edit.delete), len(self))
        if (edit.add and edit.delete) or seconds <= TRANSACTION_SECONDS:
            yield edit
            return
        most = max(1, int(len(elements) * TRANSACTION_SECONDS / seconds))
        wanted = self._wanted.get(edit.key, frozenset())
        for start in range(0, len(elements) - most, most):
            part = elements[start : start + most]
            networks = frozenset(str(it[-1]) for it in part)
            wanted = wanted | networks if edit.add else wanted - networks
            yield Edit(edit.key, () if edit.add else part, part if edit.add else (), wanted)
        rest = elements[(len(elements) - 1) // most * most :]
        yield Edit(edit.key, () if edit.add else rest, rest if edit.add else (), edit.wanted)

    def _edit(self, key: Key, changes: Mapping[str, bool]) -> Edit:
        gone = {network for network, is_wanted in changes.items() if not is_wanted}
        wanted = self._wanted.get(key, frozenset()) - gone | (changes.keys() - gone)
        standing, target = self._standing.get(key, set()), outermost(wanted)
        return Edit(
            key,
            tuple((*key, network) for network in sorted(standing - target)),
            tuple((*key, network) for network in sorted(target - standing)),
            wanted,
        )


def outermost(networks: Collection[str]) -> set[str]:
    """Those of the networks, all of one family, that are in no other."""
    if len(networks) < 2:
        return set(networks)
    found: set[str] = set()
    last = -1
    for network, text in sorted(((ip_network(it), it) for it in networks), key=lambda one: _order(one[0])):
        first = int(network.network_address)
        if first > last:
            last = first | int(network.hostmask)
            found.add(text)
    return found


def _order(network: IPv4Network | IPv6Network) -> tuple[int, int]:
    """Networks in the order of their first addresses, the larger before those in it."""
    return int(network.network_address), network.prefixlen


def _seconds(added: int, deleted: int, size: int) -> float:
    """About how long the kernel works on a transaction for a set of so many networks."""
    return (ADD_SECONDS + ADD_SECONDS_EACH * size) * added + DELETE_SECONDS_EACH * size * deleted


def portions(edits: Iterable[Edit], size: int) -> Iterator[list[Edit]]:
    """The edits of a set of so many networks, by transactions that the kernel makes in a short time."""
    return in_portions(edits, lambda edit: _seconds(len(edit.add), len(edit.delete), size), TRANSACTION_SECONDS)
