"""How long a reflector waits for what."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kroute.backoff import Backoff

FIRST_RETRY, LAST_RETRY = 0.8, 30.0
"""Seconds, as in client-go's reflector; it lengthens each by up to as much again too (so at most 60 s)."""


@dataclass(frozen=True)
class Timing:
    """The clock, the dice and the periods (seconds) of a reflector."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    watch_timeout: float = 300.0
    """The server is asked to end each watch after 1 to 2 times this, so that connections spread over its replicas."""
    stall_timeout: float = 120.0
    """A watch without a byte for so long is dead: twice the minute in which the server sends a bookmark."""
    short_watch: float = 1.0
    """A watch that ends sooner, having said nothing, counts as a failure."""

    def backoff(self) -> Backoff:
        """The pauses between attempts that fail."""
        return Backoff(FIRST_RETRY, LAST_RETRY, self.rng)
