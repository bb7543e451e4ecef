"""The loop that all controllers share. The package's docstring explains its rules and the life of a controller."""

import asyncio
import errno
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec
import structlog

from kroute.base.alarm import Alarm
from kroute.base.backoff import Retries, exhaustion, retry_when_exhausted
from kroute.kernel.clients import EventSource
from kroute.kernel.errors import KernelError
from kroute.kernel.net.monitor import Event, Overrun
from kroute.model.plan import NodePlan, Plan, ServicePlan
from kroute.reconcile.batches import cut
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.ledger import LedgerError
from kroute.reconcile.pass_status import ControllerStatistics, PassStatus, Report
from kroute.reconcile.resync_schedule import A_READ, LONGEST_UNDISTURBED, Metered, Pace, ResyncSchedule
from kroute.reconcile.stage_gate import StageGate
from kroute.settings import Settings

log = structlog.get_logger(__name__)

T = TypeVar("T")

PLANS_A_SLICE = 64
"""Plans that a controller accepts before other tasks run. They are few because all controllers accept at once."""

MOST_EVENTS = 20_000
"""Events of the kernel that may wait for a pass: as many as fit into a monitor's socket. If there are more, the
controller drops them and resyncs."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds between two resyncs that another program's changes cause: at first, and when these do not end."""

_PASS = "pass"  # noqa: S105  the key under which a whole pass is retried


class Shared(msgspec.Struct, frozen=True):
    """What the controllers of a node share.

    `report` is called with the problems of Services that only an attempt to write shows. `clock` returns seconds and
    never goes back.
    """

    settings: Settings
    broadcaster: Broadcaster
    report: Report
    clock: Callable[[], float] = time.monotonic
    gate: StageGate = msgspec.field(default_factory=StageGate)


