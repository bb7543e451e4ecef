"""The figures of an outage as tables, and their place in docs/design/figures.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.outage.measure import ENDPOINTS, SERVERS, SERVICES, WAYS
from bench.report.page import marks, put_between

MARKS = marks("outage")

PEERS: Sequence[tuple[str, Mapping[float, float]]] = (
    ("kube-proxy 1.36", {10.0: 11.0, 29.0: 45.0}),
    ("kube-router 2.11", {10.0: 14.0, 29.0: 30.0}),
    ("kroute with client-go's back-off", {10.0: 30.0, 29.0: 61.0}),
)
"""Seconds with a real kube-apiserver of 1.36, by how long it was away."""

_COLUMNS: Sequence[tuple[str, str]] = (
    ("half", "half of them"),
    ("nearly_all", "99 %"),
    ("all", "all"),
    ("lists", "lists"),
    ("answered", "requests"),
    ("denied", "of these 403"),
    ("refused", "429"),
    ("peak", "in flight"),
    ("connections_refused", "connections refused"),
)


def markdown(result: Mapping[str, Any]) -> str:
    """The tables of one result: the measured ones, then the simulated ones."""
    lines = []
    if "agent" in result:
        lines = [f"Measured {result['when']} at `{result['commit']}` on {result['lab']}.", ""]
        lines += [
            "| /readyz to the changed endpoint in the kernel | away for 10 s | away for 29 s |",
            "|---|---:|---:|",
        ]
        lines.append(f"| **kroute**, {SERVICES} Services x {ENDPOINTS} | {' | '.join(_spans(result['agent']))} |")
        lines += [f"| {name} | {seconds[10.0]:.0f} s | {seconds[29.0]:.0f} s |" for name, seconds in PEERS]
    if "servers" in result:
        at = result["servers_at"]
        lines += ["", f"Measured {at['when']} at `{at['commit']}` on {at['lab']}.", ""]
        lines.append(
            f"| one of {SERVERS} API servers goes, to the changed endpoint in the kernel | {' | '.join(WAYS)} |"
        )
        lines.append(f"|---|{'---:|' * len(WAYS)}")
        spans = (_span([run["seconds"] for run in result["servers"] if run["way"] == way]) for way in WAYS)
        lines.append(f"| **kroute**, {SERVICES} Services x {ENDPOINTS} | {' | '.join(spans)} |")
    if "herd" in result:
        lines += ["", f"Simulated {result['herd_at']['when']} at `{result['herd_at']['commit']}`.", ""]
        lines.append(f"| away | a list costs | processors | agents | {' | '.join(title for _, title in _COLUMNS)} |")
        lines.append(f"|---|---|---:|---|{'---:|' * len(_COLUMNS)}")
        lines += [_herd_row(run) for run in result["herd"]]
    return "\n".join(lines) + "\n"


def _spans(agent: Sequence[Mapping[str, float]]) -> list[str]:
    """For each outage the earliest and the latest moment."""
    lengths = sorted({run["away"] for run in agent})
    return [_span([run["seconds"] for run in agent if run["away"] == away]) for away in lengths]


def _span(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.2f} to {max(seconds):.2f} s"


def _herd_row(run: Mapping[str, Any]) -> str:
    outcome = run["outcome"]
    cells = (
        f"{outcome[name]:.1f} s" if isinstance(outcome[name], float) else f"{outcome[name]:,}" for name, _ in _COLUMNS
    )
    name = f"{run['agents']:,} {outcome['client']}"
    capacity = run["capacity"]
    cost = f"{capacity['list_seconds'] * 1000:g} ms | {capacity['processors']}"
    return f"| {run['away']:g} s | {cost} | {name} | {' | '.join(cells)} |"


def publish(result: Mapping[str, Any], page: Path) -> None:
    """Put the tables into the page. Raises ValueError if it has no place for them."""
    put_between(page, MARKS, markdown(result))
