"""The node's firewall backends side by side, in one run: `python -m bench.firewalls [--publish] [--services N]...`."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import phases, report
from bench.figures import brief
from bench.node import RunnerError
from bench.phases import BenchError
from bench.run import FIREWALLS, run
from bench.targets import MIB
from tests.lab.namespaces import CommandError
from tests.lab.places import PROJECT
from tests.lab.vm.machine import MachineError

FILE = PROJECT / "bench" / "results" / "firewalls.json"
PAGE = PROJECT / "docs" / "performance.md"
BEGIN = "<!-- written by make bench, firewalls: begin -->\n"
END = "<!-- written by make bench, firewalls: end -->\n"

SIZES = (1000, 10000)
ENDPOINTS = 10
COMPARED_PHASES = frozenset({"update", "warm", "resync"})
"""The phases besides the cold start."""

Run = Mapping[str, Any]


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


def markdown(result: Mapping[str, Any]) -> str:
    """A table for each size that was measured with both backends."""
    by_size: dict[int, dict[str, Run]] = {}
    for one in result["runs"]:
        by_size.setdefault(one["services"], {})[one["firewall"]] = one
    lines = [f"{report.circumstances(result)}."]
    for found in by_size.values():
        if set(FIREWALLS) <= set(found):
            lines += _table([found[name] for name in FIREWALLS])
    return "\n".join(lines) + "\n"


def _table(runs: Sequence[Run]) -> list[str]:
    first, second = runs
    size = f"{first['services']:,} Services x {first['endpoints']}"
    lines = ["", f"| at {size} | {' | '.join(FIREWALLS)} | {FIREWALLS[0]} against it |", "|---|---:|---:|---:|"]
    for row in ROWS:
        try:
            values = [row.value(first), row.value(second)]
        except KeyError:
            continue
        ratio = f"{values[0] / values[1]:.2f} x" if values[1] else "-"
        lines.append(f"| {row.name} | {' | '.join(brief(it, f' {row.unit}') for it in values)} | {ratio} |")
    return lines


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.firewalls", description=__doc__)
    parser.add_argument("--services", type=int, action="append", help=f"default: {SIZES}")
    parser.add_argument("--publish", action="store_true", help=f"put the tables into {PAGE.name}")
    parser.add_argument("--output", type=Path, default=FILE, help="the file of the results")
    chosen = parser.parse_args()
    try:
        asyncio.run(_measure(chosen.services or SIZES, chosen.output))
    except (BenchError, CommandError, MachineError, RunnerError, PermissionError) as error:
        sys.exit(f"bench.firewalls: {error}")
    result = json.loads(chosen.output.read_text())
    if chosen.publish:
        report.put_between(PAGE, BEGIN, END, markdown(result))
    print(markdown(result))


async def _measure(sizes: Sequence[int], file: Path) -> None:
    """Measure, and write the results after each node, so that a later failure loses none of them."""

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)

    async for result in run(sizes, ENDPOINTS, phases.QUICK, COMPARED_PHASES, say, firewalls=FIREWALLS):
        file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
