"""The charts of a result, by file name. Where there are several runs, the points are their medians."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.phases.cost import percentile
from bench.report.plots import Point, line_chart
from bench.report.rows import tools_seconds
from bench.report.spread import MIB, Run, Value, by_size, spread_over

CHARTS = ("memory.svg", "cold-start.svg", "one-change.svg", "storm.svg")
_SIZE = "Services, 10 endpoints each"


def charts(result: Mapping[str, Any]) -> dict[str, str]:
    """The charts for which this result has the figures."""
    runs: Sequence[Run] = result["runs"]
    sizes = by_size(runs)
    drawn = {}
    if len(sizes) > 1:
        drawn["memory.svg"] = _memory(runs)
    if len(sizes) > 1 and all("tools" in run for run in runs):
        drawn["cold-start.svg"] = _cold_start(runs)
    if any("update" in run for run in runs):
        drawn["one-change.svg"] = _one_change(sizes)
    if all("storm" in run for run in runs):
        drawn["storm.svg"] = _storm(sizes)
    return drawn


def _medians(runs: Sequence[Run], value: Value) -> list[Point]:
    spreads = {services: spread_over(each, value) for services, each in by_size(runs).items()}
    return [(services, spread.median) for services, spread in spreads.items() if spread is not None]


def _cold_start(runs: Sequence[Run]) -> str:
    values: dict[str, Value] = {
        "kroute": lambda run: run["cold"]["list_to_ready"],
        "its IPVS part": lambda run: run["cold"]["ipvs"],
        "ipvsadm -R": lambda run: run["tools"]["ipvsadm"],
        "all tools": tools_seconds,
    }
    lines = {name: _medians(runs, value) for name, value in values.items()}
    return line_chart("Cold start beside the batch tools", _SIZE, "seconds", lines, logarithmic=True)


def _memory(runs: Sequence[Run]) -> str:
    values: dict[str, Value] = {
        "peak": lambda run: run["cold"]["rss_peak"] / MIB,
        "settled": lambda run: run["cold"]["rss_settled"] / MIB,
    }
    lines = {name: _medians(runs, value) for name, value in values.items()}
    return line_chart("Resident memory after a cold start", _SIZE, "MiB", lines)


def _one_change(sizes: Mapping[int, Sequence[Run]]) -> str:
    lines = {f"{size:,} Services": _distribution(runs) for size, runs in sizes.items()}
    title = "One endpoint changed: from the API server to the changed kernel, all runs"
    return line_chart(title, "percent of the changes", "milliseconds", lines)


def _distribution(runs: Sequence[Run]) -> list[Point]:
    ordered = sorted(seconds for run in runs if "update" in run for seconds in run["update"]["latencies"])
    return [(percent, percentile(ordered, percent) * 1000) for percent in range(1, 101)] if ordered else [(0, 0)]


def _storm(sizes: Mapping[int, Sequence[Run]]) -> str:
    worst = {size: max(runs, key=lambda run: run["storm"]["behind_max"]) for size, runs in sizes.items()}
    lines = {
        f"{size:,} Services": [(sample["at"], sample["behind"]) for sample in run["storm"]["series"]]
        for size, run in worst.items()
    }
    title = "Storm of 100 changes a second, worst run: age of the oldest change not in the kernel"
    return line_chart(title, "seconds", "seconds", lines)
