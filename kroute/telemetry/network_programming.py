"""How long it takes from the change of a pod to this node's kernel: the network programming SLI of Kubernetes.

The clock of whoever wrote the EndpointSlice is part of it, so this is no measure of kroute alone: that is `latency`.
Sources: kubernetes sig-scalability/slos/network_programming_latency.md, pkg/proxy/endpointschangetracker.go.
"""

import time
from collections.abc import Callable, Iterable

from kroute.histogram import Durations
from kroute.model.objects import Applied, Change, EndpointSlice, ObjectKey
from kroute.model.plan import ServicePlan
from kroute.reconcile.stages import Stage

BOUNDS = (0.25, 0.5, *map(float, range(1, 60)), *map(float, range(60, 120, 5)), *map(float, range(120, 301, 30)))
"""Seconds: the ranges in which kube-proxy counts them (pkg/proxy/metrics/metrics.go)."""

MOST_OF_A_SERVICE = 100
"""Changes of one Service that are kept in mind at once; further ones are not measured."""


class NetworkProgramming:
    """Measures each change of which an EndpointSlice tells the time.

    `is_underway` says whether a plan of a Service is on its way to the kernel; `now` is the Unix time. Changes from
    before the start are left out, as in kube-proxy: it is not this process that was late.
    """

    def __init__(self, is_underway: Callable[[ObjectKey], bool], now: Callable[[], float] = time.time) -> None:
        self.durations = Durations(BOUNDS)
        self._is_underway = is_underway
        self._now = now
        self._started = now()
        self._read: dict[ObjectKey, list[float]] = {}
        self._planned: dict[ObjectKey, list[float]] = {}

    def take(self, changes: Iterable[Change]) -> None:
        """Look at changes on their way to the catalog."""
        for change in changes:
            if isinstance(change, Applied) and change.triggered is not None and change.triggered >= self._started:
                self._keep(change.item, change.triggered)

    def planned(self) -> None:
        """All that was read has been planned. What makes no difference on this node is done."""
        for key, triggered in self._read.items():
            if self._is_underway(key):
                self._planned.setdefault(key, []).extend(triggered)
            else:
                self._observe(triggered)
        self._read.clear()

    def passed(self, _stage: Stage, plans: Iterable[ServicePlan]) -> None:
        """These plans have passed a stage; it is the last one for those that are no longer on their way."""
        for plan in plans if self._planned else ():
            if plan.key in self._planned and not self._is_underway(plan.key):
                self._observe(self._planned.pop(plan.key))

    def _keep(self, item: object, triggered: float) -> None:
        key = item.service_key if isinstance(item, EndpointSlice) else None
        if key is not None:
            times = self._read.setdefault(key, [])
            if len(times) + len(self._planned.get(key, ())) < MOST_OF_A_SERVICE:
                times.append(triggered)

    def _observe(self, triggered: Iterable[float]) -> None:
        now = self._now()
        for moment in triggered:
            self.durations.observe(max(0.0, now - moment))
