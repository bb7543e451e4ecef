"""The table on top of docs/performance.md: what every node of every cluster pays, against its goals."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.report.spread import MIB, Run, Spread, Value, brief, by_size, spread_over


class Goal(NamedTuple):
    """A figure of one run, its unit, and the most that it should be, by the number of Services."""

    figure: str
    value: Value
    unit: str
    limits: Mapping[int, float]

    def is_met(self, services: int, spread: Spread) -> bool | None:
        """Whether the median is within the limit of this size; None if there is none."""
        limit = self.limits.get(services)
        return None if limit is None else spread.median <= limit


GOALS: Sequence[Goal] = (
    Goal("**idle**, all resyncs included", lambda run: run["idle"]["cpu_share"] * 100, "% of a core", {10000: 0.05}),
    Goal(
        "the first two minutes after a cold start",
        lambda run: run["settling"]["cpu_share"] * 100,
        "% of a core",
        {10000: 0.2},
    ),
    Goal(
        "**start**: process to the last object in the kernel",
        lambda run: run["cold"]["start_to_ready"],
        "s",
        {1000: 1.2, 10000: 5},
    ),
    Goal("its CPU, with all that the node spends on it", lambda run: run["cold"]["cpu"], "s", {1000: 0.95, 10000: 4.5}),
    Goal("its CPU, by the process's own count", lambda run: run["cold"]["agent_cpu"], "s", {}),
    Goal(
        "**one endpoint changed**: API server to kernel, p50",
        lambda run: run["update"]["p50"] * 1000,
        "ms",
        {100: 3, 1000: 3, 10000: 3},
    ),
    Goal("its CPU", lambda run: run["update"]["cpu_per_change"] * 1000, "ms", {100: 2, 1000: 2, 10000: 2}),
    Goal("**RSS** after the start", lambda run: run["cold"]["rss_settled"] / MIB, "MiB", {1000: 36, 10000: 80}),
    Goal("RSS after the changes", lambda run: run["update"]["rss"] / MIB, "MiB", {1000: 36, 10000: 80}),
    Goal(
        "**warm restart** against the start, from the first list on",
        lambda run: run["warm"]["list_to_ready"] / run["cold"]["list_to_ready"],
        "x",
        {10000: 0.35},
    ),
    Goal(
        "the same, from the start of the process on",
        lambda run: run["warm"]["start_to_ready"] / run["cold"]["start_to_ready"],
        "x",
        {},
    ),
    Goal(
        "the same, CPU",
        lambda run: run["warm"]["cpu"] / run["cold"]["cpu"],
        "x",
        {},
    ),
    Goal("the node's pace: five million additions in Python", lambda run: run["pace"]["seconds"], "s", {}),
)


def table(runs: Sequence[Run]) -> list[str]:
    """The lines of the table, with a column for each size."""
    sizes = by_size(runs)
    heads = " | ".join(f"{services:,} Services" for services in sizes)
    lines = [f"| | goal | {heads} |", "|---|---|" + "---:|" * len(sizes)]
    for goal in GOALS:
        cells = [_cell(goal, services, spread_over(each, goal.value)) for services, each in sizes.items()]
        lines.append(f"| {goal.figure} | {_limits(goal)} | {' | '.join(cells)} |")
    return lines


def _limits(goal: Goal) -> str:
    """The goal's limit if all sizes have the same, otherwise that of each size."""
    limits = set(goal.limits.values())
    if len(limits) == 1 < len(goal.limits):
        return brief(limits.pop(), f" {goal.unit}")
    return ", ".join(f"{brief(limit, f' {goal.unit}')} at {size:,}" for size, limit in goal.limits.items())


def _cell(goal: Goal, services: int, spread: Spread | None) -> str:
    if spread is None:
        return "-"
    verdict = {None: "", True: ", met", False: ", **missed**"}[goal.is_met(services, spread)]
    return spread.text(f" {goal.unit}".replace(" of a core", "")) + verdict
