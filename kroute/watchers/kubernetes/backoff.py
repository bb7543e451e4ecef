"""The pause before the next try."""

import random

INITIAL = 0.8
MAXIMUM = 30.0
FACTOR = 2.0
JITTER = 1.0
"""client-go's reflector: 0.8 s, doubled up to 30 s, each lengthened by up to as much again (so at most 60 s)."""


class Backoff:
    """Exponential back-off with jitter, so that the agents of a whole cluster do not come back at the same moment."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next = INITIAL

    def delay(self, at_least: float | None = None) -> float:
        """Seconds to wait now; `at_least` is what the server asked for (Retry-After), which is also jittered."""
        base = max(self._next, at_least or 0.0)
        self._next = min(self._next * FACTOR, MAXIMUM)
        return base * (1.0 + self._rng.random() * JITTER)

    def reset(self) -> None:
        """Something worked: the next pause is a short one again."""
        self._next = INITIAL
