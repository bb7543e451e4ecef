"""The base of route_fix and masquerade: their objects exist before a VIP goes live, and are deleted after it has gone.

Both write a plan's objects and then say that the plan has passed their stage. Both delete an object that no plan names
only after service_proxy has said that the plan which dropped it is WITHDRAWN.

A write in many batches does not hold up the plans that arrive meanwhile: the controller takes these in between two
batches, and continues with the owner that has the fewest objects left to write. So a Service waits for one batch of a
larger Service, not for all its batches.
"""

import asyncio
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from heapq import heappop, heappush
from typing import ClassVar, Generic, TypeVar

import structlog

from kroute.kernel.clients import EventSource
from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Plan, ServicePlan
from kroute.reconcile.batch_writer import BatchWriter, log_changes
from kroute.reconcile.batches import BATCH, sliced
from kroute.reconcile.controller import Controller, Shared
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.pass_status import names_of
from kroute.reconcile.stage_gate import WITHDRAWN, Revision, Stage

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


BATCH_SECONDS, LEAST_BATCH = 0.25, 16
"""A batch should take at most so many seconds, unless it has no more objects than this. The kernel is slow with large
sets of networks."""


class _Queue(Generic[K]):
    """The objects that are to be written, by owner: those of the owner with the fewest come first."""

    def __init__(self) -> None:
        self._left: dict[ObjectKey, list[K]] = {}
        self._sizes: list[tuple[int, ObjectKey]] = []

    def put(self, owner: ObjectKey, keys: list[K]) -> None:
        """Replace what is left to write for an owner."""
        if keys:
            self._left[owner] = keys
            heappush(self._sizes, (len(keys), owner))
        else:
            self._left.pop(owner, None)

    def add(self, owner: ObjectKey, keys: list[K]) -> None:
        """Append these to what is left to write for the owner."""
        self.put(owner, [*self._left.get(owner, ()), *keys])

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, most: int) -> tuple[list[K], bool]:
        """The next objects, and whether they are the last ones of any owner."""
        taken: list[K] = []
        is_any_complete = False
        while self._sizes and len(taken) < most:
            size, owner = heappop(self._sizes)
            keys = self._left.get(owner, [])
            if len(keys) != size:
                continue  # it was replaced
            room = most - len(taken)
            taken += keys[:room]
            self.put(owner, keys[room:])
            is_any_complete = is_any_complete or len(keys) <= room
        return taken, is_any_complete


def _next_size(size: int, written: int, seconds: float) -> int:
    """How many objects the next batch may have, after a batch of this size in which so many took so long."""
    fitting = int(written * BATCH_SECONDS / seconds) if seconds > BATCH_SECONDS else BATCH
    return max(LEAST_BATCH, min(BATCH, 2 * size, fitting))


