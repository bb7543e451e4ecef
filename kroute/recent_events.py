"""The newest events of the log, for the status page."""

import time
from collections import deque
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

import msgspec

LONGEST_DETAILS = 500
_APART = frozenset({"event", "level", "timestamp"})
"""Fields that are not among the details."""


class RecentEvent(msgspec.Struct, frozen=True):
    """A line of the log: its Unix time, level, event name, and fields as text."""

    time: float
    level: str
    event: str
    details: str


class RecentEvents:
    """A structlog processor that remembers the last `count` events, and changes none."""

    def __init__(self, count: int) -> None:
        self._events: deque[RecentEvent] = deque(maxlen=count)

    @property
    def newest_first(self) -> Collection[RecentEvent]:
        return list(reversed(self._events))

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        self.remember(event, time.time())
        return event

    def remember(self, event: Mapping[str, Any], now: float) -> None:
        """Remember an event that was logged at the Unix time `now`."""
        details = " ".join([f"{name}={value}" for name, value in event.items() if name not in _APART])
        self._events.append(
            RecentEvent(now, str(event.get("level", "")), str(event["event"]), details[:LONGEST_DETAILS])
        )
