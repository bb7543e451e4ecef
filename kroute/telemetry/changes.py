"""Observe each change of an object until the kernel has it: read, planned, published, passed by every stage.

Three kinds of figures result:

- Programming latency: from the moment at which a change has been read to the moment at which the kernel is changed. A
  change has been read when the watchers pass it on, received and decoded. The kernel is changed when the Service's plan
  has passed all stages (kroute/reconcile/stage_gate.py). For a new VIP, that is when its address may be bound, which
  comes next. The initial sync is not counted: it is kroute's start.
- Network programming: from the change of a pod, as its EndpointSlice says, to the same moment. This is an SLI of
  Kubernetes. It includes the clock of the EndpointSlice's writer, so it does not measure kroute alone. Sources:
  kubernetes sig-scalability/slos/network_programming_latency.md, pkg/proxy/endpointschangetracker.go.
- Counts of changes by kind, when the last one was read, and of how many Services changes are pending.

Changes that are read together have the time of the first of them. A plan that replaces one in progress completes both.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import NamedTuple

import msgspec

from kroute.base.histogram import Histogram
from kroute.model.addresses import Family
from kroute.model.node_facts import REMOVAL_TAINT
from kroute.model.objects import Applied, Change, Deleted, EndpointSlice, KubernetesObject, Node, ObjectKey, Service
from kroute.model.plan import Plan
from kroute.reconcile.stage_gate import GOING_LIVE, Revision, Stage

LATENCY_BOUNDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds, in seconds, of the histogram of programming latencies."""

NETWORK_BOUNDS = (
    *(0.25, 0.5, *map(float, range(1, 60))),
    *(*map(float, range(60, 120, 5)), *map(float, range(120, 301, 30))),
)
"""Upper bounds, in seconds, of the histogram of network programming: those of kube-proxy
(pkg/proxy/metrics/metrics.go)."""

KEPT = 8192
"""How many of the newest latencies are kept individually."""

APART = 4
"""How many plans of one Service are tracked separately while in progress. Further ones replace the last of these."""

FAMILIES = tuple(map(str, Family))
"""The values of the label `ip_family`, and of an EndpointSlice's addressType."""

_Trigger = tuple[str, float]
"""A change of a pod: the family of its addresses, and the Unix time."""

MOST_OF_A_SERVICE = 100
"""How many trigger times of one Service are kept at once. Further changes are not measured."""


class Measurement(NamedTuple):
    """One completed plan: when it was completed, by the monotonic clock, and how many seconds it had taken."""

    end: float
    seconds: float


class LatencyStatistics(msgspec.Struct):
    """The latencies of all plans since the start: `seconds` has those of the completed ones.

    `waiting` is how many Services have plans in progress. `oldest` is for how many seconds the first of these plans has
    been.
    """

    seconds: Histogram
    waiting: int
    oldest: float


class _Underway(msgspec.Struct):
    """A plan in progress: its generation, since when, and the stages that it has not passed yet."""

    generation: int
    since: float
    before: set[Stage] = msgspec.field(default_factory=lambda: set(GOING_LIVE))


