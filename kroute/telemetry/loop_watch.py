"""Measure how long the event loop is busy between two polls of its sockets.

Everything that runs in one round of the loop delays all other work, whether it is one slow callback or many quick ones.
So whole rounds are measured. The loop polls its selector once a round, and the selector measures the time. A round that
ends with more work to do costs one reading of two clocks, one that ends in waiting costs two, and an idle loop costs
nothing.
"""

import asyncio
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


class Round(NamedTuple):
    """One round of the loop: when it ended, by the monotonic clock, and for how many seconds it was busy.

    Of these, `cpu` were seconds of its thread on a processor. The rest is the machine's: other threads and processes.
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
    """Measures the event loop that `new_loop` creates."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self.began()
        self.statistics = LoopStatistics(Histogram(BOUNDS))
        self.long_rounds: deque[Round] = deque(maxlen=KEPT)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """A new event loop that is measured from now on."""
        self.began()
        return asyncio.SelectorEventLoop(_TimedSelector(self))

    def began(self) -> None:
        """A round begins now."""
        self._began, self._cpu_began = self._clock(), self._cpu_clock()

    def ended(self) -> None:
        """Record the end of a round, and the beginning of the next one."""
        began, cpu_began = self._began, self._cpu_began
        self.began()
        seconds, known = self._began - began, self.statistics
        known.rounds.observe(seconds)
        if seconds >= LONG:
            cpu = self._cpu_began - cpu_began
            known.longest, known.longest_cpu = max(known.longest, seconds), max(known.longest_cpu, cpu)
            self.long_rounds.append(Round(self._began, seconds, cpu))


class _TimedSelector(selectors.EpollSelector):
    """Reports to a LoopWatch when it is polled and when it returns."""

    def __init__(self, watch: LoopWatch) -> None:
        super().__init__()
        self._watch = watch

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:  # it returns at once, so this is part of the round
            found = super().select(timeout)
            self._watch.ended()
            return found
        self._watch.ended()
        found = super().select(timeout)
        self._watch.began()
        return found
