"""The node's firewall backends side by side, by the figures of one run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.figures import brief
from bench.targets import MIB

Run = Mapping[str, Any]

FIREWALLS = ("nftables", "iptables")
"""The backends, first the one whose figures are the report's own. The others are measured for this comparison only."""
COMPARED_PHASES = frozenset({"update", "warm", "resync"})
"""The phases that the other backends are measured in, besides the cold start."""


class Row(NamedTuple):
    """A figure of one run: its name, its value, and its unit."""

    name: str
    value: Callable[[Run], float]
    unit: str


ROWS = (
    Row("cold start: list to last address", lambda run: run["cold"]["list_to_ready"], "s"),
    Row("cold start: CPU, process to ready", lambda run: run["cold"]["cpu"], "s"),
    Row("cold start: netlink messages", lambda run: run["cold"]["messages"], ""),
    Row("warm restart: list to ready", lambda run: run["warm"]["list_to_ready"], "s"),
    Row("one endpoint changed, p50", lambda run: run["update"]["p50"] * 1000, "ms"),
    Row("CPU for one endpoint change", lambda run: run["update"]["cpu_per_change"] * 1000, "ms"),
    Row("resync of everything", lambda run: run["resync"]["seconds"], "s"),
    Row("longest stall of the loop, cold start", lambda run: run["cold"]["longest_round"] * 1000, "ms"),
    Row("settled RSS", lambda run: run["cold"]["rss_settled"] / MIB, "MiB"),
)


def comparison(runs: Sequence[Run]) -> list[str]:
    """The lines of a table in Markdown, for the largest size that was measured with every backend; none without one."""
    by_size: dict[int, dict[str, Run]] = {}
    for run in runs:
        by_size.setdefault(run["services"], {})[run["firewall"]] = run
    sizes = [size for size, found in by_size.items() if set(FIREWALLS) <= set(found)]
    if not sizes:
        return []
    first, second = (by_size[max(sizes)][name] for name in FIREWALLS)
    size = f"{max(sizes):,} Services x {first['endpoints']}"
    lines = ["", f"| at {size} | {' | '.join(FIREWALLS)} | {FIREWALLS[0]} against it |", "|---|---:|---:|---:|"]
    for row in ROWS:
        try:
            values = [row.value(first), row.value(second)]
        except KeyError:
            continue
        ratio = f"{values[0] / values[1]:.2f} x" if values[1] else "-"
        lines.append(f"| {row.name} | {' | '.join(brief(it, f' {row.unit}') for it in values)} | {ratio} |")
    return lines
