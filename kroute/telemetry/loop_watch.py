"""Measure how long the event loop is busy between two polls of its sockets.

Everything that runs in one round of the loop delays all other work, whether it is one slow callback or many quick ones.
So whole rounds are measured. The loop polls its selector once a round, and the selector measures the time. asyncio asks
for the time at the same moments, and gets the same reading. So a round that ends with more work to do costs one reading
of the clock, one that ends in waiting costs two, and an idle loop costs nothing. The sockets are polled less often.
"""

import asyncio
import math
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from kroute.base.histogram import Histogram

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds, in seconds, of the histogram of rounds."""

LONG = 0.01
"""Seconds. A round that takes at least as long is kept individually; of these, the newest `KEPT`."""
KEPT = 512

POLLS_APART = 0.002
"""Seconds for which a loop that has more to do does not look at its sockets again."""


class Round(NamedTuple):
    """One round of the loop: when it ended, by the monotonic clock, and for how many seconds it was busy.

    Of these, at most `cpu` were seconds of its thread on a processor. The rest is the machine's: other threads and
    processes. `cpu` may be too great by `LONG`: short rounds before this one are in it.
    """

    end: float
    seconds: float
    cpu: float


class LoopStatistics(msgspec.Struct):
    """Rounds of the loop since its start, and the longest; 0 as long as none has taken `LONG`.

    `longest` and `longest_cpu` may be of two rounds.
    """

    rounds: Histogram
    longest: float = 0.0
    longest_cpu: float = 0.0


class LoopWatch:
    """Measures the event loop that `new_loop` creates, and tells it the time. `newest` is the last reading."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._began = self.newest = clock()
        self._has_just_polled = False
        self._cpu_read = cpu_clock()
        self._since_cpu_read = 0.0
        self.statistics = LoopStatistics(Histogram(BOUNDS))
        self.long_rounds: deque[Round] = deque(maxlen=KEPT)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """A new event loop that is measured from now on."""
        loop = asyncio.SelectorEventLoop(_TimedSelector(self))
        loop.time = self.time  # type: ignore[method-assign]
        self.waited()
        return loop

    def time(self) -> float:
        """The time for asyncio, which asks just after each poll (`BaseEventLoop._run_once`)."""
        if not self._has_just_polled:
            self.newest = self._clock()
        self._has_just_polled = False
        return self.newest

    def polled(self) -> float:
        """The time just after a poll."""
        self.newest, self._has_just_polled = self._clock(), True
        return self.newest

    def waited(self) -> float:
        """The time just after a poll that has waited: a round begins."""
        self._began = self.polled()
        return self._began

    def ended(self, now: float) -> None:
        """Record the end of a round, and the beginning of the next one, unless the loop waits first.

        The processor's clock costs a system call natively, too, so it is read once rounds have taken `LONG` together.
        """
        seconds, known = now - self._began, self.statistics
        self._began = now
        known.rounds.observe(seconds)
        self._since_cpu_read += seconds
        if self._since_cpu_read < LONG:
            return
        before, self._cpu_read, self._since_cpu_read = self._cpu_read, self._cpu_clock(), 0.0
        if seconds >= LONG:
            cpu = min(seconds, self._cpu_read - before)
            known.longest, known.longest_cpu = max(known.longest, seconds), max(known.longest_cpu, cpu)
            self.long_rounds.append(Round(now, seconds, cpu))


class _TimedSelector(selectors.EpollSelector):
    """Reports to a LoopWatch when it is polled and when it returns.

    A loop that has more to do polls after each round. While it has polled just before, that is left out.
    """

    def __init__(self, watch: LoopWatch) -> None:
        super().__init__()
        self._watch = watch
        self._polled = -math.inf

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        watch = self._watch
        if timeout is not None and timeout <= 0:  # it returns at once, so this is part of a round
            now = watch.polled()
            watch.ended(now)
            if now < self._polled + POLLS_APART:
                return []
            self._polled = now
            return super().select(timeout)
        watch.ended(watch.time() if timeout is None else watch.newest)  # asyncio has asked, for the time-out
        found = super().select(timeout)
        self._polled = watch.waited()
        return found
