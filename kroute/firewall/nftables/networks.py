"""Which networks of a set of networks stand in the kernel, though others are wanted too.

nf_tables refuses networks that overlap: the smaller one says nothing that the larger does not. So of the networks that
are wanted, only those stand that are in no other. The rest are remembered, and written when the network that covers
them goes.
"""

from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network

import msgspec


class Edit(msgspec.Struct, frozen=True):
    """What to write in one transaction: first the deletions, then the additions. `wanted` is what is then wanted."""

    delete: tuple[str, ...]
    add: tuple[str, ...]
    wanted: frozenset[str]


class Networks:
    """The networks of one set; they are text in canonical form.

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

    def edit(self, changes: Mapping[str, bool]) -> Edit:
        """What to write so that these networks are wanted (True), or not any more (False). Nothing is noted yet."""
        gone = {network for network, is_wanted in changes.items() if not is_wanted}
        wanted = self.wanted - gone | (changes.keys() - gone)
        target = outermost(wanted)
        return Edit(tuple(sorted(self.standing - target)), tuple(sorted(target - self.standing)), wanted)

    def settle(self, edit: Edit) -> None:
        """Note that an edit has been written."""
        self.standing = self.standing.difference(edit.delete).union(edit.add)
        self.wanted = edit.wanted


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
