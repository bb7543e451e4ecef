"""Fan plans out to the controllers.

Each subscriber has a queue of its own, keyed by Service: a newer plan replaces an older one that still waits. A slow
subscriber thus costs memory for at most one plan a Service, and never delays another. Everything here runs in the event
loop's thread; `publish` and `take` do not await, so each is atomic.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping

import msgspec

from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan


class QueueStatistics(msgspec.Struct, frozen=True):
    """What one subscriber's queue looks like: plans that wait, and for how many seconds the oldest has."""

    subscriber: str
    depth: int
    lag: float


class Subscription:
    """One subscriber's queue of plans."""

    def __init__(self, name: str, current: Mapping[ObjectKey, ServicePlan], *, started: bool) -> None:
        self.name = name
        self._waiting = dict(current)
        self._since = time.monotonic()
        self._arrived = asyncio.Event()
        self._waker: asyncio.Event | None = None
        if started:
            self._arrived.set()

    async def wait(self) -> None:
        """Return as soon as something waits; the first time, that is the first full list."""
        await self._arrived.wait()

    @property
    def has_arrived(self) -> bool:
        """Whether something waits; the first time, whether there has been a first full list."""
        return self._arrived.is_set()

    def notify(self, waker: asyncio.Event) -> None:
        """Set this event too whenever plans arrive, so that their taker can wait for other things as well."""
        self._waker = waker

    def take(self) -> dict[ObjectKey, ServicePlan]:
        """Take everything that waits, the newest plan of each Service."""
        taken, self._waiting = self._waiting, {}
        self._arrived.clear()
        return taken

    def statistics(self) -> QueueStatistics:
        """How much waits, and for how long."""
        depth = len(self._waiting)
        return QueueStatistics(self.name, depth, time.monotonic() - self._since if depth else 0.0)

    def put(self, plans: Iterable[ServicePlan], *, wake: bool = True) -> None:
        """Let these plans wait, without telling anybody unless `wake`; called by the broadcaster."""
        if not self._waiting:
            self._since = time.monotonic()
        for plan in plans:
            self._waiting[plan.key] = plan
        if not wake:
            return
        self._arrived.set()
        if self._waker is not None:
            self._waker.set()


class Broadcaster:
    """Keeps the newest plan of each Service and passes each published plan to every subscriber.

    The first full list may come in parts. What it does not name is not to be served any more, so no subscriber is told
    of any part before all are there; then every one is, even when there is no Service.
    """

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._current: dict[ObjectKey, ServicePlan] = {}
        self._started = False

    @property
    def has_started(self) -> bool:
        """Whether the first full list has been complete."""
        return self._started

    @property
    def current(self) -> Mapping[ObjectKey, ServicePlan]:
        """The newest plan of each Service that exists."""
        return self._current

    def subscribe(self, name: str) -> Subscription:
        """Open a queue, filled with the newest plan of each Service if there has been a first full list."""
        subscription = Subscription(name, self._current, started=self._started)
        self._subscriptions.append(subscription)
        return subscription

    def publish(self, plans: Iterable[ServicePlan], *, more: bool = False) -> None:
        """Pass plans on. A plan without content is that of a Service which is gone.

        `more`: the first full list goes on. Once it has been complete this means nothing: what is there goes out.
        """
        batch = list(plans)
        self._started |= not more
        for plan in batch:
            if plan.is_empty:
                self._current.pop(plan.key, None)
            else:
                self._current[plan.key] = plan
        for subscription in self._subscriptions:
            subscription.put(batch, wake=self._started)

    def statistics(self) -> list[QueueStatistics]:
        """The state of every subscriber's queue."""
        return [subscription.statistics() for subscription in self._subscriptions]
