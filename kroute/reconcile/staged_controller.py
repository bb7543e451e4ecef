"""The base of route_fix and masquerade: their objects exist before a VIP goes live, and are deleted after it.

Both write a plan's objects and then say that the plan has passed their stage. Both delete an object that no plan names
only after service_proxy has withdrawn its addresses and virtual servers.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import structlog

from kroute.broadcaster import Subscription
from kroute.kernel.clients import EventSource
from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Plan, ServicePlan
from kroute.reconcile.batches import sliced
from kroute.reconcile.change_log import log_changes
from kroute.reconcile.controller import Controller
from kroute.reconcile.desired_state import Delta, DesiredState
from kroute.reconcile.pass_status import names_of
from kroute.reconcile.stage_gate import WITHDRAWN, Revision, Stage, StageGate
from kroute.settings import Settings

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class StagedController(Controller, Generic[K, V]):
    """A controller whose objects (keys K, values V) exist before a VIP goes live.

    It says `stage`, and is woken when a plan passes a stage of `waits_for`.
    """

    stage: ClassVar[Stage]
    waits_for: ClassVar[tuple[Stage, ...]] = (WITHDRAWN,)

    def __init__(
        self,
        settings: Settings,
        subscription: Subscription,
        gate: StageGate,
        desired: DesiredState[K, V],
        monitor: EventSource | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(settings, subscription, monitor, clock)
        self.desired = desired
        self.gate = gate
        self._plans: dict[ObjectKey, ServicePlan] = {}
        self._seen: tuple[int, ...] = ()
        self._is_in_step = False
        gate.join(
            self.wake,
            says={self.stage: self._is_prepared},
            waits_for=self.waits_for,
            needs=lambda _: desired.has_doubts,
            works=lambda: self._is_in_step,
        )

    @abstractmethod
    def wanted_by(self, plan: ServicePlan) -> Mapping[K, V]:
        """The objects that the plan of a Service wants."""

    def wanted_by_node(self, plan: NodePlan) -> Mapping[K, V]:  # noqa: ARG002  for those who want something
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
        """The log line's fields for a written delta, besides the Service."""

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Take the plans into the desired state."""
        for plan in plans:
            self._want(plan, self.wanted_by(plan))
            if plan.is_empty:
                self._plans.pop(plan.key, None)
            else:
                self._plans[plan.key] = plan

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
        await self.gate.advance(self.stage)

    async def write_deltas(self) -> None:
        """Write the deltas that may be written now."""
        if retracted := self.gate.take_retracted(self.stage):
            async for keys in sliced(retracted):
                for key in self._plans.keys() & keys:
                    self.retracted(self._plans[key])
        if not self.desired.has_doubts:
            return
        seen = (self.desired.changes, *[self.gate.passages[stage] for stage in self.waits_for])
        if seen == self._seen:
            return
        waiting = self.status.waiting()
        due = [
            delta
            async for deltas in self.desired.pending()
            for delta in deltas
            if delta.key not in waiting and self.may_write(delta)
        ]
        if not (due or waiting):
            self._seen = seen  # until that changes, all that is in doubt waits
        async for batch in sliced(due):
            await self._write(batch)

    async def _write(self, deltas: Sequence[Delta[K, V]]) -> None:
        refusals = await self.apply(deltas)
        done = [delta for delta in deltas if delta.key not in refusals]
        log_changes(log, done, self.event_of, self._fields)
        for delta in done:
            self.desired.note_applied(delta.key, delta.desired)
        self.status.wrote(len(done))
        if done:
            self.gate.proceed(self.clock())
        self.status.refused(refusals, (owner for key in refusals for owner in self.desired.owners(key)))

    def may_write(self, delta: Delta[K, V]) -> bool:
        """Whether this delta need not wait. By default a deletion waits until the plan that dropped it is WITHDRAWN.

        It may depend on the desired state, and on the stages that this controller waits for.
        """
        return delta.desired is not None or self.gate.has_passed(self.desired.let_go_by(delta.key), WITHDRAWN)

    def retracted(self, plan: ServicePlan) -> None:
        """Submit a plan that has lost the stage again."""
        self.gate.submit(plan, self.stage)

    def _want(self, plan: Plan, objects: Mapping[K, V]) -> None:
        self.desired.want(plan, objects)
        self.gate.submit(plan, self.stage)

    def _fields(self, delta: Delta[K, V]) -> dict[str, object]:
        return {"service": " ".join(names_of(self.desired.responsible(delta.key))), **self.fields_of(delta)}

    def _is_prepared(self, plan: Revision) -> bool:
        """Whether all objects of the plan are right; of a deleted Service: whether its last object is deleted."""
        return self.desired.is_settled(plan.key) and (not plan.is_empty or self.desired.has_departed(plan.key))
