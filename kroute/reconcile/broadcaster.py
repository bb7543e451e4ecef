"""Fan plans out to the controllers.

Each subscriber has its own queue, with one place for each Service and one for the node: a newer plan replaces an older
one that still waits. So a slow subscriber costs memory for at most one plan a Service, and never delays another. A
subscriber that reads little of a plan does not receive, and is not woken by, plans that have nothing new for it.
Everything here runs in the event loop's thread. `publish` and `take` do not await, so each is atomic.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Plan, ServicePlan

PLANS_A_SECOND = 500
"""So many published plans a second are many."""
COUNTED, GATHERED = 0.1, 0.01
"""Seconds for which plans are counted at least, and for which changes are gathered while they are many."""

IsNews = Callable[[Plan, Plan | None], bool]
"""Whether a plan has something new for a subscriber, compared with the plan before it; None: there was none."""

Skip = Callable[[Plan, Plan], None]
"""Called with a plan that a subscriber does not receive, because it has nothing new for it, and the plan before it.
The older plan is the first argument."""


class QueueStatistics(msgspec.Struct, frozen=True):
    """One subscriber's queue: how many plans wait (`depth`), and for how many seconds the oldest has (`lag`)."""

    subscriber: str
    depth: int
    lag: float


class Subscription:
    """One subscriber's queue of plans."""

    def __init__(self, name: str, current: Iterable[Plan], *, started: bool, is_news: IsNews | None = None) -> None:
        self.name = name
        self.skip: Skip | None = None
        """Called with the plans that the subscriber does not receive. The subscriber may set it."""
        self._is_news = is_news
        self._has_started = started
        self._waiting: dict[ObjectKey, Plan] = {plan.key: plan for plan in current}
        self._since = time.monotonic()
        self._waker: asyncio.Event | None = None
        self.has_arrived = started
        """Whether plans wait. False before the initial sync is complete; True when it is, even if there are none."""

    def notify(self, waker: asyncio.Event) -> None:
        """Set `waker` whenever plans arrive."""
        self._waker = waker

    def take(self) -> dict[ObjectKey, Plan]:
        """Take all plans that wait: the newest of each Service and of the node."""
        taken, self._waiting = self._waiting, {}
        self.has_arrived = False
        return taken

    def statistics(self) -> QueueStatistics:
        depth = len(self._waiting)
        return QueueStatistics(self.name, depth, time.monotonic() - self._since if depth else 0.0)

    def put(self, plans: Sequence[tuple[Plan, Plan | None]], now: float, *, wake: bool = True) -> None:
        """Add plans, each given with the plan before it, and wake the subscriber if `wake` and any of them is news.

        The first call with `wake` always wakes it. Only the broadcaster calls this.
        """
        if not self._waiting:
            self._since = now
        has_news = False
        for plan, before in plans:
            if plan.key in self._waiting or self._is_news is None or self._is_news(plan, before):
                self._waiting[plan.key] = plan
                has_news = True
            elif before is not None and self.skip is not None:
                self.skip(before, plan)
        if not wake or (self._has_started and not has_news):
            return
        self._has_started = True
        self.has_arrived = True
        if self._waker is not None:
            self._waker.set()


class Broadcaster:
    """Keeps the newest plan of each Service and of the node, and passes each published plan to every subscriber.

    The plans of the initial sync may be published in parts. Controllers delete what no plan names, so subscribers are
    woken only after the last part. Then they are always woken, even if no Service exists.
    """

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self.node: NodePlan | None = None
        """The newest plan of the node; None before the first is published, and always in a director."""
        self._services: dict[ObjectKey, ServicePlan] = {}
        self.services: Mapping[ObjectKey, ServicePlan] = MappingProxyType(self._services)
        """The newest plan of each Service that exists, now and later."""
        self.has_started = False
        """Whether all plans of the initial sync have been published."""
        self._count, self._counted_since, self._are_many = 0, time.monotonic(), False

    @property
    def plans(self) -> list[Plan]:
        """All newest plans, the node's first."""
        return [*([self.node] if self.node is not None else []), *self.services.values()]

    def subscribe(self, name: str, is_news: IsNews | None = None) -> Subscription:
        """Open a queue that holds all newest plans. Its subscriber is woken at once if the initial sync is complete.

        Of later plans, the queue gets those that are news and those that replace a plan that still waits.
        `Subscription.skip` is called with the others.
        """
        subscription = Subscription(name, self.plans, started=self.has_started, is_news=is_news)
        self._subscriptions.append(subscription)
        return subscription

    def publish(self, plans: Iterable[Plan], *, more: bool = False) -> None:
        """Pass plans to every subscriber. An empty plan says that its Service was deleted.

        `more`: further plans of the initial sync follow. After the initial sync it has no effect.
        """
        batch = [(plan, self._replace(plan)) for plan in plans]
        self.has_started |= not more
        now = time.monotonic()
        for subscription in self._subscriptions:
            subscription.put(batch, now, wake=self.has_started)
        self._count += len(batch)
        if (seconds := now - self._counted_since) >= COUNTED:
            self._are_many = self._count >= PLANS_A_SECOND * seconds
            self._count, self._counted_since = 0, now

    async def gather(self) -> None:
        """If many plans have been published just now, wait for a moment, so that the next ones are published together.

        One plan costs each subscriber a pass, as many plans do.
        """
        if self._are_many and time.monotonic() - self._counted_since < 2 * COUNTED:
            await asyncio.sleep(GATHERED)

    def _replace(self, plan: Plan) -> Plan | None:
        """Store the plan; returns the plan before it."""
        before: Plan | None
        if isinstance(plan, NodePlan):
            before, self.node = self.node, plan
        elif plan.is_empty:
            before = self._services.pop(plan.key, None)
        else:
            before = self._services.get(plan.key)
            self._services[plan.key] = plan
        return before

    def statistics(self) -> list[QueueStatistics]:
        return [subscription.statistics() for subscription in self._subscriptions]
