"""What is desired of the kernel, what is applied there, and the difference between the two.

All controllers ask for everything that should be and act on the difference. An owner (a Service, or the node) wants
kernel objects (virtual servers, addresses, routes, set entries), each by a key with a value; several owners may want
one object, and it stays until the last of them lets go. Beside that stands what was applied, or found in the kernel.
Only objects for which either side has changed are compared, so a change does not cost more where there is more.

Of an object that is there and that nobody wants any more it is known, until it has gone, who let it go last: what
leaves waits for stages of that plan.
"""

import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from typing import Generic, NamedTuple, TypeVar

from kroute.model.objects import ObjectKey
from kroute.reconcile.batches import sliced
from kroute.reconcile.stage_gate import EARLIER_RUN, Revision

K = TypeVar("K")
V = TypeVar("V")


class Delta(NamedTuple, Generic[K, V]):
    """One object that is not as it should be. None: it is not there, or should not be."""

    key: K
    applied: V | None
    desired: V | None


def _same(applied: V, desired: V) -> bool:
    return applied == desired


def _never(_desired: V) -> bool:
    return False


class DesiredState(Generic[K, V]):
    """The desired and the applied state of one kind of kernel object. Values are never None.

    `agree` says whether an applied value is as good as the desired one, `is_nothing` whether an object that is desired
    so is right when it is not there. If several owners want one object, the newest value counts; the catalog ensures
    that this matters only while a batch of plans is being taken in.
    """

    def __init__(self, agree: Callable[[V, V], bool] = _same, is_nothing: Callable[[V], bool] = _never) -> None:
        self.agree = agree
        self._is_nothing = is_nothing
        self._wanted: dict[ObjectKey, Mapping[K, V]] = {}
        self._owners: dict[K, tuple[ObjectKey, ...]] = {}
        self._applied: dict[K, V] = {}
        self._in_doubt: set[K] = set()
        self._departed: dict[K, Revision] = {}
        self._departing: Counter[ObjectKey] = Counter()
        self._resync: Callable[[], Resync[K, V] | None] = lambda: None

    # What is desired

    def want(self, revision: Revision, objects: Mapping[K, V]) -> None:
        """These are all the objects that the revision's owner wants from now on; it lets go of all others."""
        owner = revision.key
        before = self._wanted.get(owner, {})
        for key in before:
            if key not in objects and self._release(key, owner) and key in self._applied:
                self._departs(key, revision)
        alone = (owner,)
        for key, value in objects.items():
            if key not in before or before[key] != value:
                self._own(key, alone)
                self._has_gone(key)
                self._in_doubt.discard(key)  # an equal key of a resync's: the plan's own is the one to keep
                self._in_doubt.add(key)
        if objects:
            self._wanted[owner] = objects
        else:
            self._wanted.pop(owner, None)

    def let_go_unwanted(self, revision: Revision) -> None:
        """All that is applied, and that nobody wants nor ever wanted, leaves with this revision."""
        for key in self.unwanted():
            if key not in self._departed:
                self._departs(key, revision)

    def desired(self, key: K) -> V | None:
        """The object as it should be; None if nobody wants it."""
        owners = self._owners.get(key)
        return self._wanted[owners[-1]][key] if owners else None

    def desired_key(self, key: K) -> K:
        """The equal key with which the newest owner names the object, so that it is in memory once; or `key` itself."""
        if owners := self._owners.get(key):
            for own in self._wanted[owners[-1]]:
                if own == key:
                    return own
        return key

    def desired_keys(self) -> Set[K]:
        """All that somebody wants."""
        return self._owners.keys()

    def wanted_by(self, owner: ObjectKey) -> Set[K]:
        """All that this owner wants."""
        return self._wanted.get(owner, {}).keys()

    def owners(self, key: K) -> tuple[ObjectKey, ...]:
        """Those who want the object, the newest last."""
        return self._owners.get(key, ())

    # What is applied

    @property
    def applied(self) -> Mapping[K, V]:
        """What is in the kernel, as far as is known."""
        return self._applied

    def note_applied(self, key: K, value: V | None) -> None:
        """Remember that the kernel now has the object with this value; None: that it is not there."""
        self._overtake_resync(key)
        self._remember(key, value)

    def recheck(self, key: K) -> None:
        """What makes the object right has changed: compare it again."""
        self._overtake_resync(key)
        self._in_doubt.add(key)

    def resync(self) -> "Resync[K, V]":
        """Begin to take in a whole scan of the kernel, which is yet to be made."""
        resync = Resync(self, self._remember)
        self._resync = weakref.ref(resync)  # one that its reader has dropped, complete or not, is over
        return resync

    # What leaves

    def unwanted(self) -> list[K]:
        """All that is in the kernel and that nobody wants."""
        return [key for key in self._applied if key not in self._owners]

    def is_leaving(self, key: K) -> bool:
        """Whether the object is still there, and nobody wants it."""
        return key in self._applied and key not in self._owners

    def let_go_by(self, key: K) -> Revision:
        """Who let the object go last; an earlier run, if nobody in this one ever wanted it."""
        return self._departed.get(key, EARLIER_RUN)

    def responsible(self, key: K) -> Sequence[ObjectKey]:
        """Those who want the object, or else who let it go last."""
        return self.owners(key) or (self.let_go_by(key).key,)

    def has_departed(self, owner: ObjectKey) -> bool:
        """Whether everything that this owner let go has gone."""
        return not self._departing[owner]

    # The difference

    def is_right(self, key: K) -> bool:
        """Whether the kernel has the object as it should be (which may be: not at all)."""
        applied, desired = self._applied.get(key), self.desired(key)
        if applied is None:
            return desired is None or self._is_nothing(desired)
        return desired is not None and self.agree(applied, desired)

    def is_settled(self, owner: ObjectKey) -> bool:
        """Whether everything that this owner wants is as it should be."""
        return all(self.is_right(key) for key in self.wanted_by(owner))

    def is_in_doubt(self, key: K) -> bool:
        """Whether the object may not be as it should be: it is yet to be compared, or to be written."""
        return key in self._in_doubt

    async def pending(self) -> AsyncIterator[list[Delta[K, V]]]:
        """The deltas that are yet to be written, in slices. Other tasks run in between, and may not touch this state.

        An applied object that equals the desired one gives way to it, so that it is in memory once.
        """
        # A new set, because Python walks through the room of one that was large once, however few it holds.
        self._in_doubt = set(self._in_doubt)
        async for keys in sliced(list(self._in_doubt)):
            yield self._deltas(keys)

    async def all_pending(self) -> list[Delta[K, V]]:
        """As `pending`, in one piece."""
        return [delta async for deltas in self.pending() for delta in deltas]

    def _deltas(self, keys: Iterable[K]) -> list[Delta[K, V]]:
        """Those of the objects that are not right. What is right is not compared again."""
        deltas: list[Delta[K, V]] = []
        for key in keys:
            applied, desired = self._applied.get(key), self.desired(key)
            if not self.is_right(key):
                deltas.append(Delta(key, applied, desired))
                continue
            self._in_doubt.discard(key)
            if desired is not None and applied is not None and applied == desired:
                del self._applied[key]  # an assignment alone would keep the key that a resync has made
                self._applied[key] = desired
        return deltas

    def _remember(self, key: K, value: V | None) -> None:
        if value is None:
            self._applied.pop(key, None)
            self._has_gone(key)
        else:
            desired = self.desired(key)
            self._applied[key] = desired if desired is not None and value == desired else value
        if self.is_right(key):
            self._in_doubt.discard(key)
        else:
            self._in_doubt.add(key)

    def _overtake_resync(self, key: K) -> None:
        """What a resync finds of this object may be older than what is known now."""
        if (resync := self._resync()) is not None:
            resync.overtaken.add(key)

    def _own(self, key: K, alone: tuple[ObjectKey]) -> None:
        """Put an owner behind the others; `alone` is what one owner has in common for all that only it wants."""
        owners = self._owners.get(key)
        if owners is None:
            self._owners[key] = alone
        elif owners[-1] != alone[0]:
            self._owners[key] = tuple(other for other in owners if other != alone[0]) + alone

    def _release(self, key: K, owner: ObjectKey) -> bool:
        """This owner does not want the object any more; whether nobody does."""
        left = tuple(other for other in self._owners[key] if other != owner)
        self._in_doubt.add(key)
        if left:
            self._owners[key] = left
        else:
            del self._owners[key]
        return not left

    def _departs(self, key: K, revision: Revision) -> None:
        self._has_gone(key)
        self._departed[key] = revision
        self._departing[revision.key] += 1

    def _has_gone(self, key: K) -> None:
        """The object has gone, or is wanted again."""
        revision = self._departed.pop(key, None)
        if revision is not None:
            self._departing[revision.key] -= 1
            if not self._departing[revision.key]:
                del self._departing[revision.key]


