"""The desired state, the applied state, and the deltas between the two.

An owner (a Service, or the node) wants kernel objects: virtual servers, addresses, routes or set entries. Each object
has a key and a value. Several owners may want one object; it stays until the last of them no longer wants it. The
applied state is what was written to the kernel or found there. Only objects whose desired or applied value has changed
are compared, so the cost of a change does not grow with the number of objects.

An object leaves when it is applied and no owner wants it. Until it is deleted, the state knows which plan was the last
to drop it, because the deletion waits for stages of that plan.
"""

import asyncio
import operator
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from kroute.model.objects import ObjectKey
from kroute.reconcile.batches import cut, sliced
from kroute.reconcile.stage_gate import EARLIER_RUN, Revision

K = TypeVar("K")
V = TypeVar("V")


class Delta(NamedTuple, Generic[K, V]):
    """One object whose applied and desired values differ. `applied` None: missing; `desired` None: nobody wants it."""

    key: K
    applied: V | None
    desired: V | None


class DesiredState(Generic[K, V]):
    """The desired and the applied state of one kind of kernel object. Values are never None.

    `agree` says whether an applied value is as good as a desired one. `is_nothing` says whether a desired value means
    that the object should not be in the kernel. When several owners want one object, the newest wins. The catalog
    resolves conflicts, so this lasts only while one batch of plans is read. `count` is called with each object that
    comes into the applied state (1) or leaves it (-1). `touch` is called whenever an object is to be compared again, or
    is noted as applied, with the owners for whom `is_settled` or `has_departed` may have become true.
    """

    def __init__(
        self,
        agree: Callable[[V, V], bool] = operator.eq,
        is_nothing: Callable[[V], bool] | None = None,
        count: Callable[[K, int], None] | None = None,
    ) -> None:
        self.agree = agree
        self._is_nothing = is_nothing
        self._count = count
        self._wanted: dict[ObjectKey, Mapping[K, V]] = {}
        self._owners: dict[K, tuple[ObjectKey, ...]] = {}
        self._applied: dict[K, V] = {}
        self.applied: Mapping[K, V] = MappingProxyType(self._applied)
        """What kroute has written to the kernel or has found there."""
        self.unsettled: dict[K, K] = {}
        """The keys of all objects that have yet to be compared or written; all others are right. To be read only."""
        self.touch: Callable[[Iterable[ObjectKey]], object] = lambda _: None
        self._leaving: dict[K, Revision] = {}
        """Applied objects that no owner wants, each with the revision that was the last to drop it."""
        self._departing: Counter[ObjectKey] = Counter()
        """How many of the leaving objects each owner was the last to drop."""
        self._resync: Callable[[], Resync[K, V] | None] = lambda: None

    # What is desired

    def want(self, revision: Revision, objects: Mapping[K, V]) -> None:
        """Replace the objects that the revision's owner wants by `objects`."""
        owner = revision.key
        before, unsettled = self._wanted.get(owner, {}), self.unsettled
        for key in before:
            if key not in objects:
                self._release(key, revision)
        alone = (owner,)
        self.touch(alone)
        for key, value in objects.items():
            if key not in before or before[key] != value:
                self._own(key, alone)
                if key in unsettled:
                    del unsettled[key]  # a resync may have put in an equal key: keep the plan's, in memory once
                unsettled[key] = key
        if objects:
            self._wanted[owner] = objects
        else:
            self._wanted.pop(owner, None)

    def desired(self, key: K) -> V | None:
        """The desired value; None if nobody wants the object."""
        owners = self._owners.get(key)
        return self._wanted[owners[-1]][key] if owners else None

    def known_key(self, key: K) -> K:
        """The key under which an unsettled object is known, usually the plan's; else `key`. So memory has it once."""
        return self.unsettled.get(key, key)

    def desired_keys(self) -> Set[K]:
        """The keys of all objects that an owner wants."""
        return self._owners.keys()

    def wanted_by(self, owner: ObjectKey) -> Set[K]:
        """The keys of the objects that this owner wants."""
        return self._wanted.get(owner, {}).keys()

    def owners(self, key: K) -> tuple[ObjectKey, ...]:
        """The owners of the object, the newest last."""
        return self._owners.get(key, ())

    # What is applied

    def note_applied(self, key: K, value: V | None) -> None:
        """Remember that the kernel now has the object with this value; None: that it does not have it."""
        if (resync := self._resync()) is not None:
            resync.overtaken.add(key)  # what the scan finds of this object may be older than this call
        self._remember(key, value)

    def recheck(self, key: K) -> None:
        """Compare the object again, because the answer of `agree` for it has changed."""
        if (resync := self._resync()) is not None:
            resync.overtaken.add(key)
        self.touch(self.owners(key))
        self.unsettled.setdefault(key, key)

    def resync(self) -> "Resync[K, V]":
        """Begin a resync; call this before the scan of the kernel begins."""
        resync = Resync(self, self._remember)
        self._resync = weakref.ref(resync)  # a resync ends, complete or not, when the caller drops it
        return resync

    # What leaves

    def unwanted(self) -> list[K]:
        """The keys of all applied objects that nobody wants."""
        return list(self._leaving)

    def is_leaving(self, key: K) -> bool:
        """Whether the object is applied, and nobody wants it."""
        return key in self._leaving

    def dropped_by(self, key: K) -> Revision:
        """The plan that was the last to drop the object; EARLIER_RUN if no plan of this run has wanted it."""
        return self._leaving.get(key, EARLIER_RUN)

    def responsible(self, key: K) -> Sequence[ObjectKey]:
        """The owners of the object; if it has none, the one that was the last to drop it."""
        return self._owners.get(key) or (self.dropped_by(key).key,)

    def has_departed(self, owner: ObjectKey) -> bool:
        """Whether every object that this owner was the last to drop has been deleted, or has an owner again."""
        return owner not in self._departing

    # The difference

    def is_right(self, key: K) -> bool:
        """Whether the applied state of the object agrees with the desired one; both may be "not in the kernel"."""
        return self._is_as_desired(self._applied.get(key), self.desired(key))

    def is_settled(self, owner: ObjectKey) -> bool:
        """Whether all objects that this owner wants are right."""
        return not self.unsettled or all(map(self.is_right, self.unsettled_of(owner)))

    def unsettled_of(self, owner: ObjectKey) -> Iterable[K]:
        """The unsettled objects that this owner wants; all others that it wants are right."""
        wanted, unsettled = self._wanted.get(owner, {}), self.unsettled
        if len(unsettled) < len(wanted):
            return [key for key in unsettled if key in wanted]
        return [key for key in wanted if key in unsettled]

    async def pending(self) -> AsyncIterator[list[Delta[K, V]]]:
        """The deltas that are yet to be written, in slices, the oldest first; they must not change meanwhile.

        An applied value that equals the desired one is replaced by it, so that it is in memory once.
        """
        # A new dict: Python iterates over the whole table of one that was once large, however few keys are left.
        self.unsettled = dict(self.unsettled.items())
        for number, keys in enumerate(cut(list(self.unsettled))):
            if number:
                await asyncio.sleep(0)
            yield self.deltas(keys)

    async def all_pending(self) -> list[Delta[K, V]]:
        """As `pending`, in one list."""
        return [delta async for deltas in self.pending() for delta in deltas] if self.unsettled else []

    def deltas(self, keys: Iterable[K]) -> list[Delta[K, V]]:
        """The deltas of these objects. Those that are right are settled, and are not compared again."""
        deltas: list[Delta[K, V]] = []
        for key in keys:
            owners = self._owners.get(key)
            applied, desired = self._applied.get(key), self._wanted[owners[-1]][key] if owners else None
            if not self._is_as_desired(applied, desired):
                deltas.append(Delta(key, applied, desired))
                continue
            self.unsettled.pop(key, None)
            if desired is not None and applied is not None and applied == desired:
                del self._applied[key]  # an assignment alone would keep the key that a resync has made
                self._applied[key] = desired
        if not self.unsettled:
            self.unsettled.clear()  # an emptied dict keeps its table, which may be as long as all objects
        return deltas

    def _remember(self, key: K, value: V | None) -> bool:
        """Store what the kernel has now; returns whether the object is right."""
        owners = self._owners.get(key, ())
        self.touch(owners)
        desired = self._wanted[owners[-1]][key] if owners else None
        if self._count is not None and (key in self._applied) is (value is None):
            self._count(key, -1 if value is None else 1)
        if value is None:
            self._applied.pop(key, None)
            self._end_leaving(key)
        else:
            if desired is None and key not in self._leaving:
                self._drop(key, EARLIER_RUN)
            elif value == desired:
                value = desired
            self._applied[key] = value
        if is_right := self._is_as_desired(value, desired):
            self.unsettled.pop(key, None)
            if not self.unsettled:
                self.unsettled.clear()  # as above
        else:
            self.unsettled.setdefault(key, key)
        return is_right

    def _is_as_desired(self, applied: V | None, desired: V | None) -> bool:
        if applied is None:
            return desired is None or (self._is_nothing is not None and self._is_nothing(desired))
        return desired is not None and self.agree(applied, desired)

    def _own(self, key: K, alone: tuple[ObjectKey]) -> None:
        """Make `alone[0]` the newest owner. All objects that only it wants share the tuple `alone`, to save memory."""
        if (owners := self._owners.get(key)) is None:
            self._owners[key] = alone
            self._end_leaving(key)
            return
        self.touch(owners)
        if owners[-1] != alone[0]:
            self._owners[key] = tuple(other for other in owners if other != alone[0]) + alone

    def _release(self, key: K, revision: Revision) -> None:
        """Remove the revision's owner of the object. If it was the last one, an applied object leaves."""
        left = tuple(other for other in self._owners[key] if other != revision.key)
        self.unsettled.setdefault(key, key)
        if left:
            self.touch(left)
            self._owners[key] = left
        else:
            del self._owners[key]
            if key in self._applied:
                self._drop(key, revision)

    def _drop(self, key: K, revision: Revision) -> None:
        """The object leaves: this plan was the last to drop it."""
        self._leaving[key] = revision
        self._departing[revision.key] += 1

    def _end_leaving(self, key: K) -> None:
        """The object no longer leaves: it was deleted, or has an owner again."""
        if (dropped_by := self._leaving.pop(key, None)) is not None:
            self.touch((dropped_by.key,))
            self._departing[dropped_by.key] -= 1
            if not self._departing[dropped_by.key]:
                del self._departing[dropped_by.key]