class ChangeObserver:
    """Follows changes from their source to the kernel. `clock` gives monotonic seconds, `now` the Unix time."""

    def __init__(
        self, node_name: str, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self.programming = NetworkProgramming(now)
        self.newest: deque[Measurement] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()
        self.ineligible: str | None = None
        """Why load balancers should send no new connections to this node, if they should not: kube-proxy's rule
        (proxy_health.go, SyncNode). None also before the Node object is known."""
        self._clock = clock
        self._node = ObjectKey("", node_name)
        self._latency = Histogram(LATENCY_BOUNDS)
        self._read_at: float | None = None
        self._last_read: float | None = None
        self._underway: dict[ObjectKey, list[_Underway]] = {}
        self._pending: dict[str, set[ObjectKey]] = {kind.__name__: set() for kind in (Service, EndpointSlice)}
        self._unplanned: set[ObjectKey] = set()

    def read(self, changes: Sequence[Change]) -> None:
        """Record changes that have been read and go to the catalog."""
        self._last_read = self._clock()
        if self._read_at is None:
            self._read_at = self._last_read
        for change in changes:
            match change:
                case Applied(item, triggered):
                    self._count(type(item), item.service_key if isinstance(item, EndpointSlice) else item.key)
                    if triggered is not None and isinstance(item, EndpointSlice):
                        self.programming.read(item, triggered)
                    if isinstance(item, Node) and item.key == self._node:
                        self.ineligible = _why_ineligible(item)
                case Deleted(kind, key):
                    self._count(kind, key)
                    if kind is Node and key == self._node:
                        self.ineligible = f"the Node {key} no longer exists"

    def published(self, plans: Iterable[Plan]) -> None:
        """Record plans that result from the changes."""
        if self._read_at is None:
            return  # no change was read: the node has changed
        for plan in plans:
            underway = self._underway.setdefault(plan.key, [])
            if len(underway) < APART:
                underway.append(_Underway(plan.generation, self._read_at))
            else:
                underway[-1] = _Underway(plan.generation, underway[-1].since)

    def planned(self) -> None:
        """Record that everything read has been planned. A change without a new plan is completed."""
        self._read_at = None
        self.programming.planned(self._underway)
        unplanned, self._unplanned = self._unplanned, set()
        self._forget(key for key in unplanned if key not in self._underway)

    def passed(self, stage: Stage, plans: Iterable[Revision]) -> None:
        """Record plans that have passed a stage."""
        if not self._underway:
            return
        now: float | None = None
        for plan in plans:
            underway = self._underway.get(plan.key)
            if underway is None:
                continue
            for one in underway:
                if one.generation <= plan.generation:
                    one.before.discard(stage)
            if not underway[0].before:
                if now is None:
                    now = self._clock()
                self._done(plan.key, underway, now)

    @property
    def last_read(self) -> float:
        """When changes were read last, as Unix time; 0 before the first ones."""
        return 0.0 if self._last_read is None else self.programming.now() - (self._clock() - self._last_read)

    def pending(self, kind: type[Service | EndpointSlice]) -> int:
        """Of how many Services changes of this kind have been read and are not in the kernel yet.

        A deleted EndpointSlice counts by itself, and until it is planned.
        """
        return len(self._pending[kind.__name__])

    def statistics(self) -> LatencyStatistics:
        """The current programming latencies."""
        oldest = min((underway[0].since for underway in self._underway.values()), default=None)
        return LatencyStatistics(
            seconds=self._latency,
            waiting=len(self._underway),
            oldest=self._clock() - oldest if oldest is not None else 0.0,
        )

    def _done(self, key: ObjectKey, underway: list[_Underway], now: float) -> None:
        """Measure the plans that have now passed all stages.

        These are the first ones: a stage passes older plans with newer ones.
        """
        while underway and not underway[0].before:
            seconds = now - underway.pop(0).since
            self._latency.observe(seconds)
            self.newest.append(Measurement(now, seconds))
        if not underway:
            del self._underway[key]
            self.programming.done(key)
            self._forget((key,))

    def _forget(self, planned: Iterable[ObjectKey]) -> None:
        for key in planned:
            for keys in self._pending.values():
                keys.discard(key)

    def _count(self, kind: type[KubernetesObject], key: ObjectKey | None) -> None:
        self.counts[kind.__name__] += 1
        if key is not None and kind.__name__ in self._pending:
            self._pending[kind.__name__].add(key)
            self._unplanned.add(key)


class NetworkProgramming:
    """Measures from the change of a pod until its Service's plans are in the kernel.

    It leaves out changes of pods before the start, as kube-proxy does: this process did not cause their delay.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.durations = {family: Histogram(NETWORK_BOUNDS) for family in FAMILIES}
        self.now = now
        self._started = now()
        self._read: dict[ObjectKey, list[_Trigger]] = {}
        self._underway: dict[ObjectKey, list[_Trigger]] = {}

    def read(self, endpoints: EndpointSlice, triggered: float) -> None:
        """Keep when the pod has changed that caused this EndpointSlice."""
        key, family = endpoints.service_key, endpoints.address_type
        if triggered >= self._started and key and family in FAMILIES:
            times = self._read.setdefault(key, [])
            if len(times) + len(self._underway.get(key, ())) < MOST_OF_A_SERVICE:
                times.append((family, triggered))

    def planned(self, underway: Container[ObjectKey]) -> None:
        """What was read is done, except for the Services that have plans in progress."""
        for key, triggered in self._read.items():
            if key in underway:
                self._underway.setdefault(key, []).extend(triggered)
            else:
                self._observe(triggered)
        self._read.clear()

    def done(self, key: ObjectKey) -> None:
        """The plans of this Service are in the kernel."""
        self._observe(self._underway.pop(key, ()))

    def _observe(self, triggered: Collection[_Trigger]) -> None:
        for family, moment in triggered:
            self.durations[family].observe(max(0.0, self.now() - moment))


def _why_ineligible(node: Node) -> str | None:
    if node.metadata.deletion_timestamp is not None:
        return f"the Node {node.key} is being deleted"
    if any(taint.key == REMOVAL_TAINT for taint in node.spec.taints or ()):
        return f"the Node {node.key} has the taint {REMOVAL_TAINT}: the cluster autoscaler removes it"
    return None
