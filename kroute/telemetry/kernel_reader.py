"""What the kernel has of the Services that are planned, read when somebody asks.

A reading costs up to a second of processor time where there are 100,000 real servers. So what it adds up to is kept for
a time in proportion to what it took, and who asks for more learns how long to wait before asking again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from heapq import nlargest
from typing import NamedTuple, Protocol

from kroute.comparison.virtual_servers import Condition, condition_of, count_real_servers
from kroute.kernel.ipvs.client import Ipvs, Traffic, VirtualServerKey, VirtualServerState
from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan, VirtualServer
from kroute.reconcile.batches import sliced

COST_SHARE = 20
"""A reading is worth this many times the time it took: at most 5 % of the time goes into readings."""
SHORTEST = 1.0
"""Seconds for which a reading is good at least."""


Scan = AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]
"""The virtual servers of the kernel in parts, so that nobody holds all of them."""


class IpvsReader(Protocol):
    """What is read from: `kroute.kernel.ipvs.client.Ipvs`."""

    def scan(self, expected: Collection[VirtualServerKey] = ()) -> Scan:
        """All virtual servers, at least those that are `expected`."""

    async def traffic(self) -> Mapping[VirtualServerKey, Traffic]:
        """What has gone through each."""


class ServiceTraffic(NamedTuple):
    """The connections that a Service has on this node, and what has gone through its virtual servers."""

    key: ObjectKey
    active: int
    inactive: int
    traffic: Traffic


class KernelSummary(NamedTuple):
    """What a reading adds up to.

    `virtual_servers` and `real_servers` are counted by their condition. `services` are those
    with most connections, as many as there may be; `omitted` is how many more there are.
    """

    virtual_servers: Mapping[Condition, int]
    real_servers: Mapping[Condition, int]
    active: int
    inactive: int
    services: Collection[ServiceTraffic]
    omitted: int


class KernelReader:
    """Reads for whoever asks, one reading at a time. `limit` is how many Services a summary lists."""

    def __init__(
        self,
        plans: Callable[[], Collection[ServicePlan]],
        limit: int,
        open_ipvs: Callable[[], AbstractAsyncContextManager[IpvsReader]] = Ipvs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plans = plans
        self._limit = limit
        self._open_ipvs = open_ipvs
        self._clock = clock
        self._busy = asyncio.Lock()
        self._summary: KernelSummary | None = None
        self._good_until = 0.0
        self._worth = SHORTEST

    @property
    def worth(self) -> float:
        """Seconds for which the last reading was good."""
        return self._worth

    async def states(self, keys: Collection[VirtualServerKey]) -> Mapping[VirtualServerKey, VirtualServerState]:
        """These virtual servers as they are now, as far as they are there. Raises KernelError."""
        async with self._busy:
            started = self._clock()
            async with self._open_ipvs() as ipvs:
                found = {key: state async for part in ipvs.scan(keys) for key, state in part if key in keys}
            self._took(self._clock() - started)
            return found

    async def summary(self) -> KernelSummary:
        """What the kernel has, or had a moment ago. Raises KernelError."""
        async with self._busy:
            started = self._clock()
            if self._summary is None or started >= self._good_until:
                plans = self._plans()
                expected = [it.key for plan in plans for it in plan.virtual_servers if it.real_servers]
                async with self._open_ipvs() as ipvs:
                    traffic = await ipvs.traffic() if self._limit else {}
                    self._summary = await summarize(plans, ipvs.scan(expected), traffic, self._limit)
                self._took(self._clock() - started)
                self._good_until = self._clock() + self._worth
            return self._summary

    def _took(self, seconds: float) -> None:
        self._worth = max(SHORTEST, COST_SHARE * seconds)


async def summarize(
    plans: Collection[ServicePlan], scan: Scan, traffic: Mapping[VirtualServerKey, Traffic], limit: int
) -> KernelSummary:
    """Add up what the kernel has of these plans; other tasks run in between."""
    tally = _Tally()
    async for batch in sliced(plans):
        tally.planned(batch)
    async for part in scan:
        for key, state in part:
            tally.found(key, state)
    services = [tally.of_service(plan, traffic) async for batch in sliced(tally.plans) for plan in batch]
    chosen = nlargest(limit, services, key=lambda it: (it.traffic.connections, it.active + it.inactive))
    return KernelSummary(
        tally.virtual_servers,
        tally.real_servers,
        sum(it.active for it in services),
        sum(it.inactive for it in services),
        sorted(chosen),
        len(services) - len(chosen),
    )


class _Tally:
    """Counts what is found of plans. What is not found is missing."""

    def __init__(self) -> None:
        self.plans: list[ServicePlan] = []
        self.virtual_servers = dict.fromkeys((Condition.SERVING, Condition.REFUSING, Condition.MISSING), 0)
        self.real_servers = dict.fromkeys((Condition.SERVING, Condition.DRAINING, Condition.MISSING), 0)
        self._planned: dict[VirtualServerKey, tuple[ObjectKey, VirtualServer]] = {}
        self._active: Counter[ObjectKey] = Counter()
        self._inactive: Counter[ObjectKey] = Counter()

    def planned(self, plans: Iterable[ServicePlan]) -> None:
        """These are to be found."""
        for plan in plans:
            if plan.virtual_servers:
                self.plans.append(plan)
            for it in plan.virtual_servers:
                self._planned[it.key] = plan.key, it
                self.virtual_servers[condition_of(it, None)] += 1
                self.real_servers[Condition.MISSING] += len(it.real_servers)

    def found(self, key: VirtualServerKey, state: VirtualServerState) -> None:
        """The kernel has this virtual server."""
        planned = self._planned.get(key)
        if planned is None:
            return
        service, desired = planned
        self.virtual_servers[condition_of(desired, None)] -= 1
        self.virtual_servers[condition_of(desired, state)] += 1
        counts = count_real_servers(desired.real_servers, state.real_servers)
        self.real_servers[Condition.SERVING] += counts.serving
        self.real_servers[Condition.DRAINING] += counts.draining
        self.real_servers[Condition.MISSING] += counts.missing - len(desired.real_servers)
        present = state.real_servers.values()
        self._active[service] += sum([real.active for real in present])
        self._inactive[service] += sum([real.inactive for real in present])

    def of_service(self, plan: ServicePlan, traffic: Mapping[VirtualServerKey, Traffic]) -> ServiceTraffic:
        """What was found of a Service, with what has gone through its virtual servers."""
        passed = [traffic[it.key] for it in plan.virtual_servers if it.key in traffic]
        total = Traffic(*map(sum, zip(*passed, strict=True)))
        return ServiceTraffic(plan.key, self._active[plan.key], self._inactive[plan.key], total)
