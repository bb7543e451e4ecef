"""Time-outs that a machine's stalls do not use up.

A machine of the lab is a process of a busy host, and at times it stands still for seconds while its clock goes on. An
answer then comes, by the clock, after a time-out in which the network had no time to deliver it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

TURN = 0.1
"""Seconds between two looks at the clock."""
MOST_OF_A_TURN = 0.2
"""Seconds that count of a turn. What it took beyond them, this process was kept from running."""


class CountedTime:
    """The seconds between looks at a clock, of which `MOST_OF_A_TURN` count at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked = clock()

    def since_last_look(self) -> float:
        """Look, and return the seconds that count since the look before, or since this was made."""
        before, self._looked = self._looked, self._clock()
        return min(self._looked - before, MOST_OF_A_TURN)


class Looks:
    """Counts the seconds of looks at one state, again and again. A look counts as `MOST_OF_A_TURN` at most.

    So looks that are slow, as all is in a slow machine, are not fewer for it.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = seconds
        self._time = CountedTime(clock)

    def are_over(self) -> bool:
        """Whether the look that begins now is the last one."""
        self._left -= self._time.since_last_look()
        return self._left <= 0


class _Turns:
    """Ends `limit` once `seconds` have been counted."""

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._left = seconds
        self._time = CountedTime(self._loop.time)
        self._turn = self._next()

    def _next(self) -> asyncio.TimerHandle:
        return self._loop.call_later(min(self._left, TURN), self._look)

    def _look(self) -> None:
        self._left = round(self._left - self._time.since_last_look(), 6)  # no rest that takes no time
        if self._left > 0:
            self._turn = self._next()
        else:
            self._limit.reschedule(self._loop.time())

    def cancel(self) -> None:
        self._turn.cancel()


@contextlib.asynccontextmanager
async def patience(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError when the block has taken so many seconds, of which a stall counts as `MOST_OF_A_TURN`."""
    async with asyncio.timeout(None) as limit:
        turns = _Turns(limit, seconds)
        try:
            yield
        finally:
            turns.cancel()
