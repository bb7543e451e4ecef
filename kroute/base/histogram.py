"""A histogram of durations."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate


class Histogram:
    """Counts durations, in seconds, in the ranges between ascending `bounds`. Each range includes its upper bound.

    One more range counts the durations beyond the last bound.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)

    @classmethod
    def of_counts(cls, bounds: Sequence[float], counts: Iterable[int], total: float) -> "Histogram":
        """A histogram whose ranges have these `counts`; `total` is the sum of the durations in seconds."""
        histogram = cls(bounds)
        histogram._counts = list(counts)
        histogram.sum = total
        return histogram

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """How many durations were observed."""
        return sum(self._counts)

    @property
    def counts(self) -> list[int]:
        """How many durations were observed in each range; the last range is the one beyond the bounds."""
        return list(self._counts)

    @property
    def cumulative(self) -> Mapping[float, int]:
        """For each bound, how many durations were at most as long as it."""
        return dict(zip(self._bounds, accumulate(self._counts), strict=False))