class Resync(Generic[K, V]):
    """A resync in progress. Scanned objects are compared as they arrive, so the kernel's state is in memory only once.

    `overtaken` are the objects that were written or checked since it began: what the scan says of them is ignored.
    `remember` puts a scanned value into the applied state (None: the kernel does not have the object), and returns
    whether the object is right.
    """

    def __init__(self, state: DesiredState[K, V], remember: Callable[[K, V | None], bool]) -> None:
        self.overtaken: set[K] = set()
        self._state = state
        self._applied = state.applied
        self._remember = remember
        self._unseen = set(state.applied)
        self._drift: list[Delta[K, V]] = []

    def found(self, key: K, value: V) -> None:
        """Take in an object of the scan. If its value agrees with the applied one, the applied one is kept."""
        self._unseen.discard(key)
        if key in self.overtaken:
            return
        known = self._applied.get(key)
        if known is None:
            self._note(self._state.known_key(key), value)
        elif not self._state.agree(value, known):
            self._note(key, value)

    async def complete(self) -> list[Delta[K, V]]:
        """End the scan: objects that were not found are not in the kernel.

        Returns the deltas of objects that were thought to be right. They are drift, except in the first resync.
        """
        async for keys in sliced(self._unseen - self.overtaken):
            for key in keys:
                self._note(key, None)
        return self._drift

    def _note(self, key: K, value: V | None) -> None:
        was_right = key not in self._state.unsettled
        if not self._remember(key, value) and was_right:
            self._drift.append(Delta(key, value, self._state.desired(key)))
