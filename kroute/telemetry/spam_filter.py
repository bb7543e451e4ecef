"""Bound how often something is said about one object, and in all: any author of a Service may make it wrong.

The figures are those of client-go (`tools/record/events_cache.go`): 25 at once about an object, then one in five
minutes; after ten of one reason in ten minutes, those that follow become one. Those in all are kroute's own.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from enum import Enum, auto

import msgspec

BURST, SECONDS_A_TOKEN = 25, 300.0
SIMILAR, SIMILAR_WITHIN = 10, 600.0
BURST_IN_ALL, SECONDS_A_TOKEN_IN_ALL = 1000, 0.1
MOST_OBJECTS = 4096
"""Objects that are remembered. Beyond that, those that were quiet for longest have a full bucket again."""


class Decision(Enum):
    """What to do with something that could be said."""

    SAY = auto()
    COMBINE = auto()
    """Say it for all that are like it: these are only counted for a time."""
    ADD = auto()
    """Do not say it: count it with what was said for all that are like it."""
    SILENCE = auto()
    """Do not say it, but that nothing more is said about this object for a time."""
    DROP = auto()


class _Bucket(msgspec.Struct):
    """Tokens that are spent one by one and come back with time; `at` is when they were last counted."""

    burst: int
    seconds_a_token: float
    at: float
    tokens: float

    def fill(self, now: float) -> bool:
        """Whether there is a token."""
        self.tokens = min(self.burst, self.tokens + (now - self.at) / self.seconds_a_token)
        self.at = now
        return self.tokens >= 1


class _History(msgspec.Struct):
    """What was said of one object: its bucket, and by reason since when and how often."""

    bucket: _Bucket
    is_silent: bool = False
    similar: dict[str, tuple[float, int]] = {}

    def count(self, reason: str, now: float) -> int:
        """How often the reason was given lately, this time included."""
        since, count = self.similar.get(reason, (now, 0))
        if now - since >= SIMILAR_WITHIN:
            since, count = now, 0
        self.similar[reason] = (since, count + 1)
        return count + 1


class SpamFilter:
    """Says of each message whether it is one too many; `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = _Bucket(BURST_IN_ALL, SECONDS_A_TOKEN_IN_ALL, clock(), BURST_IN_ALL)
        self._objects: OrderedDict[Hashable, _History] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def judge(self, about: Hashable, reason: str) -> Decision:
        """What to do with a message about an object; `reason` is one of a few words."""
        now = self._clock()
        history = self._objects.setdefault(about, _History(_Bucket(BURST, SECONDS_A_TOKEN, now, BURST)))
        self._objects.move_to_end(about)
        if len(self._objects) > MOST_OBJECTS:
            self._objects.popitem(last=False)
        if not self._all.fill(now):
            return Decision.DROP
        if not history.bucket.fill(now):
            if history.is_silent:
                return Decision.DROP
            history.is_silent = True
            self._all.tokens -= 1
            return Decision.SILENCE
        history.is_silent = False
        count = history.count(reason, now)
        if count > SIMILAR + 1:
            return Decision.ADD
        history.bucket.tokens -= 1
        self._all.tokens -= 1
        return Decision.SAY if count <= SIMILAR else Decision.COMBINE
