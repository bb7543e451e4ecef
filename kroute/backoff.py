"""When to try again what failed: later and later."""

import random
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Backoff:
    """Exponential backoff for one thing. All times are seconds.

    The first delay is `first`; each one after it is twice as long, up to `limit`. With `rng`, each is lengthened by up
    to as much again, so that the agents of a whole cluster do not come back at the same moment.
    """

    def __init__(self, first: float, limit: float, rng: random.Random | None = None) -> None:
        self._first = first
        self._limit = limit
        self._rng = rng
        self._next = first

    def delay(self, at_least: float = 0.0) -> float:
        """How long to wait now; `at_least` is what a server asked for, which is lengthened in the same way."""
        base = max(self._next, at_least)
        self._next = min(self._next * 2, self._limit)
        return base if self._rng is None else base * (1.0 + self._rng.random())

    def reset(self) -> None:
        """Something worked: the next delay is the first one again."""
        self._next = self._first


class _Wait(NamedTuple):
    backoff: Backoff
    due: float


class Retries(Generic[K]):
    """A backoff for each key alone. All times are seconds, on the caller's clock."""

    def __init__(self, first: float = 0.5, limit: float = 30.0) -> None:
        self._first = first
        self._limit = limit
        self._waits: dict[K, _Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def __contains__(self, key: object) -> bool:
        return key in self._waits

    def failed(self, key: K, now: float) -> bool:
        """Note a failure; the next attempt is due after twice the last wait. Whether it is the first in a row."""
        before = self._waits.get(key)
        backoff = before.backoff if before else Backoff(self._first, self._limit)
        self._waits[key] = _Wait(backoff, now + backoff.delay())
        return before is None

    def succeeded(self, key: K) -> None:
        """Forget the key's failures; also call this for a key that is not desired any more."""
        self._waits.pop(key, None)

    def expire(self, now: float) -> None:
        """Forget what was due and did not fail again: it has succeeded, or is not desired any more."""
        for key in [key for key, wait in self._waits.items() if wait.due <= now]:
            del self._waits[key]

    def clear(self) -> None:
        """Forget all failures: their reason has gone."""
        self._waits.clear()

    def is_waiting(self, key: K, now: float) -> bool:
        """Whether the key has failed and is not due yet."""
        wait = self._waits.get(key)
        return wait is not None and now < wait.due

    def next_due(self) -> float | None:
        """When the next attempt is due; None if nothing failed."""
        return min((wait.due for wait in self._waits.values()), default=None)
