"""The result of bench.scale as Markdown."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench.phases.lengths import Figures
from bench.report import page
from bench.scale.proxies import KROUTE, PROXIES

MARKS = page.marks("scale")
_MIB = 1 << 20


class _Row(NamedTuple):
    name: str
    text: Callable[[Figures], str]


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.3g} s"


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"


def _share(value: float) -> str:
    return f"{value * 100:.1f} % of a core"


_ROWS = (
    _Row("start: process to all in the kernel", lambda it: _seconds(it["start"])),
    _Row("its CPU", lambda it: _seconds(it["start_cpu"])),
    _Row("RSS after the start", lambda it: _mib(it["rss_started"])),
    _Row("one endpoint changed: API server to kernel, p50", lambda it: _seconds(it["change_p50"])),
    _Row("the longest", lambda it: _seconds(it["change_max"])),
    _Row("nothing changes: CPU of the node, IPVS's statistics included", lambda it: _share(it["idle_cpu"])),
    _Row("churn", lambda it: f"{it['churn_changes']:,} changes in {it['churn']:.0f} s"),
    _Row("CPU in churn", lambda it: _share(it["churn_cpu"])),
    _Row("RSS in the first minute of churn", lambda it: _mib(it["rss_first"])),
    _Row("RSS in the last", lambda it: _mib(it["rss_last"])),
    _Row("the greatest", lambda it: _mib(it["rss_peak"])),
    _Row("end of churn to all in the kernel", lambda it: _seconds(it["complete_after"])),
    _Row("Services that missed a change", lambda it: str(it["missed"])),
)


def markdown(result: Mapping[str, Any]) -> str:
    """A column for each proxy."""
    found: Mapping[str, Figures] = result["proxies"]
    titles = [PROXIES[name].title for name in found]
    first = next(iter(found.values()))
    lines = [
        (
            f"Measured {result['when']} at `{result['commit']}`, Python {first['python']}, on {first['lab']},"
            f" {result['cores']} of the host's cores; the host's load was {result['load_before']:.1f} before and"
            f" {result['load_after']:.1f} after."
        ),
        "",
        f"| {result['services']:,} Services x {result['endpoints']}, {result['nodes']} Nodes | {' | '.join(titles)} |",
        "|---|" + "---:|" * len(titles),
    ]
    lines += [f"| {row.name} | {' | '.join(row.text(it) for it in found.values())} |" for row in _ROWS]
    if KROUTE in found:
        own = found[KROUTE]
        agrees = "finds nothing to change" if not own["plan_differs"] else "finds something to change"
        lines += [
            "",
            (
                f"In kroute's churn etcd was compacted twice, and the API server was away for {own['away']:.1f} s."
                f" After it `kroute plan` {agrees}."
            ),
        ]
    return "\n".join(lines) + "\n"
