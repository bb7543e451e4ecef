"""When to try again what failed: each key on its own, later and later."""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class _Wait(NamedTuple):
    failures: int
    due: float


class Retries(Generic[K]):
    """Exponential backoff for each key alone. All times are seconds, on the caller's clock."""

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
        failures = self._waits[key].failures if key in self._waits else 0
        # The exponent is bounded, so that a key that fails for days does not overflow a float.
        delay = min(self._limit, self._first * 2.0 ** min(failures, 32))
        self._waits[key] = _Wait(failures + 1, now + delay)
        return failures == 0

    def succeeded(self, key: K) -> None:
        """Forget the key's failures; also for one that is not wanted any more."""
        self._waits.pop(key, None)

    def expire(self, now: float) -> None:
        """Forget what was due and did not fail again: it has succeeded, or is not wanted any more."""
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
