"""How the controllers wait for each other, so that a VIP goes live last and goes away first.

A controller says which stage of a plan it has reached; another asks whether a plan's stage has been reached. Nobody
blocks: a controller goes on with what is ready and is woken when a stage is reached. The stages do not depend on each
other in a circle: additions of all three (PREPARED) come before any address and wait for no removal; removals
(WITHDRAWN) wait at most for the additions of their own plan, where new real servers replace old ones on an address that
is live, and for those only so long.

A stage can be lost again: with the address of a VIP goes its route. Who notices takes the stage back (`retract`), which
wakes the stage's controller to pass it anew, so that a repair keeps the order of a first start.

Everything here runs in the event loop's thread and awaits nothing, so each call is atomic.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from kroute.model.objects import ObjectKey
from kroute.model.plan import Plan, ServicePlan

PREDECESSOR = ServicePlan(ObjectKey("", "what an earlier run left"))
"""What an earlier run left behind, told as the plan of an absent Service: it is withdrawn as any other is.

The first full list of plans stands for it too, so what no plan names then goes in the same order as always.
"""


class Stage(StrEnum):
    """A point that a plan passes on its way into the kernel."""

    SERVED = "served"
    """service_proxy: the plan's virtual servers are there, behind its set entries, or were waited for long enough."""
    ROUTES_PREPARED = "routes-prepared"
    """route_fix: the plan's source routes are in place."""
    ENTRIES_PREPARED = "entries-prepared"
    """masquerade: the plan's set entries are in place."""
    WITHDRAWN = "withdrawn"
    """service_proxy: the addresses, virtual servers and real servers that the plan no longer names are gone, or take no
    new connections."""


Follower = Callable[[Stage, Sequence[Plan]], None]
"""Looks on while plans reach stages; must return soon, and change nothing."""


class Milestones:
    """The newest generation of each Service's plan that has passed each stage."""

    def __init__(self) -> None:
        self._reached: dict[Stage, dict[ObjectKey, int]] = {stage: {} for stage in Stage}
        self._retracted: dict[Stage, set[ObjectKey]] = {stage: set() for stage in Stage}
        self._wakers: dict[Stage, list[asyncio.Event]] = {stage: [] for stage in Stage}
        self._owners: dict[Stage, list[asyncio.Event]] = {stage: [] for stage in Stage}
        self._followers: list[Follower] = []
        self.progress = -math.inf

    def watch(self, waker: asyncio.Event, *stages: Stage) -> None:
        """Set this event whenever one of the stages is reached by some plan."""
        for stage in stages:
            self._wakers[stage].append(waker)

    def serve(self, waker: asyncio.Event, *stages: Stage) -> None:
        """Set this event whenever one of the stages is taken back; for the controller that reaches it."""
        for stage in stages:
            self._owners[stage].append(waker)

    def follow(self, follower: Follower) -> None:
        """Call this with every stage and the plans that reach it."""
        self._followers.append(follower)

    def reach(self, stage: Stage, plans: Iterable[Plan]) -> None:
        """Say that these plans have passed the stage. A gone Service is forgotten once it has passed all of them."""
        reached = self._reached[stage]
        plans = tuple(plans)
        for plan in plans:
            reached[plan.key] = max(plan.generation, reached.get(plan.key, -1))
            if plan.is_empty and plan is not PREDECESSOR:
                self._forget_when_over(plan)
        for waker in self._wakers[stage]:
            waker.set()
        for follower in self._followers:
            follower(stage, plans)

    def proceed(self, now: float) -> None:
        """A controller has written something, and is not stuck: `progress` is when that was last so, in seconds."""
        self.progress = now

    def has_reached(self, plan: Plan, *stages: Stage) -> bool:
        """Whether this plan, or a newer one of the same Service, has passed all the stages."""
        return all(self._reached[stage].get(plan.key, -1) >= plan.generation for stage in stages)

    def retract(self, stage: Stage, keys: Iterable[ObjectKey]) -> None:
        """Say that these Services have lost the stage, and ask its controller to pass it anew."""
        for key in keys:
            self._reached[stage].pop(key, None)
            self._retracted[stage].add(key)
        for waker in self._owners[stage]:
            waker.set()

    def take_retracted(self, stage: Stage) -> set[ObjectKey]:
        """The Services that have lost the stage since the last call; for the controller that reaches it."""
        taken, self._retracted[stage] = self._retracted[stage], set()
        return taken

    def _forget_when_over(self, plan: Plan) -> None:
        if all(reached.get(plan.key) == plan.generation for reached in self._reached.values()):
            for reached in self._reached.values():
                del reached[plan.key]
