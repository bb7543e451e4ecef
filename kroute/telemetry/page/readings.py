"""The kernel's figures of every Service, for the status page, and their rates: the difference of two readings."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from kroute.comparison.virtual_servers import WORST_FIRST, Condition, condition_of, count_real_servers
from kroute.kernel.ipvs.client import Traffic, VirtualServerKey, VirtualServerState
from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan, VirtualServer
from kroute.reconcile.batches import sliced
from kroute.telemetry.kernel_reader import IpvsReader, KernelReader

LONGEST_SPAN = 60.0
"""Seconds between two readings beyond which their difference says nothing of now, and after which both are dropped."""


class Rates(msgspec.Struct, frozen=True, rename="camel"):
    """What happens in a second: new connections, packets and bytes from clients (in) and to them (out)."""

    connections: float = 0.0
    packets_in: float = 0.0
    packets_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


class Figures(msgspec.Struct):
    """One Service in one reading. Real servers are counted by condition.

    `state` is the worst of its virtual servers, missing if a real server is; None without virtual servers.
    """

    state: Condition | None = None
    serving: int = 0
    draining: int = 0
    missing: int = 0
    active: int = 0
    inactive: int = 0
    traffic: Traffic = Traffic()

    def add(self, desired: VirtualServer, applied: VirtualServerState | None) -> None:
        """Count a virtual server."""
        present = applied.real_servers if applied is not None else {}
        counts = count_real_servers(desired.real_servers, present)
        self.serving += counts.serving
        self.draining += counts.draining
        self.missing += counts.missing
        self.active += sum([real.active for real in present.values()])
        self.inactive += sum([real.inactive for real in present.values()])
        states = {self.state, condition_of(desired, applied), Condition.MISSING if counts.missing else None}
        self.state = next(state for state in WORST_FIRST if state in states)

    def pass_on(self, traffic: Traffic) -> None:
        """Add what has passed a virtual server."""
        self.traffic = Traffic(*map(sum, zip(self.traffic, traffic, strict=True)))


class Reading(NamedTuple):
    """All Services at one time, in seconds of a monotonic clock."""

    time: float
    services: Mapping[ObjectKey, Figures]


NOTHING = Reading(0.0, {})


class Readings:
    """The last reading and the one before it. A reading is kept for as long as it is worth (`KernelReader`)."""

    def __init__(
        self,
        kernel: KernelReader,
        plans: Callable[[], Collection[ServicePlan]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kernel = kernel
        self._plans = plans
        self._clock = clock
        self._before = NOTHING
        self._last = NOTHING
        self._good_until = 0.0
        self.total: Rates | None = None
        """What passes all Services in a second; None before there are two readings."""
        self._forgetting: asyncio.TimerHandle | None = None

    async def read(self) -> Reading:
        """The figures of all Services, some seconds old at most. Raises KernelError."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(LONGEST_SPAN, self._forget)
        if not self._last.time or self._clock() >= self._good_until:
            plans = list(self._plans())
            found = await self._kernel.read(lambda ipvs: figures_of(plans, ipvs))
            self._before, self._last = self._last, Reading(self._clock(), found)
            self._good_until = self._last.time + self._kernel.worth
            self.total = await self._total()
        return self._last

    def rates_of(self, key: ObjectKey) -> Rates | None:
        """What passes a Service in a second; None before there are two readings of it."""
        before, now = self._before.services.get(key), self._last.services.get(key)
        if before is None or now is None:
            return None
        return self._rates(before.traffic, now.traffic)

    async def _total(self) -> Rates | None:
        """The sum of all Services' rates. Other tasks run in between."""
        total, is_known = [0.0] * len(Traffic._fields), False
        async for batch in sliced(self._last.services):
            for rates in filter(None, map(self.rates_of, batch)):
                is_known = True
                total = [sum(pair) for pair in zip(total, msgspec.structs.astuple(rates), strict=True)]
        return Rates(*total) if is_known else None

    def _forget(self) -> None:
        """Free both readings: nobody looks at the page any more."""
        self._before = self._last = NOTHING
        self.total = None

    def _rates(self, before: Traffic, now: Traffic) -> Rates | None:
        seconds = self._last.time - self._before.time
        if not 0 < seconds <= LONGEST_SPAN:
            return None
        if now.connections < before.connections:
            before = Traffic()  # a virtual server was deleted and added again
        return Rates(*(max(0, new - old) / seconds for new, old in zip(now, before, strict=True)))


async def figures_of(plans: Collection[ServicePlan], ipvs: IpvsReader) -> dict[ObjectKey, Figures]:
    """Read the figures of these plans. Other tasks run in between. Raises KernelError."""
    figures: dict[ObjectKey, Figures] = {}
    planned: dict[VirtualServerKey, tuple[Figures, VirtualServer]] = {}
    async for batch in sliced(plans):
        for plan in batch:
            of_service = figures[plan.key] = Figures()
            planned.update((it.key, (of_service, it)) for it in plan.virtual_servers)
    missing = dict(planned)
    async for part in ipvs.scan([key for key, (_, it) in planned.items() if it.real_servers]):
        for key, state in part:
            if key in missing:
                of_service, desired = missing.pop(key)
                of_service.add(desired, state)
    async for absent in sliced(missing.values()):
        for of_service, desired in absent:
            of_service.add(desired, None)
    for key, traffic in (await ipvs.traffic()).items():
        if key in planned:
            planned[key][0].pass_on(traffic)
    return figures
