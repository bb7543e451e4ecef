"""An API server in virtual time: its restart step by step, its processors, and its limit of requests in flight.

Sources: `restart.json` among the recordings for the steps and for what a list costs; `dropped_requests_tracker.go` of
the API server for Retry-After.
"""

import asyncio
import heapq
from collections import Counter
from typing import NamedTuple

from tests.apiserver.restart import Restart

WATCH_SECONDS = 0.001
"""Processor time of a watch that is answered with 410: the version is compared, nothing is read."""
LONGEST_RETRY_AFTER = 32


class Capacity(NamedTuple):
    """What the server can do: seconds of a processor for one list, processors, requests in flight at most."""

    list_seconds: float
    processors: int = 16
    in_flight: int = 500


class Answer(NamedTuple):
    """An HTTP status, and the seconds of Retry-After with 429."""

    status: int
    retry_after: int = 0


class RefusedError(Exception):
    """Nothing listens."""


class RetryAfter:
    """How long the server asks the refused to wait, in seconds, as API priority and fairness does it.

    It doubles in a second after one in which three times as many requests were refused as it has seconds, and shrinks
    by one where fewer were refused.
    """

    def __init__(self) -> None:
        self.seconds = 1
        self._refused: Counter[int] = Counter()
        self._second = -1
        self._raised_at = -LONGEST_RETRY_AFTER

    def refused(self, now: float) -> None:
        """Count a refused request."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._renew(second)
        self._refused[second] += 1

    def _renew(self, second: int) -> None:
        lately = sum(self._refused[before] for before in range(second - self.seconds, second))
        if second - self._raised_at >= self.seconds and lately >= 3 * self.seconds:
            self.seconds = min(2 * self.seconds, LONGEST_RETRY_AFTER)
            self._raised_at = second
        elif lately < self.seconds and self.seconds > 1:
            self.seconds -= 1


class Server:
    """The server from the order to end on, which comes at second 0. `ask` is called by every client."""

    def __init__(self, restart: Restart, capacity: Capacity) -> None:
        self.restart = restart
        self.has_ended = asyncio.Event()
        """Set when the watches that were open break."""
        self.answers: Counter[int] = Counter()
        self.connections_refused = 0
        self.lists = 0
        self.peak = 0
        self._capacity = capacity
        self._free_at = [0.0] * capacity.processors
        self._in_flight = 0
        self._retry_after = RetryAfter()

    async def run(self) -> None:
        """Break the watches when their time has come."""
        await asyncio.sleep(self.restart.broken)
        self.has_ended.set()

    async def ask(self, *, lists: bool) -> Answer:
        """The answer to a list, or to a watch from before the restart.

        Raises:
            RefusedError: nothing listens yet.
        """
        now = asyncio.get_running_loop().time()
        if now < self.restart.listening:
            self.connections_refused += 1
            raise RefusedError
        answer = await self._answer(now, lists)
        self.answers[answer.status] += 1
        return answer

    async def _answer(self, now: float, lists: bool) -> Answer:
        if now < self.restart.allowed:
            return Answer(403)
        if self._in_flight >= self._capacity.in_flight:
            self._retry_after.refused(now)
            return Answer(429, self._retry_after.seconds)
        self._in_flight += 1
        self.peak = max(self.peak, self._in_flight)
        seconds = self._capacity.list_seconds if lists else WATCH_SECONDS
        done = max(now, self._free_at[0]) + seconds
        heapq.heapreplace(self._free_at, done)
        await asyncio.sleep(done - now)
        self._in_flight -= 1
        self.lists += lists
        return Answer(200) if lists else Answer(410)
