"""How long a reflector waits, and for what."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kroute.backoff import Backoff

FIRST_RETRY, LAST_RETRY = 0.8, 30.0
"""Seconds, as in client-go's reflector. Each pause is lengthened by a random part of itself, so the longest is 60 s."""


@dataclass(frozen=True)
class Timing:
    """The clock, the random numbers and the periods (seconds) of a reflector."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    watch_timeout: float = 300.0
    """The server is asked to end each watch after 1 to 2 times this, so that connections spread over its replicas."""
    stall_timeout: float = 120.0
    """A watch that sends no byte for so long is dead. The server sends a bookmark every minute, so this is twice as
    long."""
    short_watch: float = 1.0
    """A watch that ends sooner without an event counts as a failure."""

    def backoff(self) -> Backoff:
        return Backoff(FIRST_RETRY, LAST_RETRY, self.rng)
