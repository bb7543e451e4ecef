"""How long the event loop is busy between two looks at its sockets.

What runs in one round of the loop delays everything else, whether it is one slow callback or many quick ones; so a
round is what is measured. The loop asks its selector once a round, and the selector takes the time: a round in which
there is more to do at once costs one look at the clock, one that ends in waiting costs two, an idle loop nothing.
"""

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from kroute.histogram import Histogram

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds, in seconds, of the ranges in which rounds are counted."""

LONG = 0.01
"""Seconds from which a round is kept with its time, as far as there is room."""
KEPT = 512


class Round(NamedTuple):
    """One round of the loop: when it ended by the monotonic clock, and for how many seconds it was busy."""

    end: float
    seconds: float


class LoopStatistics(msgspec.Struct):
    """Rounds of the loop since its start: how many, their seconds together, the longest, and how many by length."""

    rounds: int
    busy: float
    longest: float
    buckets: list[int]


class LoopWatch:
    """Measures one event loop, which is made by `new_loop`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._rounds = Histogram(BOUNDS)
        self._longest = 0.0
        self.long_rounds: deque[Round] = deque(maxlen=KEPT)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """A new event loop that is watched from now on."""
        self._began = self._clock()
        return asyncio.SelectorEventLoop(_TimedSelector(self))

    def began(self) -> None:
        self._began = self._clock()

    def ended(self) -> None:
        """The round is over, and the next one begins."""
        now = self._clock()
        seconds = now - self._began
        self._began = now
        self._rounds.observe(seconds)
        if seconds >= LONG:
            self._longest = max(self._longest, seconds)
            self.long_rounds.append(Round(now, seconds))

    def statistics(self) -> LoopStatistics:
        """The counts as they are now; `longest` is 0 as long as no round has taken `LONG`."""
        return LoopStatistics(self._rounds.count, self._rounds.sum, self._longest, self._rounds.counts)


class _TimedSelector(selectors.EpollSelector):
    """Tells when it is asked, and when it has answered."""

    def __init__(self, watch: LoopWatch) -> None:
        super().__init__()
        self._watch = watch

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:  # it answers at once: that is part of the round
            found = super().select(timeout)
            self._watch.ended()
            return found
        self._watch.ended()
        found = super().select(timeout)
        self._watch.began()
        return found
