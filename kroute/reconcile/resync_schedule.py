"""When a controller looks at its part of the kernel, and when it reads all of it again (a resync).

A look is cheap, and happens every period. The cost of a resync grows with the kernel's state. So resyncs are so far
apart that they cost no more than the controller's share of a processor, or a quarter of that share as long as no drift
was ever found. Where there is a reason for a resync, the caller makes one at once. After a resync that found drift, the
next is one period later, because a program that has written once may write again. Each resync that finds none doubles
the pause, up to what the share allows. The first resync may have read an empty kernel, so what kroute has written by
the first look counts as its cost, too.

A digest (`kroute.kernel.digest`) finds what the kernel has not reported. It costs as much as the kernel needs for the
listing. So it is due at every fourth look, or more rarely if that would cost more than its share, but at least at every
fortieth. A resync takes a digest, too.
"""

import math
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

from kroute.base.backoff import Backoff
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.settings import Settings

T = TypeVar("T")

LONGEST_PAUSE = 3600.0
"""The most seconds between two resyncs of a controller that has ever found drift, whatever they cost."""
LONGEST_UNDISTURBED = 86400.0
"""The same for a controller that has never found any: what no look can see is found by then."""

A_READ = 10e-6
"""Seconds of processor time for an object that is read and compared, as long as no resync has shown what it takes."""

UNDISTURBED = 1 / 4
"""The part of its share that the resyncs of a controller take as long as it has never found drift."""

LEAST_LOOKS, MOST_LOOKS = 4, 40
"""From one digest to the next one."""
SHARE_OF_DIGESTS = 1 / 16
"""The part of `Settings.resync_budget` that the digests of one controller may take."""


def earliest(*times: float | None) -> float | None:
    """The first of these times; None if there is none."""
    return min((time for time in times if time is not None), default=None)


class ResyncSchedule:
    """Says when looks and resyncs are due. Times are seconds on the caller's clock.

    `period` is between two looks. `share` is the part of one processor that resyncs may take on average: 0.001 is 0.1%.
    With 0, resyncs are `longest` apart, or `LONGEST_PAUSE` once there has been drift. `longest` is the most seconds
    between two resyncs while there has been no drift. The first resync is due at once.
    """

    def __init__(self, period: float, share: float, now: float, longest: float = LONGEST_UNDISTURBED) -> None:
        self.look_due = now
        self.resync_due = now
        self._period = period
        self._share = share
        self._part = UNDISTURBED
        self._longest = longest
        self.pause = math.inf
        """Seconds from the last resync to the next one, if nobody asks for one before."""
        self._regular = now
        self._last = -math.inf
        self.restraint = 0.0
        """Seconds between two resyncs at least, whatever the reason for one; looks are left out meanwhile. 0: none."""

    def restrain(self, seconds: float) -> None:
        """Keep resyncs so far apart from now on; the first one may begin at once."""
        self.restraint, self._last = seconds, -math.inf

    def next_due(self) -> float:
        """When the next look or resync is due."""
        if self.restraint:
            return max(self.resync_due, self._last + self.restraint)
        return min(self.look_due, self.resync_due)

    def allows(self, now: float) -> bool:
        """Whether a resync may begin, or a look."""
        return not self.restraint or now >= self._last + self.restraint

    def resync_by(self, due: float) -> None:
        """Let a resync be due at this time at the latest."""
        self.resync_due = min(self.resync_due, due)

    def looked(self, now: float) -> None:
        """A look that began at `now` has found nothing."""
        self.look_due = now + self._period

    def begins(self, now: float, fraction: float = 1.0) -> None:
        """A resync begins. If it is interrupted, the next is due after this fraction of the period."""
        self._last = now
        self.look_due = self.resync_due = self._regular = now + self._period * fraction

    def ends(self, cost: float, *, is_clean: bool) -> None:
        """The resync that has begun is complete, and took `cost` seconds of processor time.

        `is_clean`: neither it nor anything else since the resync before it has found drift.
        """
        if not is_clean:
            self._longest, self._part = LONGEST_PAUSE, 1.0
        self.pause = min(2 * self.pause, self._limit(cost)) if is_clean else self._period
        if self.resync_due == self._regular:  # nobody has asked for one meanwhile
            self.resync_due += self.pause - self._period
            self._regular = self.resync_due

    def costs(self, cost: float) -> None:
        """A resync takes so many seconds by now: the next one is put off, unless somebody has asked for it."""
        more = self._limit(cost) - self.pause
        if more > 0 and self.resync_due == self._regular:
            self.pause += more
            self.resync_due += more
            self._regular = self.resync_due

    def _limit(self, cost: float) -> float:
        """The pause that the share allows."""
        share = self._share * self._part
        return max(self._period, min(self._longest, cost / share if share else math.inf))


