"""The newest plans that have yet to reach a stage."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kroute.model.plan import Plan
from kroute.reconcile.batches import sliced
from kroute.reconcile.stages import Milestones, Stage

if TYPE_CHECKING:
    from kroute.model.objects import ObjectKey


class Candidates:
    """Says of plans that they have reached `stage` as soon as `has_reached` does."""

    def __init__(self, milestones: Milestones, stage: Stage, has_reached: Callable[[Plan], bool]) -> None:
        self._milestones = milestones
        self._stage = stage
        self._has_reached = has_reached
        self._plans: dict[ObjectKey, Plan] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, plan: Plan) -> None:
        """This plan is new, or has lost the stage. A newer plan takes the place of an older one."""
        self._plans[plan.key] = plan

    async def promote(self) -> None:
        """Say which of them have reached the stage by now."""
        async for plans in sliced(list(self._plans.values())):
            arrived = [plan for plan in plans if self._has_reached(plan)]
            for plan in arrived:
                del self._plans[plan.key]
            if arrived:
                self._milestones.reach(self._stage, arrived)