class Controller(ABC):
    """Applies plans to one part of the kernel.

    `monitor` serves this controller only; it is None if this part of the kernel sends no events. `has_adopted`: the
    first resync is done.
    """

    name: ClassVar[str]
    first_period: ClassVar[float] = 1.0
    """How long the first resync period is, as a part of the others. It differs, so controllers resync one by one."""
    share_of_budget: ClassVar[float] = 1 / 8
    """The part of `Settings.resync_budget` that this controller's resyncs may take. Looks take the rest."""
    longest_undisturbed: ClassVar[float] = LONGEST_UNDISTURBED
    """The most seconds between two resyncs while no drift was ever found."""

    def __init__(self, shared: Shared, monitor: EventSource | None = None) -> None:
        settings = shared.settings
        self.clock = shared.clock
        self.status = PassStatus(self.name, shared.clock)
        self.wake = asyncio.Event()
        self._alarm = Alarm(self.wake, lambda: self.clock())  # noqa: PLW0108  tests replace the clock
        self.settings = settings
        self.subscription = shared.broadcaster.subscribe(self.name, self.is_news)
        self._monitor = monitor
        self._events: list[Event | Overrun] = []
        self._failed_passes: Retries[str] = Retries()
        share = settings.resync_budget * self.share_of_budget
        self._schedule = ResyncSchedule(settings.resync_period, share, self.clock(), self.longest_undisturbed)
        self._repairs_before = 0
        self.has_adopted = False
        self.is_stopping = False

    @staticmethod
    def is_news(plan: Plan, before: Plan | None) -> bool:  # noqa: ARG004  for controllers that read little of a plan
        """Whether a plan has something new for this controller, compared with the plan before it."""
        return True

    @abstractmethod
    def accept(self, plans: Sequence[ServicePlan]) -> None:
        """Take new plans of Services into memory."""

    def accept_node(self, plan: NodePlan) -> None:  # noqa: B027  not every controller depends on the node's plan
        """Take a new plan of the node into memory. `accept` follows with the Services' plans of the same batch."""

    def notice(self, events: Sequence[Event]) -> None:  # noqa: B027  not every controller has something to notice
        """Take events of the kernel into memory. Events that this controller's own writes caused change nothing."""

    async def prepare(self) -> None:  # noqa: B027  not every controller has something to prepare
        """Do the work that needs no plans, before the initial sync."""

    @abstractmethod
    async def read(self) -> Iterable[str]:
        """Scan this controller's part of the kernel into the applied state; return the drift, one sentence each.

        A long scan must await `write_new_changes` between two of its parts.
        """

    async def look(self) -> bool:
        """Whether this controller's part of the kernel may have been changed by others since the last scan or look.

        It runs every resync period, so it must cost much less than `read`. After True, a resync follows in the same
        pass; it names and repairs the drift. A controller that cannot tell returns True. A look may miss what a resync
        finds later; docs/drift.md says for each object how late that may be.
        """
        return True

    @abstractmethod
    async def write(self) -> None:
        """Write the deltas, note them as applied, and say which stages plans have passed."""

    def next_due(self) -> float | None:
        """When, on the clock, this controller needs a pass even if nothing arrives; None: never."""
        return None

    def statistics(self) -> ControllerStatistics:
        return self.status.statistics()

    def stop(self) -> None:
        """Make `run` return once the current pass is over. The kernel's state stays as it is."""
        self.is_stopping = True
        self.wake.set()

    async def run(self) -> None:
        """Reconcile until `stop`. It may be cancelled at any point, as the process may be killed at any point."""
        async with asyncio.TaskGroup() as group:
            companions = [group.create_task(work) for work in self.companions()]
            try:
                await self.start()
                while not self.is_stopping:
                    await self.step()
                    await self._sleep()
            finally:
                self._alarm.stop()
            for companion in companions:
                companion.cancel()

    def companions(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the passes, for as long as these do."""
        return [self._listen(self._monitor)] if self._monitor is not None else []

    async def start(self) -> None:
        """Prepare, then wait for the plans of the initial sync (or for `stop`)."""
        self.subscription.notify(self.wake)
        await self.guarded(self.prepare)
        while not (self.is_stopping or self.subscription.has_arrived):
            self.wake.clear()
            await self.wake.wait()

    async def step(self) -> None:
        """Make one pass. What the kernel refuses is logged and tried again later, never raised."""
        await self.take()
        now = self.clock()
        if _PASS not in self._failed_passes.waiting(now):
            await self.guarded(partial(self._pass, now), now)

    async def write_new_changes(self) -> None:
        """Write what has arrived, between two parts of a resync or of other long work.

        The rest of the scan may show the kernel as it was before these writes; the `Resync` ignores it for objects that
        were written since it began.
        """
        if self.has_adopted and self.wake.is_set() and not self.is_stopping:
            await self.take()
            await self.write()

    async def keep_writing_during(self, work: Awaitable[T]) -> T:
        """Await work that may take long, such as waiting for a lock, and write what arrives until it is done.

        `write` may call this, and then is called within it.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self.wake.set())
        try:
            while not (task.done() or self.is_stopping):
                await self.wake.wait()
                await self.write_new_changes()
            return await task
        finally:
            task.cancel()

    async def take(self) -> None:
        """Take everything that waits into memory."""
        self.wake.clear()
        services: list[ServicePlan] = []
        for plan in self.subscription.take().values():
            if isinstance(plan, NodePlan):
                self.accept_node(plan)
            else:
                services.append(plan)
        for number, plans in enumerate(cut(services, PLANS_A_SLICE)):
            if number:
                await asyncio.sleep(0)
            self.accept(plans)
        taken, self._events = self._events, []
        events = [event for event in taken if not isinstance(event, Overrun)]
        if len(events) < len(taken) or (events and self._schedule.restraint):
            self.resync_soon()
        elif events:
            self.notice(events)

    async def resync(self) -> None:
        """Scan the kernel; count and log the drift, which the next write repairs."""
        self._schedule.begins(self.clock(), 1.0 if self.has_adopted else self.first_period)
        drift = await (reading := Metered(self.read()))
        counters = self.status.counters
        if self.has_adopted:
            self.status.repaired(drift)
        self.has_adopted = True
        counters.resync_cost = reading.seconds
        self._schedule.ends(counters.resync_cost, is_clean=counters.repairs == self._repairs_before)
        counters.resync_pause = self._schedule.pause
        self._repairs_before = counters.repairs
        counters.last_resync = counters.last_look = time.time()
        counters.resyncs += 1

    def restrain(self, seconds: float) -> None:
        """Repair what others change at once, and then at most once in so many seconds, while a rival writes the same.

        0 ends that. Changes of plans are still written at once.
        """
        self._schedule.restrain(seconds)
        self.resync_soon()
        self.wake.set()

    def resync_soon(self) -> None:
        """Let the next pass begin with a resync."""
        self.resync_by(self.clock())

    def resync_by(self, due: float) -> None:
        """Let a pass begin with a resync at this time, on the clock, at the latest."""
        self._schedule.resync_by(due)

    async def resync_when_told(self, what: str, follow: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Resync whenever `follow` says that another program has changed something; for `companions`.

        That is at once, and after growing pauses if it happens again and again. `follow` returns if it will never say.
        """
        pace = Pace(FIRST_PAUSE, LONGEST_PAUSE)

        def changed() -> None:
            self.resync_by(pace.next(self.clock()))
            self.wake.set()

        while True:
            try:
                await retry_when_exhausted(what, lambda: follow(changed))
            except KernelError as error:
                self.status.failed(error)
                await asyncio.sleep(self.settings.resync_period)  # the resync after it finds what has changed
                changed()
            else:
                return

    @property
    def is_applied_state_known(self) -> bool:
        """Whether the kernel has been scanned, and no pass failed as a whole since."""
        return self.has_adopted and _PASS not in self._failed_passes

    async def _pass(self, started: float) -> None:
        retry_due = self.status.retries.next_due()
        is_retry_due = retry_due is not None and started >= retry_due
        if not self.has_adopted or (
            self._schedule.allows(started)
            and (
                is_retry_due
                or (
                    started >= min(self._schedule.look_due, self._schedule.resync_due)
                    and await self._needs_resync(started)
                )
            )
        ):
            await self._resync_if_readable()
        await self.write()
        self.status.retries.expire(started)

    async def _needs_resync(self, now: float) -> bool:
        """Whether a resync is due, or else a look that is due, and is taken, finds a reason for one."""
        counters = self.status.counters
        if counters.resyncs == 1 and not counters.looks:  # that one may have read an empty kernel
            counters.resync_cost = max(counters.resync_cost, counters.writes * A_READ)
            self._schedule.costs(counters.resync_cost)
            counters.resync_pause = self._schedule.pause
        return now >= self._schedule.resync_due or (now >= self._schedule.look_due and await self._finds_change(now))

    async def _finds_change(self, now: float) -> bool:
        """Look whether another program may have changed something. If the look fails, a resync finds out why."""
        try:
            if await self.look():
                return True
        except KernelError:
            return True
        self._schedule.looked(now)
        counters = self.status.counters
        counters.last_look = time.time()
        counters.looks += 1
        return False

    async def _resync_if_readable(self) -> None:
        """Resync. When the kernel's state changes faster than it can be read, leave the resync for later.

        What an interrupted scan did not find does not count as missing. Before the adoption, and after a pass that
        failed, the interruption is raised: too little is known then to write without a scan.
        """
        try:
            await self.resync()
        except KernelError as error:
            if error.errno != errno.EINTR or not self.is_applied_state_known:
                raise
            log.warning("resync.interrupted", controller=self.name, next_step="nothing is deleted; reading again later")

    async def guarded(self, attempt: Callable[[], Awaitable[None]], now: float | None = None) -> None:
        """Attempt a whole pass, or the preparation. After a failure the next pass begins with a resync."""
        self.status.begins(self.clock() if now is None else now)
        try:
            await attempt()
        except Exception as error:
            if not isinstance(error, (KernelError, LedgerError)) and exhaustion(error) is None:
                raise
            self.status.failed(error)
            self._failed_passes.failed(_PASS, self.clock())
            self.resync_soon()
        else:
            self.status.succeeded()
            self._failed_passes.succeeded(_PASS)
        finally:
            self.status.ends()

    async def _listen(self, monitor: EventSource) -> None:
        while True:
            try:
                events = await monitor.next()
            except KernelError as error:
                self.status.failed(error)
                await asyncio.sleep(self.settings.resync_period)  # the resync after it finds what has changed
                events = [Overrun()]
            # Not `+= await`: it would load the list before it waits, and bring back the one that `take` has replaced.
            self._events += events
            if len(self._events) > MOST_EVENTS:
                self._events = [Overrun()]
            self.wake.set()

    async def _sleep(self) -> None:
        """Wait until something arrives or falls due."""
        due = self._failed_passes.next_due()
        if due is None:
            times = (self._schedule.next_due(), self.status.retries.next_due(), self.next_due())
            due = min(time for time in times if time is not None)
        self._alarm.set(due)
        await self.wake.wait()
