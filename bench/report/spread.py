"""Several runs as one figure: their median, and how far apart they are."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

MIB = 1 << 20


def brief(value: float, unit: str) -> str:
    """The value with three significant digits, and its unit."""
    number = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return (number + unit).rstrip()


def time_text(seconds: float) -> str:
    """The seconds in the unit that suits them."""
    factor, unit = next(it for it in ((1, "s"), (1e3, "ms"), (1e6, "us")) if seconds * it[0] >= 1 or it[1] == "us")
    return brief(seconds * factor, f" {unit}")


def mib_text(size: int) -> str:
    """The bytes in MiB."""
    return brief(size / MIB, " MiB")


Run = Mapping[str, Any]
Value = Callable[[Run], float]


class Spread(NamedTuple):
    """The median of several measurements, the least and the greatest."""

    median: float
    least: float
    greatest: float

    def text(self, unit: str) -> str:
        """`5.2 ms (4.9..6.1)`; a figure that is the same in all runs stands alone."""
        least, greatest = brief(self.least, ""), brief(self.greatest, "")
        apart = "" if least == greatest else f" ({least}..{greatest})"
        return f"{brief(self.median, unit)}{apart}"


def spread_of(values: Sequence[float]) -> Spread:
    """The spread of at least one value. Raises ValueError without any."""
    if not values:
        raise ValueError("there is nothing to take the median of")
    return Spread(median(values), min(values), max(values))


def spread_over(runs: Iterable[Run], value: Value) -> Spread | None:
    """The spread of a figure over the runs that have it; None if none has."""
    values = []
    for run in runs:
        try:
            values.append(float(value(run)))
        except KeyError:
            continue
    return spread_of(values) if values else None


def by_size(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """The runs by their number of Services, the smallest first."""
    found: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        found[run["services"]].append(run)
    return dict(sorted(found.items()))


def how_many(runs: Sequence[Run]) -> str:
    """In words how often each size was measured with each backend of the firewall, and which phases more rarely."""
    if max(_times(runs)) == 1:
        return "one run, so without a spread"
    phases = {name for run in runs for name, value in run.items() if isinstance(value, Mapping)}
    rarer = sorted(phase for phase in phases if any(phase not in run for run in runs))
    but = [f"; {phase}: of {_in_words([run for run in runs if phase in run])}" for phase in rarer]
    return f"the median of {_in_words(runs)} runs, with the least and the greatest{''.join(but)}"


def _times(runs: Iterable[Run]) -> list[int]:
    """How often each size was measured with each backend: the different numbers."""
    return sorted(set(Counter((run["services"], run["firewall"]) for run in runs).values()))


def _in_words(runs: Iterable[Run]) -> str:
    return " or ".join(map(str, _times(runs)))
