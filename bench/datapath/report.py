"""The result of bench.datapath as Markdown and as a chart."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.datapath.measure import KROUTE, KUBE_PROXY, NOTHING, PROXIES
from bench.datapath.ways import WAYS, Way
from bench.phases.lengths import Figures
from bench.report import page
from bench.report.plots import line_chart

MARKS = page.marks("datapath")
CHART = "datapath.svg"
_MICROSECOND = 1e6
_NOT_THERE = "-"

Result = Mapping[str, Any]


class _Runs:
    """The figures of each way by proxy and size. None for a proxy that did not get there, or was not measured."""

    def __init__(self, result: Result) -> None:
        runs: Sequence[Figures] = result["runs"]
        self._found = {(run["proxy"], run["services"]): run for run in runs}
        self.proxies = list(dict.fromkeys(run["proxy"] for run in runs if run["proxy"] != NOTHING))
        self.sizes = sorted({run["services"] for run in runs if run["proxy"] != NOTHING})
        self.floor = next((run["ways"] for run in runs if run["proxy"] == NOTHING), {})
        self.late = [(run["proxy"], run["services"]) for run in runs if run["start"] is None]

    def way(self, proxy: str, services: int, name: str) -> Figures | None:
        run = self._found.get((proxy, services))
        return run["ways"][name] if run is not None and run["start"] is not None else None

    def cost(self, proxy: str, services: int, name: str, what: str) -> float | None:
        """Seconds of processor time of a call."""
        figures = self.way(proxy, services, name)
        return None if figures is None else figures[what]["cpu"]


def charts(result: Result) -> dict[str, str]:
    """The chart, by its file's name, if there are lines to draw."""
    runs = _Runs(result)
    if len(runs.sizes) < 2:
        return {}
    lines = {
        PROXIES[proxy].title: [
            (size, figures["connect"]["cpu"] * _MICROSECOND)
            for size in runs.sizes
            if (figures := runs.way(proxy, size, "cluster-ip")) is not None
        ]
        for proxy in runs.proxies
    }
    title = "A new connection to a ClusterIP: processor time of the node, both ends included"
    return {CHART: line_chart(title, "Services", "microseconds", lines, logarithmic=True)}


def markdown(result: Result, directory: Path) -> str:
    """The tables, and the chart in the directory."""
    runs = _Runs(result)
    sizes = ", ".join(f"{size:,}" for size in runs.sizes)
    lines = [
        (
            f"Measured {result['when']} at `{result['commit']}` on {result['lab']}, {result['cores']} of the host's"
            f" cores; the host's load was {result['load_before']:.1f} before and {result['load_after']:.1f} after."
            f" {result['rounds']} rounds of {result['connections']} connections and {result['requests']:,} requests by"
            f" each way. Microseconds of the node's processor in the cheapest round, those of both ends included, at"
            f" {sizes} Services:"
        ),
        *_costs(runs, "one new connection", "connect"),
        *_costs(runs, "one request on a kept connection", "request"),
        "",
        f"At {runs.sizes[-1]:,} Services:",
        *_table(runs, "new connections a second; p50 and p99 of connect", _connects),
        *_table(runs, "requests a second", lambda it: f"{1 / it['request']['seconds']:,.0f}"),
    ]
    late = [f"{PROXIES[proxy].title} at {size:,} Services" for proxy, size in runs.late]
    lines += ["", f"Did not get there in time: {', '.join(late)}."] if late else []
    lines += ["", *(page.image(directory / name, page.DOCS / page.DETAILS) for name in charts(result))]
    return "\n".join(lines) + "\n"


def _costs(runs: _Runs, title: str, what: str) -> list[str]:
    """A row for each way, a column for each proxy with a value for each size."""
    titles = [PROXIES[it].title for it in runs.proxies]
    lines = ["", f"| {title} | {' | '.join(['no proxy', *titles])} | best of kroute - best of kube-proxy |"]
    lines.append("|---|" + "---:|" * (len(titles) + 2))
    for name, way in WAYS.items():
        columns = [[runs.cost(proxy, size, name, what) for size in runs.sizes] for proxy in runs.proxies]
        cells = [" / ".join(_micro(it) for it in column) for column in columns]
        row = (way.title, _floor(runs, name, way, what), *cells, _apart(runs, name, what))
        lines.append(f"| {' | '.join(row)} |")
    return lines


def _floor(runs: _Runs, name: str, way: Way, what: str) -> str:
    return "" if way.floor or name not in runs.floor else _micro(runs.floor[name][what]["cpu"])


def _apart(runs: _Runs, name: str, what: str) -> str:
    """By how much kroute's least differs from kube-proxy's, at the greatest size that both have."""
    for size in reversed(runs.sizes):
        least = [
            min((it for proxy in kind if (it := runs.cost(proxy, size, name, what)) is not None), default=None)
            for kind in (KROUTE, KUBE_PROXY)
        ]
        own, other = least
        if own is not None and other is not None:
            return f"{(own - other) * _MICROSECOND:+.3g}"
    return ""


def _table(runs: _Runs, title: str, text: Callable[[Figures], str]) -> list[str]:
    """A row for each way at the greatest size, a column for each proxy."""
    proxies = [*([NOTHING] if runs.floor else []), *runs.proxies]
    lines = ["", f"| {title} | {' | '.join(PROXIES[it].title for it in proxies)} |", "|---|" + "---:|" * len(proxies)]
    for name, way in WAYS.items():
        found = [runs.floor.get(name) if it == NOTHING else runs.way(it, runs.sizes[-1], name) for it in proxies]
        lines.append(f"| {way.title} | {' | '.join(_NOT_THERE if it is None else text(it) for it in found)} |")
    return lines


def _connects(figures: Figures) -> str:
    p50, p99 = (f"{figures['first'][name] * 1000:.2g}" for name in ("p50", "p99"))
    return f"{1 / figures['connect']['seconds']:,.0f}; {p50}, {p99} ms"


def _micro(seconds: float | None) -> str:
    return _NOT_THERE if seconds is None else f"{seconds * _MICROSECOND:.3g}"
