"""How long things have taken, counted in ranges."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate


class Durations:
    """Observed durations in seconds, counted by `bounds`, which ascend: each range includes its upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """How many durations were observed."""
        return sum(self._counts)

    @property
    def cumulative(self) -> Mapping[float, int]:
        """By each bound, how many durations were at most so long."""
        return dict(zip(self._bounds, accumulate(self._counts), strict=False))