class Resync(Generic[K, V]):
    """A reading of the kernel, taken in as it comes: no second copy of what is known is made.

    `overtaken` are the objects of which something newer than the reading is known: they are left as they are.
    `remember` puts into the applied state what is there; None: what is not there.
    """

    def __init__(self, state: DesiredState[K, V], remember: Callable[[K, V | None], None]) -> None:
        self.overtaken: set[K] = set()
        self._state = state
        self._remember = remember
        self._unseen = set(state.applied)
        self._drift: list[Delta[K, V]] = []

    def found(self, key: K, value: V) -> None:
        """The kernel has this object. A value that agrees with what is remembered is dropped for that."""
        self._unseen.discard(key)
        if key in self.overtaken:
            return
        known = self._state.applied.get(key)
        if known is None:
            self._note(self._state.desired_key(key), value)
        elif not self._state.agree(value, known):
            self._note(key, value)

    async def complete(self) -> list[Delta[K, V]]:
        """Nothing else is in the kernel.

        Returns what is wrong now and was thought to be right: the drift, if this is not the first resync.
        """
        async for keys in sliced(self._unseen - self.overtaken):
            for key in keys:
                self._note(key, None)
        return self._drift

    def _note(self, key: K, value: V | None) -> None:
        was_right = not self._state.is_in_doubt(key)
        self._remember(key, value)
        if was_right and not self._state.is_right(key):
            self._drift.append(Delta(key, value, self._state.desired(key)))
