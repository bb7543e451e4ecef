"""What route_fix and masquerade have in common: what they make stands before a VIP goes live, and outlives it.

Both make one kernel object for each thing that a plan names, at once, and then say that the plan's stage has been
reached. Both let go of what no plan names any more only when service_proxy has withdrawn the addresses and virtual
servers in question.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import structlog

from kroute.broadcaster import Subscription
from kroute.kernel.net.monitor import Monitor
from kroute.model.plan import NodePlan, Plan, ServicePlan
from kroute.reconcile.batches import sliced
from kroute.reconcile.candidates import Candidates
from kroute.reconcile.change_log import log_changes
from kroute.reconcile.controller import Controller
from kroute.reconcile.departures import Departures
from kroute.reconcile.desired_state import Claims, Difference
from kroute.reconcile.pass_status import names_of
from kroute.reconcile.stages import Milestones, Stage
from kroute.settings import Settings

if TYPE_CHECKING:
    from kroute.model.objects import ObjectKey

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Preparer(Controller, Generic[K, V]):
    """A controller whose objects (keys K, values V) are there before a VIP goes live."""

    stage: ClassVar[Stage]

    def __init__(
        self,
        settings: Settings,
        subscription: Subscription,
        milestones: Milestones,
        claims: Claims[K, V],
        monitor: Monitor | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(settings, subscription, monitor, clock)
        self.claims = claims
        self.milestones = milestones
        self._departures: Departures[K] = Departures()
        self._plans: dict[ObjectKey, ServicePlan] = {}
        self._unprepared = Candidates(milestones, self.stage, self._is_prepared)
        milestones.watch(self.wake, Stage.WITHDRAWN)
        milestones.serve(self.wake, self.stage)

    @abstractmethod
    def wanted_by(self, plan: ServicePlan) -> Mapping[K, V]:
        """What the plan of a Service claims."""

    def wanted_by_node(self, plan: NodePlan) -> Mapping[K, V]:  # noqa: ARG002  for those who want something
        """What the plan of the node claims; nothing unless a controller says otherwise."""
        return {}

    @abstractmethod
    async def apply(self, differences: Sequence[Difference[K, V]]) -> Mapping[K, str]:
        """Write these differences; returns the refused objects, each with a sentence that says why."""

    @abstractmethod
    def event_of(self, difference: Difference[K, V]) -> str:
        """The name of the event under which the log tells of a written difference."""

    @abstractmethod
    def fields_of(self, difference: Difference[K, V]) -> dict[str, object]:
        """What the log tells of a written difference besides the Service."""

    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Claim what the plans name, and let go of what they name no longer."""
        for plan in plans:
            self._claim(plan, self.wanted_by(plan))
            if plan.is_empty:
                self._plans.pop(plan.key, None)
            else:
                self._plans[plan.key] = plan

    def accept_node(self, plan: NodePlan) -> None:
        """The same for the plan of the node."""
        self._claim(plan, self.wanted_by_node(plan))

    async def write(self) -> None:
        """Write what may be written now, then say which plans are prepared."""
        await self.write_differences()
        await self._unprepared.promote()

    async def write_differences(self) -> None:
        """Write what may be written now."""
        async for keys in sliced(self.milestones.take_retracted(self.stage)):
            for key in self._plans.keys() & keys:
                self.retracted(self._plans[key])
        async for batch in sliced(await self._due()):
            refusals = await self.apply(batch)
            done = [difference for difference in batch if difference.key not in refusals]
            log_changes(log, done, self.event_of, self._fields)
            for difference in done:
                self.claims.note(difference.key, difference.wanted)
                if difference.wanted is None:
                    self._departures.over(difference.key)
            self.account.wrote(len(done))
            if done:
                self.milestones.proceed(self.clock())
            self.account.refused(refusals, (owner for key in refusals for owner in self.claims.owners(key)))

    def may_write(self, difference: Difference[K, V]) -> bool:
        """Whether everything has happened that must come before this write."""
        return difference.wanted is not None or self.milestones.has_reached(
            self._departures.plan_of(difference.key), Stage.WITHDRAWN
        )

    def retracted(self, plan: ServicePlan) -> None:
        """The plan has lost the stage: it is prepared again, which is said again."""
        self._unprepared.add(plan)

    def gone(self, key: K) -> None:
        """The kernel, or somebody else, has taken the object away."""
        self.claims.note(key, None)
        if self.claims.wanted(key) is None:
            self._departures.over(key)

    def _claim(self, plan: Plan, wanted: Mapping[K, V]) -> None:
        self._departures.add(plan, self.claims.claim(plan.key, wanted))
        for key in wanted:
            self._departures.over(key)
        self._unprepared.add(plan)

    def _fields(self, difference: Difference[K, V]) -> dict[str, object]:
        owners = self.claims.owners(difference.key) or [self._departures.plan_of(difference.key).key]
        return {"service": " ".join(names_of(owners)), **self.fields_of(difference)}

    async def _due(self) -> list[Difference[K, V]]:
        """The differences that may be written now."""
        return [
            difference
            async for keys in sliced(self.claims.doubtful())
            for difference in self.claims.differences(keys)
            if not self.account.is_waiting(difference.key) and self.may_write(difference)
        ]

    def _is_prepared(self, plan: Plan) -> bool:
        """An absent Service is over only when its last object has gone."""
        return self.claims.is_settled(plan.key) and (not plan.is_empty or self._departures.is_over(plan.key))
