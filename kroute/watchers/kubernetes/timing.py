"""How long a reflector waits, and for what.

An API server that has just started answers 403 for everything until it has read its roles, and 410 to a watch although
nothing was missed. So a refusal is asked about again within seconds, and counts when it has lasted; and a kind whose
resourceVersion is too old is listed at once. Where a server wants to be spared, it says so: a pause that it asks for
(Retry-After) is kept, and a random part of it added, which spreads the agents of a cluster. How long a server that does
not answer is waited for is said in `server_presence`.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable

import msgspec

from kroute.base.backoff import Backoff
from kroute.watchers.kubernetes.errors import ApiError

FIRST_RETRY, LAST_RETRY = 0.8, 8.0
"""Seconds. Each pause is lengthened by a random part of itself. client-go's reflector begins alike, but grows to 30 s,
also where nothing listens; here only what the server has answered with an error waits so."""
FIRST_DOUBT, LAST_DOUBT = 0.25, 1.0
"""Seconds between a refusal (401, 403) and the next try while it may be a starting server's; a random part is added."""
DOUBTED_FOR = 10.0
"""Seconds that a refusal must last to count as one."""
RELISTED_AT_ONCE_AFTER = 10.0
"""Seconds since the last list from which on a kind is listed again at once. A server that expires every version at once
is asked ever more slowly."""


class Timing(msgspec.Struct, frozen=True):
    """The clock, the random numbers and the periods (seconds) of a reflector."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    rng: random.Random = msgspec.field(default_factory=random.Random)
    watch_timeout: float = 300.0
    """The server is asked to end each watch after 1 to 2 times this, so that connections spread over its replicas."""
    stall_timeout: float = 120.0
    """A watch that sends no byte for so long is dead. The server sends a bookmark every minute, so this is twice as
    long."""
    list_stall_timeout: float = 30.0
    """The same for a streaming list: the server sends what it holds at once, and the bookmark that ends the list within
    seconds."""
    list_timeout: float = 600.0
    """The initial events of a streaming list must be there within this time, or the list is requested in pages."""
    absence: float = 60.0
    """A kind that need not exist and does not is asked for again after this, and a random part of it."""
    short_watch: float = 1.0
    """A watch that ends sooner without an event counts as a failure."""


class RetryPolicy:
    """The failures of one reflector."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._backoff = Backoff(FIRST_RETRY, LAST_RETRY, timing.rng)
        self._doubt = Backoff(FIRST_DOUBT, LAST_DOUBT, timing.rng)
        self._denied_since: float | None = None
        self._listed_at = -math.inf
        self.denied_with = 0
        """The status with which the server has refused for so long that it means it; else 0."""

    def listed(self) -> None:
        """Note that a list was complete."""
        self._listed_at = self._timing.clock()
        self.allowed()

    def progressed(self) -> None:
        """Note a change or a bookmark: the next failure is the first one again."""
        self._backoff.reset()
        self.allowed()

    def allowed(self) -> None:
        """Note that the server has answered otherwise than with a refusal."""
        self._denied_since, self.denied_with = None, 0
        self._doubt.reset()

    def pause(self, error: ApiError, *, while_watching: bool) -> float:
        """Seconds until the next try after this failure of a list or of a watch."""
        if error.is_denied:
            return self._pause_after_refusal(error.status)
        self.allowed()
        if error.retry_after is not None:
            return max(error.retry_after, FIRST_RETRY) * (1.0 + self._timing.rng.random())
        if error.is_expired and while_watching and self._timing.clock() - self._listed_at >= RELISTED_AT_ONCE_AFTER:
            return 0.0
        return self._backoff.delay()

    def _pause_after_refusal(self, status: int) -> float:
        now = self._timing.clock()
        if self._denied_since is None:
            self._denied_since = now
        self.denied_with = status if now - self._denied_since >= DOUBTED_FOR else 0
        return self._backoff.delay() if self.denied_with else self._doubt.delay()
