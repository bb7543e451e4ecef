"""Read the figures of all planned Services, and of network policies, on request, and keep what was read for a time.

A scan of the kernel costs up to a second of processor time for 100,000 real servers. So what was read is kept for a
multiple of the time that the scan took. A caller learns how long to wait before the next request.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from heapq import nlargest
from typing import NamedTuple, TypeVar

import msgspec

from kroute.inspect.figures import Figures, Rates, Reading, read_figures
from kroute.inspect.policies import Enforced, PolicyFigures, figures_of
from kroute.kernel.clients import IpvsReader
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.objects import Traffic
from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan
from kroute.reconcile.batches import sliced

T = TypeVar("T")

COST_SHARE = 20
"""A scan is kept for this many times the time that it took. So scans take at most 5 % of the time."""
SHORTEST = 1.0
"""Seconds for which a scan is kept at least."""
LONGEST_SPAN = 60.0
"""Seconds between two readings beyond which their difference says nothing of now, and after which both are dropped."""


class KernelSummary(NamedTuple):
    """The figures of all Services together, and separately those of the Services with the most connections.

    `omitted` is how many more Services with virtual servers there are.
    """

    total: Figures
    services: Sequence[tuple[ObjectKey, Figures]]
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
        self.clock = clock
        self._busy = asyncio.Lock()
        self._summary: KernelSummary | None = None
        self._good_until = 0.0
        self.worth = SHORTEST
        """Seconds for which what the last scan found is kept."""

    async def read(self, work: Callable[[IpvsReader], Awaitable[T]]) -> T:
        """Read by `work`, when no other reading is under way; what it took counts. Raises KernelError."""
        async with self._busy:
            return await self._read(work)

    async def figures(self) -> Reading:
        """The figures of every Service, by a new scan. The next summary is of the same scan. Raises KernelError."""
        async with self._busy:
            reading, self._summary = await self._scan(with_traffic=True)
            return reading

    async def summary(self) -> KernelSummary:
        """The summary of the last scan, or of a new one if that is too old. Raises KernelError."""
        async with self._busy:
            if self._summary is None or self.clock() >= self._good_until:
                _, self._summary = await self._scan(with_traffic=self._limit > 0)
            return self._summary

    async def _scan(self, *, with_traffic: bool) -> tuple[Reading, KernelSummary]:
        reading = await self._read(lambda ipvs: read_figures(self._plans(), ipvs, with_traffic=with_traffic))
        self._good_until = self.clock() + self.worth
        return reading, summarized(reading, self._limit)

    async def _read(self, work: Callable[[IpvsReader], Awaitable[T]]) -> T:
        """Read by `work`, and note for how long the result is worth keeping. The caller holds `_busy`."""
        started = self.clock()
        async with self._open_ipvs() as ipvs:
            found = await work(ipvs)
        self.worth = max(SHORTEST, COST_SHARE * (self.clock() - started))
        return found


def summarized(reading: Reading, limit: int) -> KernelSummary:
    """The total of a reading, and those `limit` Services that have had the most connections, by name."""
    served = [(key, figures) for key, figures in reading.services.items() if figures.virtual_servers]
    busiest = nlargest(limit, served, key=lambda each: (each[1].traffic.connections, each[1].active + each[1].inactive))
    return KernelSummary(reading.total, sorted(busiest, key=lambda each: each[0]), len(served) - len(busiest))


class PolicyReader:
    """Reads what network policies have refused. `limit` is how many series of it there are."""

    def __init__(self, enforced: Enforced, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._enforced = enforced
        self._limit = limit
        self._clock = clock
        self._figures: PolicyFigures | None = None
        self._good_until = 0.0

    async def figures(self) -> PolicyFigures:
        """The figures of the last reading, or of a new one if that is too old. Raises KernelError."""
        started = self._clock()
        if self._figures is None or started >= self._good_until:
            self._figures = await figures_of(self._enforced, self._limit)
            read = self._clock()
            self._good_until = read + COST_SHARE * (read - started)
        return self._figures


_NOTHING = Reading({}, Figures())


class RateMeter:
    """Keeps the last reading and the one before it, and knows the rates between them."""

    def __init__(self, kernel: KernelReader) -> None:
        self.total: Rates | None = None
        """What passes all Services in a second; None before there are two readings."""
        self._kernel = kernel
        self._before = self._last = _NOTHING
        self._read_at = self._seconds = 0.0
        self._good_until = 0.0
        self._forgetting: asyncio.TimerHandle | None = None

    async def read(self) -> Reading:
        """The figures of all Services, some seconds old at most. Raises KernelError."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(LONGEST_SPAN, self._forget)
        if self._last is _NOTHING or self._kernel.clock() >= self._good_until:
            found = await self._kernel.figures()
            now = self._kernel.clock()
            self._before, self._last = self._last, found
            self._seconds, self._read_at = now - self._read_at, now
            self._good_until = now + self._kernel.worth
            self.total = await self._total()
        return self._last

    def rates_of(self, key: ObjectKey) -> Rates | None:
        """What passes a Service in a second; None before there are two readings of it."""
        before, now = self._before.services.get(key), self._last.services.get(key)
        if before is None or now is None or not 0 < self._seconds <= LONGEST_SPAN:
            return None
        return Rates.between(before.traffic, now.traffic, self._seconds)

    async def _total(self) -> Rates | None:
        """The sum of all Services' rates. Other tasks run in between."""
        total, is_known = [0.0] * len(Traffic._fields), False
        async for batch in sliced(self._last.services):
            for rates in filter(None, map(self.rates_of, batch)):
                is_known = True
                total = [sum(pair) for pair in zip(total, msgspec.structs.astuple(rates), strict=True)]
        return Rates(*total) if is_known else None

    def _forget(self) -> None:
        """Free both readings: no viewer looks any more."""
        self._before = self._last = _NOTHING
        self.total = None