class StagedController(Controller, Generic[K, V]):
    """A controller whose objects (keys K, values V) exist before a VIP goes live.

    It says `stage`, and is woken when a plan passes a stage of `waits_for`.
    """

    stage: ClassVar[Stage]
    waits_for: ClassVar[tuple[Stage, ...]] = (WITHDRAWN,)

    def __init__(self, shared: Shared, desired: DesiredState[K, V], monitor: EventSource | None = None) -> None:
        super().__init__(shared, monitor)
        self.desired = desired
        self.gate = shared.gate
        self.plans: dict[ObjectKey, ServicePlan] = {}
        self._accepted: set[ObjectKey] = set()
        self._touched: dict[ObjectKey, None] = {}
        """The owners whose plans may have become prepared since the stage was said last."""
        self._changes = 0
        desired.touch = self._touch
        self._seen: tuple[int, ...] = ()
        self._is_in_step = False
        self._writer: BatchWriter[Delta[K, V], K] = BatchWriter(
            self.status,
            key_of=lambda delta: delta.key,
            tell=lambda deltas: log_changes(log, deltas, self.event_of, self._fields),
            note=lambda delta: desired.note_applied(delta.key, delta.desired),
            owners_of=desired.owners,
        )
        self.gate.join(
            self.wake,
            says={self.stage: self._is_prepared},
            waits_for=self.waits_for,
            needs=lambda _: bool(desired.unsettled),
            is_busy=lambda: self._is_in_step,
        )
        self.subscription.skip = self._renew

    @abstractmethod
    def wanted_by(self, plan: ServicePlan) -> Mapping[K, V]:
        """The objects that the plan of a Service wants."""

    def wanted_by_node(self, plan: NodePlan) -> Mapping[K, V]:  # noqa: ARG002  for controllers that want something
        """The objects that the plan of the node wants; by default none."""
        return {}

    @abstractmethod
    async def apply(self, deltas: Sequence[Delta[K, V]]) -> Mapping[K, str]:
        """Write these deltas; returns the refused objects, each with a sentence that says why."""

    @abstractmethod
    def event_of(self, delta: Delta[K, V]) -> str:
        """The name of the event under which the log reports a written delta."""

    @abstractmethod
    def fields_of(self, delta: Delta[K, V]) -> dict[str, object]:
        """The log line's fields for a written delta, in addition to the Service."""

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Take the plans into the desired state."""
        for plan in plans:
            self._want(plan, self.wanted_by(plan))
            if plan.is_empty:
                self.plans.pop(plan.key, None)
            else:
                self.plans[plan.key] = plan

    def accept_node(self, plan: NodePlan) -> None:
        self._want(plan, self.wanted_by_node(plan))

    async def step(self) -> None:
        self._is_in_step = True
        try:
            await super().step()
        finally:
            self._is_in_step = False

    async def write(self) -> None:
        """Write the deltas that may be written now, then say which plans are prepared."""
        await self.write_deltas()
        await self.say()

    async def say(self) -> None:
        """Say which plans are prepared."""
        touched, self._touched = self._touched, {}
        await self.gate.advance(self.stage, touched)

    async def write_deltas(self) -> None:
        """Write the deltas that may be written now, and take new plans in between two batches."""
        self._accepted.clear()
        if revoked := self.gate.take_revoked(self.stage):
            async for keys in sliced(revoked):
                for key in self.plans.keys() & keys:
                    self.revoked(self.plans[key])
        if not self.desired.unsettled:
            return
        seen = (self._changes, *[self.gate.times_passed[stage] for stage in self.waits_for])
        if seen == self._seen:
            return
        due = await self._due()
        if not (due or self.status.waiting()):
            self._seen = seen  # until that changes, every unsettled object waits
        await self._write_all(due)

    async def _due(self) -> "_Queue[K]":
        """What may be written now."""
        waiting, found = self.status.waiting(), list[K]()
        async for deltas in self.desired.pending():
            found += [delta.key for delta in deltas if delta.key not in waiting and self.may_write(delta)]
        due: _Queue[K] = _Queue()
        for owner, keys in self._by_owner(found).items():
            due.put(owner, keys)
        return due

    async def _write_all(self, due: "_Queue[K]") -> None:
        """Write what is due, in batches. New plans, which are taken in between, change what is due."""
        has_taken, size = False, BATCH
        while due:
            keys, is_any_complete = due.take(size)
            began, waiting = time.monotonic(), self.status.waiting()
            found = [delta for delta in self.desired.deltas(keys) if delta.key not in waiting]
            deltas = [delta for delta in found if self.may_write(delta)]
            if len(deltas) < len(found):
                written = {delta.key for delta in deltas}
                self._put_back(due, {delta.key for delta in found} - written, written)
            if deltas:
                if self._writer.conclude(deltas, await self.apply(deltas)):
                    self.gate.restart_waits(self.clock())
                size = _next_size(size, len(deltas), time.monotonic() - began)
            if due:
                if is_any_complete:
                    await self.say()
                await asyncio.sleep(0)
            if self.wake.is_set() and not self.is_stopping:
                has_taken = True
                await self._take_into(due)
        if has_taken:
            self.wake.set()  # it may have been set for another reason, too; and some deltas may be written only now

    def _put_back(self, due: "_Queue[K]", waiting: Set[K], written: Set[K]) -> None:
        """Put back the objects that wait, if objects of the same owners are written now: they may wait for those."""
        left = self._by_owner(waiting)
        for owner in self._by_owner(written).keys() & left.keys():
            due.add(owner, left[owner])

    def _by_owner(self, keys: Iterable[K]) -> Mapping[ObjectKey, list[K]]:
        """The keys by the newest owner of each object or, without one, by the owner that was the last to drop it."""
        found = defaultdict[ObjectKey, list[K]](list)
        for key in keys:
            found[self.desired.responsible(key)[-1]].append(key)
        return found

    async def _take_into(self, due: "_Queue[K]") -> None:
        """Take new plans in, with what they change."""
        self._accepted.clear()
        await self.take()
        leaving: defaultdict[ObjectKey, list[K]] = defaultdict(list)
        if not all(map(self.desired.has_departed, self._accepted)):
            for key in self.desired.unwanted():
                leaving[self.desired.dropped_by(key).key].append(key)
        for owner in self._accepted:
            wanted = [key for key in self.desired.wanted_by(owner) if key in self.desired.unsettled]
            due.put(owner, wanted + leaving.get(owner, []))

    def may_write(self, delta: Delta[K, V]) -> bool:
        """Whether this delta need not wait. By default a deletion waits until the plan that dropped it is WITHDRAWN.

        The answer may depend only on the desired state, and on the stages that this controller waits for.
        """
        return delta.desired is not None or self.gate.has_passed(self.desired.dropped_by(delta.key), WITHDRAWN)

    def revoked(self, plan: ServicePlan) -> None:
        """Submit a plan that has lost the stage again."""
        self._touch((plan.key,))
        self.gate.submit(plan, self.stage)

    def _touch(self, owners: Iterable[ObjectKey]) -> None:
        self._changes += 1
        for owner in owners:
            self._touched[owner] = None

    def _renew(self, before: Plan, plan: Plan) -> None:
        """Note a plan that wants the same as the one before. An older plan would keep its real servers in memory."""
        if plan.key in self.plans and isinstance(plan, ServicePlan):
            self.plans[plan.key] = plan
        self.gate.renew(self.stage, before, plan)

    def _want(self, plan: Plan, objects: Mapping[K, V]) -> None:
        self.desired.want(plan, objects)
        self._accepted.add(plan.key)
        self.gate.submit(plan, self.stage)

    def _fields(self, delta: Delta[K, V]) -> dict[str, object]:
        return {"service": " ".join(names_of(self.desired.responsible(delta.key))), **self.fields_of(delta)}

    def _is_prepared(self, plan: Revision) -> bool:
        """Whether all objects of the plan are right; of a deleted Service: whether its last object is deleted."""
        return self.desired.is_settled(plan.key) and (not plan.is_empty or self.desired.has_departed(plan.key))
