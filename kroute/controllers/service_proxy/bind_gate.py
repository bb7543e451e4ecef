"""Decides which Services may go live, and how long the others wait."""

from collections.abc import Callable, Iterable, Set

import structlog

from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan
from kroute.reconcile.batches import sliced
from kroute.reconcile.pass_status import NAMED_SERVICES, names_of
from kroute.reconcile.stage_gate import ENTRIES_PREPARED, ROUTES_PREPARED, Revision, StageGate

log = structlog.get_logger(__name__)

PATIENCE = 5.0
"""Seconds for which a Service's virtual servers and addresses wait for routes and set entries. Each write of any
controller restarts the count, and so does each look at the clock at which a controller that prepares plans is in a
pass: at the start of a large cluster every controller is busy for longer than this, and on a slow node the first rules
take longer. So does a look that comes `LATE`: the process stood still, and no controller has had its turn."""

LATE = 1.0
"""Seconds after its time at which a look at the clock is late."""

LONGEST_PATIENCE = 60.0
"""Seconds after which a wait ends even if controllers write, for instance when the kernel refuses a set entry while
others are written."""


class BindGate:
    """The Services whose newest plan is not fully applied yet. Times are seconds on the caller's clock.

    An edit that lets in clients waits for set entries. An address waits for its virtual servers, set entries and
    routes. A plan waits even when it needs no write now: it may need one later, when its last real server has drained.
    """

    def __init__(self, gate: StageGate) -> None:
        self._gate = gate
        self._waiting: dict[ObjectKey, ServicePlan] = {}
        self._since: dict[ObjectKey, float] = {}
        self._overdue: set[ObjectKey] = set()

    def await_(self, plan: ServicePlan) -> None:
        """Let a plan wait that is new or has lost an object. It continues the wait of the plan that it replaces."""
        self._waiting[plan.key] = plan

    def forget(self, key: ObjectKey) -> None:
        """End the Service's wait."""
        self._waiting.pop(key, None)
        self._since.pop(key, None)
        self._overdue.discard(key)

    def look_at_clock(self, now: float) -> None:
        """Find the Services that were waited for long enough. Call this first in a pass."""
        due = self.next_due()
        if due is not None and (self._gate.any_preparer_is_busy or now > due + LATE):
            self._gate.proceed(now)
            due = self.next_due()
        if due is not None and now >= due:
            self._overdue.update(key for key, since in self._since.items() if now >= self.due(since))

    async def settle(self, is_served: Callable[[ObjectKey], bool], now: float) -> None:
        """End the wait of Services that are ready, and, with a warning, of those that were waited for long enough."""
        if not self._waiting:
            return
        late: list[ObjectKey] = []
        async for waiting in sliced(list(self._waiting.items())):
            for key, plan in waiting:
                if self._gate.has_passed(plan, ROUTES_PREPARED, ENTRIES_PREPARED) and is_served(key):
                    self.forget(key)
                elif key in self._overdue:
                    late.append(key)
                    self.forget(key)
                else:
                    self._since.setdefault(key, now)
        if late:
            _warn(late)

    @property
    def is_over(self) -> bool:
        """Whether no Service waits."""
        return not self._waiting

    @property
    def unready(self) -> Set[ObjectKey]:
        """The Services whose addresses may not be bound yet. For the others everything is prepared, or overdue."""
        return self._waiting.keys()

    def is_ready(self, key: ObjectKey) -> bool:
        """Whether the Service's addresses may be bound."""
        return key not in self._waiting

    def awaits(self, revisions: Iterable[Revision]) -> bool:
        """Whether the plan of any of these Services waits."""
        return any(True for revision in revisions if revision.key in self._waiting)

    def may_let_in(self, key: ObjectKey) -> bool:
        """Whether virtual servers may be made and edited for the Service's newest plan."""
        plan = self._waiting.get(key)
        return plan is None or key in self._overdue or self._gate.has_passed(plan, ENTRIES_PREPARED)

    def next_due(self) -> float | None:
        """When the next Service will have been waited for long enough; None if none waits."""
        return self.due(min(self._since.values())) if self._since else None

    def due(self, since: float) -> float:
        """When what began to wait at `since` has waited for long enough."""
        return min(max(since, self._gate.progress) + PATIENCE, since + LONGEST_PATIENCE)


def _warn(keys: Iterable[ObjectKey]) -> None:
    services = names_of(keys)
    log.warning(
        "service.unprepared",
        services=services[:NAMED_SERVICES],
        more_services=max(0, len(services) - NAMED_SERVICES),
        waited=PATIENCE,
        next_step="what was held back for it goes live now; see the errors of route_fix, masquerade and service_proxy",
    )
