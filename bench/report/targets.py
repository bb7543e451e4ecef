"""kroute's other targets, and whether a result meets them. Ratios are taken within one run, and their median counts."""

from collections.abc import Callable, Sequence
from math import log10
from typing import NamedTuple

from bench.report.rows import tools_seconds
from bench.report.spread import MIB, Run, Spread, by_size, spread_over

EMULATION = 10
"""How many times longer than on a native kernel the event loop may be blocked in the lab's machine."""
FLAT = 1.05
"""The ratio of memory in the second half of a storm to the first half that still counts as flat."""
LINEAR = 1.1
"""The greatest exponent of growth that still counts as linear."""


class Target(NamedTuple):
    """A figure, its name for readers, and the limit.

    `value` gets a run of the largest size, and the run of each size that took its turn with it. It raises KeyError if
    one lacks a phase or a size is missing.
    """

    figure: str
    value: Callable[[Run, dict[int, Run]], float]
    limit: float
    unit: str


class Line(NamedTuple):
    """A straight line: its value at 0, its slope, and how well it fits (1: exactly)."""

    start: float
    slope: float
    r_squared: float


def straight_line(points: Sequence[tuple[float, float]]) -> Line:
    """The least-squares line through the points."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    start = mean_y - slope * mean_x
    rest = sum((y - start - slope * x) ** 2 for x, y in points)
    return Line(start, slope, 1 - rest / sum((y - mean_y) ** 2 for _, y in points))


class Verdict(NamedTuple):
    """A target and its value over all runs, None if no run has it."""

    target: Target
    spread: Spread | None

    @property
    def is_met(self) -> bool | None:
        """Whether the median is within the limit; None if there is no value."""
        return None if self.spread is None else self.spread.median <= self.target.limit


def _largest(run: Run, figure: str) -> float:
    """The larger figure of the cold and the warm start."""
    return float(max(run[start][figure] for start in ("cold", "warm")))


def _growth(figure: str) -> Callable[[Run, dict[int, Run]], float]:
    """The exponent of growth from 1,000 Services to the largest size."""

    def exponent(run: Run, runs: dict[int, Run]) -> float:
        smaller = runs[1000]
        if run is smaller:
            raise KeyError("only one size")
        return log10(run["cold"][figure] / smaller["cold"][figure]) / log10(run["services"] / smaller["services"])

    return exponent


TARGETS = (
    Target(
        "IPVS part of a cold start, against `ipvsadm -R`",
        lambda run, _: run["cold"]["ipvs"] / run["tools"]["ipvsadm"],
        0.3,
        "x",
    ),
    Target(
        "cold start, list to last address, against all batch tools one after the other",
        lambda run, _: run["cold"]["list_to_ready"] / tools_seconds(run),
        1.0,
        "x",
    ),
    Target("warm restart: writes to the kernel", lambda run, _: run["warm"]["writes"], 0, ""),
    Target("one endpoint changed, p99", lambda run, _: run["update"]["p99"] * 1000, 40, "ms"),
    Target(
        "the same, against 100 Services",
        lambda run, runs: run["update"]["p99"] / runs[100]["update"]["p99"],
        1.3,
        "x",
    ),
    Target(
        "CPU for one endpoint change, against 100 Services",
        lambda run, runs: run["update"]["cpu_per_change"] / runs[100]["update"]["cpu_per_change"],
        1.3,
        "x",
    ),
    Target("one weight changed: netlink messages to IPVS", lambda run, _: run["weights"]["messages_each"], 1, ""),
    Target("storm: furthest behind", lambda run, _: run["storm"]["behind_max"], 1.0, "s"),
    Target("storm: virtual servers that missed a change", lambda run, _: run["storm"]["lost"], 0, ""),
    Target(
        "storm: memory in the second half, against the first",
        lambda run, _: run["storm"]["rss_second_half"] / run["storm"]["rss_first_half"],
        FLAT,
        "x",
    ),
    Target("hurricane: p99, read to kernel", lambda run, _: run["hurricane"]["p99"] * 1000, 100, "ms"),
    Target("hurricane: furthest behind", lambda run, _: run["hurricane"]["behind_max"], 1.0, "s"),
    Target("hurricane: virtual servers that missed a change", lambda run, _: run["hurricane"]["lost"], 0, ""),
    Target("hurricane: CPU of the node", lambda run, _: run["hurricane"]["cpu_share"] * 100, 100, "%"),
    Target(
        "idle, with resyncs: longest stall of the event loop, in emulation",
        lambda run, _: run["idle"]["longest_round"] * 1000,
        20 * EMULATION,
        "ms",
    ),
    Target("settled RSS", lambda run, _: _largest(run, "rss_settled") / MIB, 150, "MiB"),
    Target("peak RSS", lambda run, _: _largest(run, "rss_peak") / MIB, 220, "MiB"),
    Target("growth of the cold start's time: exponent", _growth("list_to_ready"), LINEAR, ""),
    Target("growth of settled RSS: exponent", _growth("rss_settled"), LINEAR, ""),
)


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """The verdict on every target, for the largest size of a result."""
    largest = max(run["services"] for run in runs)
    turns: dict[int, dict[int, Run]] = {}
    for run in runs:
        turns.setdefault(run["number"], {})[run["services"]] = run

    def spread(target: Target) -> Spread | None:
        return spread_over(by_size(runs)[largest], lambda run: target.value(run, turns[run["number"]]))

    return [Verdict(target, spread(target)) for target in TARGETS]
