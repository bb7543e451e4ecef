"""How long it takes from the moment at which a change has been read to the kernel's being changed.

A change has been read when the watchers pass it on: it is out of the socket and decoded. The kernel is changed when the
Service's plan has passed all stages (kroute/reconcile/stages.py). For a new VIP that is the moment at which its
address may be bound, which comes next. The first list is none of this: it is kroute's start.

Changes that are taken together have the time of the first of them. A plan that replaces one which is still on its way
is what both have become: with it, or with a newer one, both are done.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan
from kroute.reconcile.stages import Stage

BOUNDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds, in seconds, of the histogram's buckets; one more bucket takes the rest."""

KEPT = 8192
"""How many of the newest measurements are kept one by one."""

APART = 4
"""How many plans of one Service are told apart while they are on their way; more count as the last of these."""


class Measurement(NamedTuple):
    """One plan: when it was done by the monotonic clock, and how many seconds it had taken."""

    end: float
    seconds: float


class LatencyStatistics(msgspec.Struct):
    """Plans since the start: how many have been done, their seconds together, the slowest, and how many by length.

    `waiting` is how many are on their way, `oldest` for how many seconds the first of them has been.
    """

    count: int
    total: float
    slowest: float
    buckets: list[int]
    waiting: int
    oldest: float


class _Underway:
    """A plan on its way: its generation, since when, and the stages that are still before it."""

    __slots__ = ("before", "generation", "since")

    def __init__(self, generation: int, since: float) -> None:
        self.since = since
        self.replaced_by(generation)

    def replaced_by(self, generation: int) -> None:
        """What it stands for is done when this generation is."""
        self.generation = generation
        self.before = set(Stage)


class ProgrammingLatency:
    """Follows plans from the change that caused them to the kernel. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at: float | None = None
        self._underway: dict[ObjectKey, list[_Underway]] = {}
        self._total = 0.0
        self._slowest = 0.0
        self._buckets = [0] * (len(BOUNDS) + 1)
        self.newest: deque[Measurement] = deque(maxlen=KEPT)

    def read(self) -> None:
        """Changes have been read."""
        if self._read_at is None:
            self._read_at = self._clock()

    def published(self, plans: Iterable[ServicePlan]) -> None:
        """These plans are what has become of changes."""
        if self._read_at is None:
            return  # nothing was read: the node has changed
        for plan in plans:
            underway = self._underway.setdefault(plan.key, [])
            if len(underway) < APART:
                underway.append(_Underway(plan.generation, self._read_at))
            else:
                underway[-1].replaced_by(plan.generation)

    def planned(self) -> None:
        """All that was read has been planned."""
        self._read_at = None

    def passed(self, stage: Stage, plans: Iterable[ServicePlan]) -> None:
        """These plans have passed a stage."""
        if not self._underway:
            return
        for plan in plans:
            underway = self._underway.get(plan.key)
            if underway is None:
                continue
            for one in underway:
                if one.generation <= plan.generation:
                    one.before.discard(stage)
            if not underway[0].before:
                self._done(plan.key, underway)

    def is_underway(self, key: ObjectKey) -> bool:
        """Whether a plan of this Service is on its way."""
        return key in self._underway

    def statistics(self) -> LatencyStatistics:
        """The counts as they are now."""
        oldest = min((underway[0].since for underway in self._underway.values()), default=None)
        return LatencyStatistics(
            count=sum(self._buckets),
            total=self._total,
            slowest=self._slowest,
            buckets=list(self._buckets),
            waiting=len(self._underway),
            oldest=self._clock() - oldest if oldest is not None else 0.0,
        )

    def _done(self, key: ObjectKey, underway: list[_Underway]) -> None:
        """Measure those that have passed all stages: the first ones, since what one has passed those before it have."""
        now = self._clock()
        while underway and not underway[0].before:
            seconds = now - underway.pop(0).since
            self._total += seconds
            self._slowest = max(self._slowest, seconds)
            self._buckets[bisect_left(BOUNDS, seconds)] += 1
            self.newest.append(Measurement(now, seconds))
        if not underway:
            del self._underway[key]
