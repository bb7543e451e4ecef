"""Read the kernel's state of the planned Services on request.

A scan costs up to a second of processor time for 100,000 real servers. So the summary is cached for a multiple of the
time that the scan took. A caller is told how long to wait before asking again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from heapq import nlargest
from typing import NamedTuple, Protocol, TypeVar

from kroute.comparison.virtual_servers import Condition, condition_of, count_ejected, count_real_servers
from kroute.kernel.ipvs.client import Ipvs, Traffic, VirtualServerKey, VirtualServerState
from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan, VirtualServer
from kroute.reconcile.batches import sliced

T = TypeVar("T")

COST_SHARE = 20
"""A scan is cached for this many times the time that it took. So scans take at most 5 % of the time."""
SHORTEST = 1.0
"""Seconds for which a scan is cached at least."""


_CONDITIONS = (Condition.SERVING, Condition.EJECTED, Condition.DRAINING, Condition.MISSING)
"""The conditions in which real servers are counted. One that climbs counts as serving."""

Scan = AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]
"""The kernel's virtual servers in parts, so that they are never all in memory."""


class IpvsReader(Protocol):
    """An IPVS client for reading: `kroute.kernel.ipvs.client.Ipvs`."""

    def scan(self, expected: Collection[VirtualServerKey] = ()) -> Scan:
        """All virtual servers, at least those in `expected`."""

    async def traffic(self) -> Mapping[VirtualServerKey, Traffic]:
        """The traffic counters of each virtual server."""


class ServiceTraffic(NamedTuple):
    """A Service's connections on this node, and the total traffic of its virtual servers."""

    key: ObjectKey
    active: int
    inactive: int
    traffic: Traffic


class KernelSummary(NamedTuple):
    """The totals of one scan.

    `virtual_servers` and `real_servers` are counted by condition. `services` are those with the most connections, up to
    the limit. `omitted` is how many more Services there are.
    """

    virtual_servers: Mapping[Condition, int]
    real_servers: Mapping[Condition, int]
    active: int
    inactive: int
    services: Collection[ServiceTraffic]
    omitted: int


class KernelReader:
    """Scans on request, one scan at a time. `limit` is how many Services a summary lists."""

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
        """Seconds for which the last scan is cached."""
        return self._worth

    async def states(self, keys: Collection[VirtualServerKey]) -> Mapping[VirtualServerKey, VirtualServerState]:
        """The kernel's current state of these virtual servers; those that do not exist are left out.

        Raises KernelError.
        """

        async def chosen(ipvs: IpvsReader) -> Mapping[VirtualServerKey, VirtualServerState]:
            return {key: state async for part in ipvs.scan(keys) for key, state in part if key in keys}

        return await self.read(chosen)

    async def read(self, work: Callable[[IpvsReader], Awaitable[T]]) -> T:
        """Read by `work`, when no other reading is under way; what it took counts. Raises KernelError."""
        async with self._busy:
            return await self._read(work)

    async def summary(self) -> KernelSummary:
        """The totals of a scan now, or of a cached one. Raises KernelError."""
        async with self._busy:
            if self._summary is None or self._clock() >= self._good_until:
                self._summary = await self._read(self._summarize)
                self._good_until = self._clock() + self._worth
            return self._summary

    async def _read(self, work: Callable[[IpvsReader], Awaitable[T]]) -> T:
        """Read by `work`, and note for how long the result is worth keeping. The caller holds `_busy`."""
        started = self._clock()
        async with self._open_ipvs() as ipvs:
            found = await work(ipvs)
        self._worth = max(SHORTEST, COST_SHARE * (self._clock() - started))
        return found

    async def _summarize(self, ipvs: IpvsReader) -> KernelSummary:
        plans = self._plans()
        expected = [it.key for plan in plans for it in plan.virtual_servers if it.real_servers]
        traffic = await ipvs.traffic() if self._limit else {}
        return await summarize(plans, ipvs.scan(expected), traffic, self._limit)


async def summarize(
    plans: Collection[ServicePlan], scan: Scan, traffic: Mapping[VirtualServerKey, Traffic], limit: int
) -> KernelSummary:
    """Compute the totals of the kernel's state of these plans. Other tasks run in between."""
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
    """Counts the planned objects by condition. What the scan does not find is missing."""

    def __init__(self) -> None:
        self.plans: list[ServicePlan] = []
        self.virtual_servers = dict.fromkeys((Condition.SERVING, Condition.REFUSING, Condition.MISSING), 0)
        self.real_servers = dict.fromkeys(_CONDITIONS, 0)
        self._planned: dict[VirtualServerKey, tuple[ObjectKey, VirtualServer]] = {}
        self._active: Counter[ObjectKey] = Counter()
        self._inactive: Counter[ObjectKey] = Counter()

    def planned(self, plans: Iterable[ServicePlan]) -> None:
        """Add plans, whose objects are missing until found."""
        for plan in plans:
            if plan.virtual_servers:
                self.plans.append(plan)
            for it in plan.virtual_servers:
                self._planned[it.key] = plan.key, it
                self.virtual_servers[condition_of(it, None)] += 1
                self.real_servers[Condition.MISSING] += len(it.real_servers)

    def found(self, key: VirtualServerKey, state: VirtualServerState) -> None:
        """Record a virtual server that the kernel has."""
        planned = self._planned.get(key)
        if planned is None:
            return
        service, desired = planned
        self.virtual_servers[condition_of(desired, None)] -= 1
        self.virtual_servers[condition_of(desired, state)] += 1
        counts = count_real_servers(desired.real_servers, state.real_servers)
        self.real_servers[Condition.SERVING] += counts.serving
        ejected = count_ejected(desired, state.real_servers)
        self.real_servers[Condition.EJECTED] += ejected
        self.real_servers[Condition.DRAINING] += counts.draining - ejected
        self.real_servers[Condition.MISSING] += counts.missing - len(desired.real_servers)
        present = state.real_servers.values()
        self._active[service] += sum([real.active for real in present])
        self._inactive[service] += sum([real.inactive for real in present])

    def of_service(self, plan: ServicePlan, traffic: Mapping[VirtualServerKey, Traffic]) -> ServiceTraffic:
        """The connections found for a Service, and the total traffic of its virtual servers."""
        passed = [traffic[it.key] for it in plan.virtual_servers if it.key in traffic]
        total = Traffic(*map(sum, zip(*passed, strict=True)))
        return ServiceTraffic(plan.key, self._active[plan.key], self._inactive[plan.key], total)
