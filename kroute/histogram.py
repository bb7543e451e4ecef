"""How long things have taken, counted in ranges."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate


class Histogram:
    """Durations in seconds, counted by `bounds`, which ascend: each range includes its upper bound.

    One more range takes what is beyond the last bound.
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
        """How many durations each range has; the last is for what is beyond the bounds."""
        return list(self._counts)

    @property
    def cumulative(self) -> Mapping[float, int]:
        """By each bound, how many durations were at most so long."""
        return dict(zip(self._bounds, accumulate(self._counts), strict=False))
