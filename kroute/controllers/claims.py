"""What Services want of the kernel, what the kernel has, and the difference.

All three controllers ask for everything that should be and act on the difference. A Service claims kernel objects
(virtual servers, addresses, routes, set entries), each by a key with a value; several Services may claim one object,
and it stays until the last of them lets go. Beside the claims stands what was applied, or found in the kernel. Only
objects for which either side has changed are compared, so a change does not cost more where there is more.
"""

from collections.abc import Callable, Mapping, Set
from typing import Generic, NamedTuple, TypeVar

from kroute.planning.objects import ObjectKey

K = TypeVar("K")
V = TypeVar("V")


class Difference(NamedTuple, Generic[K, V]):
    """One object that is not as it should be. None: it is not there, or should not be."""

    key: K
    applied: V | None
    wanted: V | None


def _same(applied: V, wanted: V) -> bool:
    return applied == wanted


def _never(_wanted: V) -> bool:
    return False


class Claims(Generic[K, V]):
    """The claims on one kind of kernel object. Values are never None.

    `agree` says whether an applied value is as good as the wanted one, `is_nothing` whether an object that is wanted
    so is right when it is not there. Of several claims to one object the newest counts; the catalog sees to it that
    this matters only for as long as a batch of plans is being taken in.
    """

    def __init__(self, agree: Callable[[V, V], bool] = _same, is_nothing: Callable[[V], bool] = _never) -> None:
        self._agree = agree
        self._is_nothing = is_nothing
        self._claims: dict[ObjectKey, Mapping[K, V]] = {}
        self._owners: dict[K, tuple[ObjectKey, ...]] = {}
        self._applied: dict[K, V] = {}
        self._dirty: set[K] = set()

    @property
    def applied(self) -> Mapping[K, V]:
        """What is in the kernel, as far as is known."""
        return self._applied

    def claim(self, owner: ObjectKey, wanted: Mapping[K, V]) -> list[K]:
        """Replace all that `owner` claims. Returns the applied objects that nobody claims any more."""
        before = self._claims.get(owner, {})
        released = [key for key in before if key not in wanted and self._release(key, owner)]
        for key, value in wanted.items():
            if key not in before or before[key] != value:
                self._own(key, owner)
                self._dirty.add(key)
        if wanted:
            self._claims[owner] = wanted
        else:
            self._claims.pop(owner, None)
        return released

    def wanted(self, key: K) -> V | None:
        """The object as it should be; None if nobody claims it."""
        owners = self._owners.get(key)
        return self._claims[owners[-1]][key] if owners else None

    def owners(self, key: K) -> tuple[ObjectKey, ...]:
        """The Services that claim the object, the newest claim last."""
        return self._owners.get(key, ())

    def claimed_by(self, owner: ObjectKey) -> Set[K]:
        """All that this Service claims."""
        return self._claims.get(owner, {}).keys()

    def claimed(self) -> Set[K]:
        """All that some Service claims."""
        return self._owners.keys()

    def unclaimed(self) -> list[K]:
        """All that is in the kernel and that no Service claims."""
        return [key for key in self._applied if key not in self._owners]

    def is_right(self, key: K) -> bool:
        """Whether the kernel has the object as it should be (which may be: not at all)."""
        applied, wanted = self._applied.get(key), self.wanted(key)
        if applied is None:
            return wanted is None or self._is_nothing(wanted)
        return wanted is not None and self._agree(applied, wanted)

    def is_settled(self, owner: ObjectKey) -> bool:
        """Whether everything that this Service claims is as it should be."""
        return all(self.is_right(key) for key in self.claimed_by(owner))

    def differences(self) -> list[Difference[K, V]]:
        """Every object that is not as it should be. What is right by now is not looked at again."""
        # A new set, because Python walks through the room of one that was large once, however few it holds.
        self._dirty = {key for key in self._dirty if not self.is_right(key)}
        return [Difference(key, self._applied.get(key), self.wanted(key)) for key in self._dirty]

    def note(self, key: K, value: V | None) -> None:
        """Remember that the kernel now has the object with this value; None: that it is not there."""
        if value is None:
            self._applied.pop(key, None)
        else:
            self._applied[key] = value
        if self.is_right(key):
            self._dirty.discard(key)
        else:
            self._dirty.add(key)

    def recheck(self, key: K) -> None:
        """What makes the object right has changed: compare it again."""
        self._dirty.add(key)

    def replace_applied(self, actual: dict[K, V]) -> list[Difference[K, V]]:
        """Remember a whole reading of the kernel.

        Returns what is wrong now and was thought to be right: the drift, if this is not the first reading. Values
        that agree with what is remembered are kept as they are, so that equal values stay one object in memory.
        """
        before, self._applied = self._applied, actual
        drift: list[Difference[K, V]] = []
        for key in before.keys() | actual.keys() | self._owners.keys():
            known, found = before.get(key), actual.get(key)
            if known is not None and found is not None and self._agree(found, known):
                actual[key] = known
                continue
            if not self.is_right(key):
                if key not in self._dirty:
                    drift.append(Difference(key, found, self.wanted(key)))
                self._dirty.add(key)
        return drift

    def _own(self, key: K, owner: ObjectKey) -> None:
        """Put a claim behind those of others."""
        owners = self._owners.get(key)
        if owners is None:
            self._owners[key] = (owner,)
        elif owners[-1] != owner:
            self._owners[key] = (*(other for other in owners if other != owner), owner)

    def _release(self, key: K, owner: ObjectKey) -> bool:
        """Take one claim away; whether it was the last on an object that is there."""
        left = tuple(other for other in self._owners[key] if other != owner)
        self._dirty.add(key)
        if left:
            self._owners[key] = left
            return False
        del self._owners[key]
        return key in self._applied
