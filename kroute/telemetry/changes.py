"""One observer of what becomes of changes: read, planned and published, passed by every stage.

Three kinds of figures come of these moments:

- Programming latency: from the moment at which a change has been read to the kernel's being changed. A change has been
  read when the watchers pass it on: it is out of the socket and decoded. The kernel is changed when the Service's plan
  has passed all stages (kroute/reconcile/stage_gate.py). For a new VIP that is the moment at which its address may be
  bound, which comes next. The initial sync is none of this: it is kroute's start.
- Network programming: from the change of a pod, as its EndpointSlice says, to the same moment. This is an SLI of
  Kubernetes. It includes the clock of the EndpointSlice's writer, so it is no measure of kroute alone. Sources:
  kubernetes sig-scalability/slos/network_programming_latency.md, pkg/proxy/endpointschangetracker.go.
- Counts of changes by kind, and when the last one was read.

Changes that are read together have the time of the first of them. A plan that replaces one which is still on its way
is what both have become: with it, or with a newer one, both are done.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from kroute.histogram import Histogram
from kroute.model.objects import Applied, Change, Deleted, EndpointSlice, ObjectKey
from kroute.model.plan import Plan
from kroute.reconcile.stage_gate import GOING_LIVE, Revision, Stage
from kroute.telemetry.node_eligibility import NodeEligibility

LATENCY_BOUNDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds, in seconds, of the ranges in which programming latencies are counted."""

NETWORK_BOUNDS = (
    *(0.25, 0.5, *map(float, range(1, 60))),
    *(*map(float, range(60, 120, 5)), *map(float, range(120, 301, 30))),
)
"""Seconds: the ranges in which kube-proxy counts network programming (pkg/proxy/metrics/metrics.go)."""

KEPT = 8192
"""How many of the newest latencies are kept one by one."""

APART = 4
"""How many plans of one Service are tracked separately while they are on their way; more count as the last of these."""

MOST_OF_A_SERVICE = 100
"""Changes of one Service whose trigger times are kept at once; further ones are not measured."""


class Measurement(NamedTuple):
    """One plan: when it was done by the monotonic clock, and how many seconds it had taken."""

    end: float
    seconds: float


class LatencyStatistics(msgspec.Struct):
    """Plans since the start: how many have been done, their seconds together, and how many by length.

    `waiting` is how many are on their way, `oldest` for how many seconds the first of them has been.
    """

    count: int
    total: float
    buckets: list[int]
    waiting: int
    oldest: float


class _Underway:
    """A plan on its way: its generation, since when, and the stages of going live that are still before it."""

    __slots__ = ("before", "generation", "since")

    def __init__(self, generation: int, since: float) -> None:
        self.since = since
        self.replaced_by(generation)

    def replaced_by(self, generation: int) -> None:
        """What it stands for is done when this generation is."""
        self.generation = generation
        self.before = set(GOING_LIVE)


class ChangeObserver:
    """Follows changes from their source to the kernel.

    `clock` gives seconds and never goes back; `now` is the Unix time. Pods' changes from before the start are left out
    of `network_programming`, as in kube-proxy: it is not this process that was late.
    """

    def __init__(
        self,
        node_name: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.network_programming = Histogram(NETWORK_BOUNDS)
        self.newest: deque[Measurement] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()
        self.last_read = 0.0
        self._clock = clock
        self._now = now
        self._started = now()
        self._eligibility = NodeEligibility(node_name)
        self._latency = Histogram(LATENCY_BOUNDS)
        self._read_at: float | None = None
        self._underway: dict[ObjectKey, list[_Underway]] = {}
        self._triggers_read: dict[ObjectKey, list[float]] = {}
        self._triggers_underway: dict[ObjectKey, list[float]] = {}

    def read(self, changes: Sequence[Change]) -> None:
        """These changes have been read, and go to the catalog."""
        self.last_read = self._now()
        if self._read_at is None:
            self._read_at = self._clock()
        for change in changes:
            match change:
                case Applied(item, triggered):
                    self.counts[type(item).__name__] += 1
                    if triggered is not None and triggered >= self._started:
                        self._keep_trigger(item, triggered)
                case Deleted(kind):
                    self.counts[kind.__name__] += 1
                case _:
                    pass
            self._eligibility.read(change)

    def published(self, plans: Iterable[Plan]) -> None:
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
        """All that was read has been planned. What makes no difference on this node is done."""
        self._read_at = None
        for key, triggered in self._triggers_read.items():
            if key in self._underway:
                self._triggers_underway.setdefault(key, []).extend(triggered)
            else:
                self._observe_triggers(triggered)
        self._triggers_read.clear()

    def passed(self, stage: Stage, plans: Iterable[Revision]) -> None:
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

    def ineligible(self) -> str | None:
        """Why load balancers should send nothing new to this node; None if they may."""
        return self._eligibility.ineligible

    def statistics(self) -> LatencyStatistics:
        """The programming latencies as they are now."""
        oldest = min((underway[0].since for underway in self._underway.values()), default=None)
        return LatencyStatistics(
            count=self._latency.count,
            total=self._latency.sum,
            buckets=self._latency.counts,
            waiting=len(self._underway),
            oldest=self._clock() - oldest if oldest is not None else 0.0,
        )

    def _done(self, key: ObjectKey, underway: list[_Underway]) -> None:
        """Measure those that have passed all stages: the first ones, since what one has passed those before it have."""
        now = self._clock()
        while underway and not underway[0].before:
            seconds = now - underway.pop(0).since
            self._latency.observe(seconds)
            self.newest.append(Measurement(now, seconds))
        if not underway:
            del self._underway[key]
            self._observe_triggers(self._triggers_underway.pop(key, ()))

    def _keep_trigger(self, item: object, triggered: float) -> None:
        key = item.service_key if isinstance(item, EndpointSlice) else None
        if key is not None:
            times = self._triggers_read.setdefault(key, [])
            if len(times) + len(self._triggers_underway.get(key, ())) < MOST_OF_A_SERVICE:
                times.append(triggered)

    def _observe_triggers(self, triggered: Iterable[float]) -> None:
        now = self._now()
        for moment in triggered:
            self.network_programming.observe(max(0.0, now - moment))
