"""When to try again what failed: after growing delays."""

import random
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Backoff:
    """Exponential backoff of one operation. All times are seconds.

    The first delay is `first`; each later one is twice as long, up to `limit`. With `rng`, each delay is multiplied by
    a random factor from 1 to 2, so that the agents of a cluster do not all come back at the same moment.
    """

    def __init__(self, first: float, limit: float, rng: random.Random | None = None) -> None:
        self._first = first
        self._limit = limit
        self._rng = rng
        self._next = first

    def delay(self, at_least: float = 0.0) -> float:
        """How long to wait now. `at_least` is a delay that a server asked for; the random factor applies to it too."""
        base = max(self._next, at_least)
        self._next = min(self._next * 2, self._limit)
        return base if self._rng is None else base * (1.0 + self._rng.random())

    def reset(self) -> None:
        """Let the next delay be the first one again; call this after a success."""
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
        """Note a failure; the wait before the next attempt doubles. Returns whether it is the key's first in a row."""
        before = self._waits.get(key)
        backoff = before.backoff if before else Backoff(self._first, self._limit)
        self._waits[key] = _Wait(backoff, now + backoff.delay())
        return before is None

    def succeeded(self, key: K) -> None:
        """Forget the key's failures. Call this also when the key is no longer desired."""
        self._waits.pop(key, None)

    def expire(self, now: float) -> None:
        """Forget the keys that were due by `now` and did not fail again: they succeeded, or are no longer desired."""
        for key in [key for key, wait in self._waits.items() if wait.due <= now]:
            del self._waits[key]

    def clear(self) -> None:
        """Forget all failures; call this when their cause has ended."""
        self._waits.clear()

    def is_waiting(self, key: K, now: float) -> bool:
        """Whether the key has failed and is not due yet."""
        wait = self._waits.get(key)
        return wait is not None and now < wait.due

    def next_due(self) -> float | None:
        """When the next attempt is due; None if no key waits."""
        return min((wait.due for wait in self._waits.values()), default=None)
