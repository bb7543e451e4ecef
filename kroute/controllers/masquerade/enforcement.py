"""Says which plans have their source ranges (`loadBalancerSourceRanges`) enforced.

A port's ranges are enforced when it is in the set RESTRICTED and the rules that look up that set exist. A missing entry
of SOURCE_RANGE does not matter here: it only keeps out clients that should be served.
"""

import asyncio
from collections.abc import Callable

from kroute.model.addresses import Family
from kroute.model.objects import ObjectKey
from kroute.model.plan import AddressSet, ServicePlan, SetEntry
from kroute.reconcile.stage_gate import ENFORCED, Revision, StageGate


class Enforcement:
    """Keeps the newest plans that restrict ports.

    `is_right` says whether a set entry is as desired, `enforces` whether a family's rules about restricted ports exist.
    """

    def __init__(
        self,
        gate: StageGate,
        waker: asyncio.Event,
        is_right: Callable[[SetEntry], bool],
        enforces: Callable[[Family], bool],
    ) -> None:
        self._gate = gate
        self._is_right = is_right
        self._enforces = enforces
        self._plans: dict[ObjectKey, tuple[ServicePlan, tuple[SetEntry, ...]]] = {}
        gate.join(waker, says={stage: self._question(family) for family, stage in ENFORCED.items()})

    def accept(self, plan: ServicePlan) -> None:
        """Take a new plan in. It loses the stage if its ports are not all enforced, though the older plan's may be."""
        entries = tuple(entry for entry in plan.set_entries if entry.set is AddressSet.RESTRICTED)
        was_restricted = plan.key in self._plans
        if entries:
            self._plans[plan.key] = (plan, entries)
        else:
            self._plans.pop(plan.key, None)
        if entries or was_restricted or plan.is_empty:
            self._gate.submit(plan, *ENFORCED.values())
        if entries:
            self._lose_what_is_open(plan)

    def review(self) -> None:
        """Take the stage back from plans whose ports are no longer enforced; call this when sets or rules changed."""
        for plan, _ in self._plans.values():
            self._lose_what_is_open(plan)

    async def advance(self) -> None:
        """Say which plans have passed the stage."""
        for stage in ENFORCED.values():
            if self._gate.has_candidates(stage):
                await self._gate.advance(stage)

    def _lose_what_is_open(self, plan: ServicePlan) -> None:
        for family, stage in ENFORCED.items():
            if not self._is_enforced(plan, family):
                self._gate.lose(stage, plan)

    def _question(self, family: Family) -> Callable[[Revision], bool]:
        return lambda plan: self._is_enforced(plan, family)

    def _is_enforced(self, plan: Revision, family: Family) -> bool:
        _, entries = self._plans.get(plan.key, (plan, ()))
        own = [entry for entry in entries if entry.family is family]
        return not own or (self._enforces(family) and all(self._is_right(entry) for entry in own))
