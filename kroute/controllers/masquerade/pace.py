"""When to answer what somebody else does again and again: at once, then after growing pauses."""

from kroute.backoff import Backoff


class Pace:
    """All times are seconds, on the caller's clock.

    The first answer is due at once. Each later one is due a pause after the one before; the pauses grow from `first` up
    to `limit`. After `limit` seconds in which nothing happened, the next answer is due at once again.
    """

    def __init__(self, first: float, limit: float) -> None:
        self._backoff = Backoff(first, limit)
        self._limit = limit
        self._due = float("-inf")
        self._last = float("-inf")

    def next(self, now: float) -> float:
        """When the answer to what has happened now is due."""
        if now - self._last > self._limit:
            self._backoff.reset()
            self._due = now
        elif now > self._due:
            self._due = max(now, self._due + self._backoff.delay())
        self._last = now
        return self._due
