"""What Services want of the kernel, what the kernel has, and the difference.

All three controllers ask for everything that should be and act on the difference. A Service claims kernel objects
(virtual servers, addresses, routes, set entries), each by a key with a value; several Services may claim one object,
and it stays until the last of them lets go. Beside the claims stands what was applied, or found in the kernel. Only
objects for which either side has changed are compared, so a change does not cost more where there is more.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Generic, NamedTuple, TypeVar

from kroute.model.objects import ObjectKey
from kroute.reconcile.batches import sliced

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
        self.agree = agree
        self._is_nothing = is_nothing
        self._claims: dict[ObjectKey, Mapping[K, V]] = {}
        self._owners: dict[K, tuple[ObjectKey, ...]] = {}
        self._applied: dict[K, V] = {}
        self._dirty: set[K] = set()
        self._reading: Callable[[], Reading[K, V] | None] = lambda: None

    @property
    def applied(self) -> Mapping[K, V]:
        """What is in the kernel, as far as is known."""
        return self._applied

    def claim(self, owner: ObjectKey, wanted: Mapping[K, V]) -> list[K]:
        """Replace all that `owner` claims. Returns the applied objects that nobody claims any more."""
        before = self._claims.get(owner, {})
        released = [key for key in before if key not in wanted and self._release(key, owner)]
        alone = (owner,)
        for key, value in wanted.items():
            if key not in before or before[key] != value:
                self._own(key, alone)
                self._dirty.discard(key)  # an equal key of a reading's: the plan's own is the one to keep
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

    def claimed_key(self, key: K) -> K:
        """The equal key with which the newest claim names the object, so that it is in memory once; or `key` itself."""
        if owners := self._owners.get(key):
            for own in self._claims[owners[-1]]:
                if own == key:
                    return own
        return key

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
        return wanted is not None and self.agree(applied, wanted)

    def is_settled(self, owner: ObjectKey) -> bool:
        """Whether everything that this Service claims is as it should be."""
        return all(self.is_right(key) for key in self.claimed_by(owner))

    def differences(self, keys: Iterable[K] | None = None) -> list[Difference[K, V]]:
        """Those of these objects (None: of all) that are not as they should be. What is right is not compared again.

        An applied object that equals the wanted one gives way to it, so that it is in memory once.
        """
        found: list[Difference[K, V]] = []
        for key in self.doubtful() if keys is None else keys:
            applied, wanted = self._applied.get(key), self.wanted(key)
            if not self.is_right(key):
                found.append(Difference(key, applied, wanted))
                continue
            self._dirty.discard(key)
            if wanted is not None and applied is not None and applied == wanted:
                del self._applied[key]  # an assignment alone would keep the key that a reading has made
                self._applied[key] = wanted
        return found

    async def all_differences(self) -> list[Difference[K, V]]:
        """Every object that is not as it should be; other tasks run meanwhile, which may not touch these claims."""
        return [difference async for keys in sliced(self.doubtful()) for difference in self.differences(keys)]

    def is_doubtful(self, key: K) -> bool:
        """Whether the object may not be as it should be; it is yet to be compared, or to be written."""
        return key in self._dirty

    def doubtful(self) -> list[K]:
        """The objects that may not be as they should be."""
        # A new set, because Python walks through the room of one that was large once, however few it holds.
        self._dirty = set(self._dirty)
        return list(self._dirty)

    def note(self, key: K, value: V | None) -> None:
        """Remember that the kernel now has the object with this value; None: that it is not there."""
        self._overtake_reading(key)
        self._remember(key, value)

    def _remember(self, key: K, value: V | None) -> None:
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
        self._overtake_reading(key)
        self._dirty.add(key)

    def read_anew(self) -> "Reading[K, V]":
        """Begin to remember a whole reading of the kernel, which is yet to be made."""
        reading = Reading(self, self._remember)
        self._reading = weakref.ref(reading)  # one that its reader has dropped, complete or not, is over
        return reading

    def _overtake_reading(self, key: K) -> None:
        """What a reading finds of this object may be older than what is known now."""
        if (reading := self._reading()) is not None:
            reading.overtaken.add(key)

    def _own(self, key: K, alone: tuple[ObjectKey]) -> None:
        """Put a claim behind those of others; `alone` is what one owner has in common for all that is its only."""
        owners = self._owners.get(key)
        if owners is None:
            self._owners[key] = alone
        elif owners[-1] != alone[0]:
            self._owners[key] = tuple(other for other in owners if other != alone[0]) + alone

    def _release(self, key: K, owner: ObjectKey) -> bool:
        """Take one claim away; whether it was the last on an object that is there."""
        left = tuple(other for other in self._owners[key] if other != owner)
        self._dirty.add(key)
        if left:
            self._owners[key] = left
            return False
        del self._owners[key]
        return key in self._applied


class Reading(Generic[K, V]):
    """A reading of the kernel on its way into the claims, as it comes: no second copy of what is known is made.

    `overtaken` are the objects of which something newer than the reading is known: they are left as they are.
    `remember` puts into the claims what is there; None: what is not there.
    """

    def __init__(self, claims: Claims[K, V], remember: Callable[[K, V | None], None]) -> None:
        self.overtaken: set[K] = set()
        self._claims = claims
        self._remember = remember
        self._unseen = set(claims.applied)
        self._drift: list[Difference[K, V]] = []

    def found(self, key: K, value: V) -> None:
        """The kernel has this object. A value that agrees with what is remembered is dropped for that."""
        self._unseen.discard(key)
        if key in self.overtaken:
            return
        known = self._claims.applied.get(key)
        if known is None:
            self._note(self._claims.claimed_key(key), value)
        elif not self._claims.agree(value, known):
            self._note(key, value)

    async def complete(self) -> list[Difference[K, V]]:
        """Nothing else is in the kernel.

        Returns what is wrong now and was thought to be right: the drift, if this is not the first reading.
        """
        async for keys in sliced(self._unseen - self.overtaken):
            for key in keys:
                self._note(key, None)
        return self._drift

    def _note(self, key: K, value: V | None) -> None:
        was_right = not self._claims.is_doubtful(key)
        self._remember(key, value)
        if was_right and not self._claims.is_right(key):
            self._drift.append(Difference(key, value, self._claims.wanted(key)))
