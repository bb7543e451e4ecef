"""A histogram of durations."""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

import msgspec


class Histogram(msgspec.Struct):
    """Counts durations, in seconds, in the ranges between ascending `bounds`. Each range includes its upper bound.

    `counts` are by range; one more range counts the durations beyond the last bound. `sum` is of all durations.
    """

    bounds: tuple[float, ...]
    counts: list[int] = []
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """How many durations were observed."""
        return sum(self.counts)

    @property
    def cumulative(self) -> Mapping[float, int]:
        """For each bound, how many durations were at most as long as it."""
        return dict(zip(self.bounds, accumulate(self.counts), strict=False))
