"""An index of owners and what they name, both ways."""

from collections.abc import Collection, Hashable, Iterable, Set
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class Index(Generic[K, V]):
    """What each owner names, and the owners of each value. Owners are kept in tuples: few name the same value."""

    def __init__(self) -> None:
        self._values: dict[K, tuple[V, ...]] = {}
        self._owners: dict[V, tuple[K, ...]] = {}

    def put(self, owner: K, named: Iterable[V]) -> Set[V]:
        """Replace what `owner` names. Returns what it names now and did not before, or no longer."""
        before, after = self._values.pop(owner, ()), tuple(dict.fromkeys(named))
        if after:
            self._values[owner] = after
        changed = set(before).symmetric_difference(after)
        for value in changed:
            owners = self._owners.pop(value, ())
            left = (*owners, owner) if owner not in owners else tuple([other for other in owners if other != owner])
            if left:
                self._owners[value] = left
        return changed

    def owners(self, value: V) -> tuple[K, ...]:
        """The owners that name the value; those who have named it for longest come first."""
        return self._owners.get(value, ())

    def all_owners(self) -> Collection[K]:
        """The owners that name anything."""
        return self._values.keys()