LEAST_PAUSE = 0.5
"""Seconds between two looks at conntrack at least. IPVS needs as long to end its own connections."""
PAUSE_FOR_WORK = 10
"""The least pause, as a multiple of the processor time that the last look took: looks take a tenth of a processor."""


class Metered(Generic[T]):
    """Awaits `work`; then `seconds` is the processor time that this took in the event loop's thread.

    Other tasks run while it waits, so a clock of the whole process would count theirs, too.
    """

    def __init__(self, work: Awaitable[T], processor: Callable[[], float] = time.thread_time) -> None:
        self.seconds = 0.0
        self._work = work
        self._processor = processor

    @property
    def pause(self) -> float:
        """The seconds from this look at conntrack to the next one."""
        return max(LEAST_PAUSE, PAUSE_FOR_WORK * self.seconds)

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        resume: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            begun = self._processor()
            try:
                waited_for = resume()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.seconds += self._processor() - begun
            try:
                sent = yield waited_for
            except BaseException as error:  # noqa: BLE001  a cancellation, or what the future raises, belongs to the work
                resume = lambda error=error: steps.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                resume = lambda sent=sent: steps.send(sent)  # type: ignore[misc]  # noqa: E731


class DigestPace:
    """Says at which looks a digest is due.

    It counts digests in `counters`, with the cost of the last one and the pause until the next.
    """

    def __init__(self, settings: Settings, counters: ControllerStatistics) -> None:
        self._period = settings.resync_period
        self._a_look = settings.resync_period * settings.resync_budget * SHARE_OF_DIGESTS
        self._counters = counters
        self._looks = 0
        self._debt = 0.0

    def is_due(self) -> bool:
        """Whether the digest is due at this look. Call it once in each."""
        self._looks += 1
        self._debt = max(0.0, self._debt - self._a_look)
        return self._looks >= MOST_LOOKS or (self._looks >= LEAST_LOOKS and not self._debt)

    async def take(self, digest: Awaitable[T]) -> T:
        """Await the digest, and note what it costs."""
        self._looks = 0
        found = await (metered := Metered(digest))
        self._debt += metered.seconds
        looks = self._debt / self._a_look if self._a_look else math.inf
        self._counters.digests += 1
        self._counters.digest_cost = metered.seconds
        self._counters.digest_pause = self._period * max(LEAST_LOOKS, min(MOST_LOOKS, looks))
        return found


class Pace:
    """When to answer what another program does again and again. All times are seconds, on the caller's clock.

    The first answer is due at once. Each later one is due a pause after the one before; the pauses grow from `first` up
    to `limit`. After `limit` seconds in which nothing happened, the next answer is due at once again.
    """

    def __init__(self, first: float, limit: float) -> None:
        self._backoff = Backoff(first, limit)
        self._limit = limit
        self._due = float("-inf")
        self._last = float("-inf")

    def next(self, now: float) -> float:
        """When the answer to an event at `now` is due."""
        if now - self._last > self._limit:
            self._backoff.reset()
            self._due = now
        elif now > self._due:
            self._due = max(now, self._due + self._backoff.delay())
        self._last = now
        return self._due
