"""The node's firewall backends side by side, in turn: `python -m bench.firewalls [--publish] [--services N]...`."""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.phases import lengths
from bench.report import page
from bench.report.rows import Row
from bench.report.spread import MIB, Run, by_size, spread_over
from bench.run import FIREWALLS, RUNS, Plan, ending_in_a_line, run
from tests.lab.places import PROJECT

FILE = PROJECT / "bench" / "results" / "firewalls.json"
MARKS = page.marks("firewalls")

SIZES = (1000,)
ENDPOINTS = 10
COMPARED_PHASES = frozenset({"update", "warm"})
"""The phases besides the cold start."""

ROWS = (
    Row("start: process to last address", lambda run: run["cold"]["start_to_ready"], "s"),
    Row("its CPU", lambda run: run["cold"]["cpu"], "s"),
    Row("its netlink messages", lambda run: run["cold"]["messages"], ""),
    Row("its longest stall of the loop", lambda run: run["cold"]["longest_round"] * 1000, "ms"),
    Row("settled RSS", lambda run: run["cold"]["rss_settled"] / MIB, "MiB"),
    Row("warm restart: process to last address", lambda run: run["warm"]["start_to_ready"], "s"),
    Row("its CPU", lambda run: run["warm"]["cpu"], "s"),
    Row("one endpoint changed, p50", lambda run: run["update"]["p50"] * 1000, "ms"),
    Row("its CPU", lambda run: run["update"]["cpu_per_change"] * 1000, "ms"),
)


def markdown(result: Mapping[str, Any]) -> str:
    """A table for each size that was measured with both backends."""
    lines = [page.circumstances(result)]
    for runs in by_size(result["runs"]).values():
        found = {name: [run for run in runs if run["firewall"] == name] for name in FIREWALLS}
        if all(found.values()):
            lines += _table(list(found.values()))
    return "\n".join(lines) + "\n"


def _table(both: Sequence[Sequence[Run]]) -> list[str]:
    size = f"{both[0][0]['services']:,} Services x {both[0][0]['endpoints']}"
    lines = [
        "",
        f"| at {size} | {' | '.join(FIREWALLS)} | medians: {FIREWALLS[0]} against it |",
        "|---|---:|---:|---:|",
    ]
    for row in ROWS:
        first, second = (spread_over(runs, row.value) for runs in both)
        if first is None or second is None:
            continue
        ratio = f"{first.median / second.median:.2f} x" if second.median else "-"
        lines.append(f"| {row.name} | {first.text(f' {row.unit}')} | {second.text(f' {row.unit}')} | {ratio} |")
    return lines


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.firewalls", description=__doc__)
    parser.add_argument("--services", type=int, action="append", help=f"default: {SIZES}")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each size with each backend")
    page.add_options(parser, page.DETAILS, FILE)
    chosen = parser.parse_args()
    plan = Plan(chosen.services or SIZES, ENDPOINTS, lengths.QUICK, COMPARED_PHASES, chosen.runs, FIREWALLS)
    if not chosen.again:
        with ending_in_a_line("bench.firewalls"):
            asyncio.run(_measure(plan, chosen.output))
    result = json.loads(chosen.output.read_text())
    if chosen.publish:
        page.put_between(page.DOCS / page.DETAILS, MARKS, markdown(result))
    print(markdown(result))


async def _measure(plan: Plan, file: Path) -> None:
    """Measure, and write the results after each node, so that a later failure loses none of them."""

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    async for result in run(plan, say):
        file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
