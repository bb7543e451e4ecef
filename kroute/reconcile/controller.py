"""The loop that all controllers share; the package's docstring tells its rules and the life of a controller."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar

from kroute.backoff import Retries
from kroute.broadcaster import Subscription
from kroute.kernel.clients import EventSource
from kroute.kernel.errors import KernelError
from kroute.kernel.net.monitor import Event, Overrun
from kroute.model.plan import NodePlan, ServicePlan
from kroute.reconcile.batches import sliced
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.exclusion import Exclusion
from kroute.reconcile.ledger import LedgerError
from kroute.reconcile.pass_status import ControllerStatistics, PassStatus
from kroute.settings import Settings

PLANS_A_SLICE = 64
"""Plans that are taken into memory before other tasks run: all controllers do so at the same time."""

_PASS = "pass"  # noqa: S105  the key under which a whole pass is retried


class Controller(ABC):
    """Applies plans to one part of the kernel.

    `clock` gives seconds and never goes back. `monitor` is this controller's own, or None if the part of the kernel
    that it owns reports nothing.
    """

    name: ClassVar[str]
    first_resync: ClassVar[float] = 1.0
    """After which part of the resync period the first resync comes: so the controllers resync one after the other."""

    def __init__(
        self, settings: Settings, subscription: Subscription, monitor: EventSource | None, clock: Callable[[], float]
    ) -> None:
        self.clock = clock
        self.status = PassStatus(self.name, clock)
        self.wake = asyncio.Event()
        self._settings = settings
        self._subscription = subscription
        self._exclusion = Exclusion(settings.exclude_cidrs)
        self._monitor = monitor
        self._events: list[Event | Overrun] = []
        self._passes: Retries[str] = Retries()
        self._resync_due = clock()
        self.has_adopted = False
        self._stopping = False

    @abstractmethod
    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Take new plans of Services into memory."""

    def accept_node(self, plan: NodePlan) -> None:  # noqa: B027  not every controller depends on the node's plan
        """Take a new plan of the node into memory; those of Services that came with it follow."""

    def notice(self, events: Sequence[Event]) -> None:  # noqa: B027  not every controller has something to notice
        """Take events of the kernel into memory. Those of this controller's own writes change nothing."""

    @abstractmethod
    async def cleanup(self, report: CleanupReport) -> None:
        """Undo what earlier runs did, without any plans; for a controller that does not run."""

    async def prepare(self) -> None:  # noqa: B027  not every controller has something to prepare
        """Put right what needs no plans, before there are any."""

    @abstractmethod
    async def read(self) -> Iterable[str]:
        """Read this controller's part of the kernel into memory; say what is not as it was left.

        `meanwhile` is to be awaited between two parts of a long reading.
        """

    @abstractmethod
    async def write(self) -> None:
        """Write the difference, remember it, and say which stages have been reached."""

    def next_due(self) -> float | None:
        """When, by the clock, there is something of its own to do though nothing has happened; None: never."""
        return None

    def statistics(self) -> ControllerStatistics:
        return self.status.statistics()

    def stop(self) -> None:
        """Let `run` return when the batch in hand is written. The kernel's state stays as it is."""
        self._stopping = True
        self.wake.set()

    async def run(self) -> None:
        """Keep the kernel as the plans say, until `stop`. Cancelling it is safe at any point: it is like a kill."""
        async with asyncio.TaskGroup() as group:
            listener = group.create_task(self._listen(self._monitor)) if self._monitor is not None else None
            await self.start()
            while not self._stopping:
                await self.step()
                await self._sleep()
            if listener is not None:
                listener.cancel()

    async def start(self) -> None:
        """Prepare, then wait for the initial sync of plans (or for `stop`)."""
        self._subscription.notify(self.wake)
        await self._guarded(self.prepare)
        while not (self._stopping or self._subscription.has_arrived):
            self.wake.clear()
            await self.wake.wait()

    async def step(self) -> None:
        """One pass over everything that waits. What the kernel refuses is logged and tried again, never raised."""
        await self._take()
        if not self._passes.is_waiting(_PASS, self.clock()):
            await self._guarded(self._pass)

    async def meanwhile(self) -> None:
        """Write what has arrived, between two parts of a resync.

        The rest of the scan may show the kernel as it was before that; a `Resync` knows what has overtaken it.
        """
        if self.has_adopted and self.wake.is_set() and not self._stopping:
            await self._take()
            await self.write()

    async def _take(self) -> None:
        """Take everything that waits into memory."""
        self.wake.clear()
        services: list[ServicePlan] = []
        for plan in self._subscription.take().values():
            if isinstance(plan, NodePlan):
                self.accept_node(plan)
            else:
                services.append(plan)
        async for plans in sliced(services, PLANS_A_SLICE):
            self.accept([self._exclusion.apply(plan) for plan in plans])
        taken, self._events = self._events, []
        events = [event for event in taken if not isinstance(event, Overrun)]
        if len(events) < len(taken):
            self.resync_soon()
        if events:
            self.notice(events)

    async def resync(self) -> None:
        """Read the kernel, and count and log what is not as it was left; the next write repairs it."""
        self._resync_due = self.clock() + self._settings.resync_period * (
            1.0 if self.has_adopted else self.first_resync
        )
        drift = await self.read()
        if self.has_adopted:
            self.status.repaired(drift)
        self.has_adopted = True
        self.status.counters.last_resync = time.time()

    def resync_soon(self) -> None:
        """Read the kernel before the next write."""
        self._resync_due = self.clock()

    async def _pass(self) -> None:
        started = self.clock()
        retry_due = self.status.retries.next_due()
        if not self.has_adopted or started >= self._resync_due or (retry_due is not None and started >= retry_due):
            await self.resync()
        await self.write()
        self.status.retries.expire(started)

    async def _guarded(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Make an attempt at a whole pass. When it fails, nothing is known of the kernel: the next one reads first."""
        self.status.begins()
        try:
            await attempt()
        except (KernelError, LedgerError) as error:
            self.status.failed(error)
            self._passes.failed(_PASS, self.clock())
            self.resync_soon()
        else:
            self.status.succeeded()
            self._passes.succeeded(_PASS)
        finally:
            self.status.ends()

    async def _listen(self, monitor: EventSource) -> None:
        while True:
            try:
                events = await monitor.next()
            except KernelError as error:
                self.status.failed(error)
                await asyncio.sleep(self._settings.resync_period)  # until it works again the resyncs see everything
                events = [Overrun()]
            # Not `+= await`: that would bring back the list that `step` has taken meanwhile.
            self._events += events
            self.wake.set()

    async def _sleep(self) -> None:
        """Wait until something arrives or falls due."""
        due = self._passes.next_due()
        if due is None:
            times = (self._resync_due, self.status.retries.next_due(), self.next_due())
            due = min(time for time in times if time is not None)
        try:
            async with asyncio.timeout(max(0.0, due - self.clock())):
                await self.wake.wait()
        except TimeoutError:
            return
