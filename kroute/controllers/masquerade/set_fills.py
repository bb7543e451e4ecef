"""How full the firewall's sets are: counted with each entry that is written or found, never by reading the kernel."""

from collections import Counter

import msgspec

from kroute.firewall.protocol import Firewall
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet, SetEntry


class SetFill(msgspec.Struct):
    """One set. `entries` are those that kroute has written or found.

    `capacity` is how many it can hold as it is. A full set grows, up to `limit` entries.
    """

    set: str
    entries: int
    capacity: int
    limit: int


class SetFills:
    """Counts the entries of one firewall's sets."""

    def __init__(self, firewall: Firewall) -> None:
        self._firewall = firewall
        self._entries: Counter[tuple[Family, AddressSet]] = Counter()

    def count(self, entry: SetEntry, difference: int) -> None:
        """An entry has come (1) or gone (-1)."""
        self._entries[entry.family, entry.set] += difference

    def entries(self, family: Family, which: AddressSet) -> int:
        """How many entries of one set kroute has written or found."""
        return self._entries[family, which]

    def all(self) -> list[SetFill]:
        """Every set that the kernel has, by family."""
        return [
            SetFill(self._firewall.set_name(family, which), self._entries[family, which], *capacity)
            for family in Family
            for which in AddressSet
            if (capacity := self._firewall.capacity(family, which)) is not None
        ]
