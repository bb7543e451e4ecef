"""`python -m bench [--only headline] [--quick] [--services N]... [--runs N] [--phases cold,warm,...] [--profile]`."""

import argparse
import asyncio
import json
import os
import time
from pathlib import Path

from bench.phases import lengths
from bench.report import page
from bench.run import FIREWALLS, HEADLINE, PHASES, RUNS, Plan, ending_in_a_line, run
from tests.lab.places import PROJECT

RESULTS = PROJECT / "bench" / "results"
QUICK_RESULTS = RESULTS / "quick"
SIZES = (100, 1000, 10000)
QUICK_SIZES = (100, 1000)


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main() -> None:
    """Run the bench and write its results."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", choices=("headline",), help="the phases of the table on top, in half an hour")
    parser.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")), help="a few minutes")
    parser.add_argument("--services", type=int, action="append", help=f"default: {SIZES}, quick {QUICK_SIZES}")
    parser.add_argument("--endpoints", type=int, default=10, help="of each Service")
    parser.add_argument("--runs", type=int, help=f"of each size; default: {RUNS}, quick 1")
    parser.add_argument("--phases", default=",".join(PHASES), help=f"of {', '.join(PHASES)}; cold is always made")
    parser.add_argument("--firewall", choices=FIREWALLS, default=FIREWALLS[0], help="the node's backend")
    parser.add_argument("--profile", action="store_true", help="sample the stacks of the agents")
    parser.add_argument("--output", type=Path, help="directory for the results; default: bench/results")
    parser.add_argument("--publish", action="store_true", help="put the tables and charts into docs/")
    parser.add_argument(
        "--again", action="store_true", help="measure nothing: write the last result's tables and charts"
    )
    chosen = parser.parse_args()
    output = chosen.output or (QUICK_RESULTS if chosen.quick else RESULTS)
    file = output / "bench.json"
    if not chosen.again:
        output.mkdir(parents=True, exist_ok=True)
        with ending_in_a_line("bench"):
            asyncio.run(_measure(_plan(chosen), file))
    result = json.loads(file.read_text())
    page.write(result, output)
    if chosen.publish:
        page.publish(result, output)
    print(f"{page.headline_text(result)}\n{page.figures_text(result)}")


def _plan(chosen: argparse.Namespace) -> Plan:
    return Plan(
        sizes=chosen.services or (QUICK_SIZES if chosen.quick else SIZES),
        endpoints=chosen.endpoints,
        lengths=lengths.QUICK if chosen.quick else lengths.FULL,
        wanted=frozenset(HEADLINE if chosen.only else chosen.phases.split(",")),
        runs=chosen.runs or (1 if chosen.quick else RUNS),
        firewalls=(chosen.firewall,),
        profile=chosen.profile,
    )


async def _measure(plan: Plan, file: Path) -> None:
    """Measure, and write the results after each node, so that a later failure loses none of them."""
    async for result in run(plan, _say):
        file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
