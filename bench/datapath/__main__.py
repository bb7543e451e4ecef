"""`python -m bench.datapath [--publish] [--services N]... [--proxies none,kroute-nftables,...] [--rounds N]`."""

import argparse
import asyncio
import json
import os
import time
from pathlib import Path

from bench.datapath import report
from bench.datapath.measure import KROUTE, NOTHING, PROXIES, Plan, run
from bench.report import page
from bench.run import circumstances, ending_in_a_line
from tests.lab import kubernetes
from tests.lab.places import PROJECT

FILE = PROJECT / "bench" / "results" / "datapath.json"
SIZES = (10, 1000, 10000)


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.datapath", description=__doc__)
    parser.add_argument("--services", type=int, action="append", help=f"default: {SIZES}")
    parser.add_argument("--endpoints", type=int, default=1, help="of each Service that is not called")
    parser.add_argument("--proxies", default=",".join(PROXIES), help="which, in this order")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--connections", type=int, default=400, help="new ones by each way in a round")
    parser.add_argument("--requests", type=int, default=1000, help="by each way in a round, on one connection")
    page.add_options(parser, page.DETAILS, FILE)
    chosen = parser.parse_args()
    if not chosen.again:
        with ending_in_a_line("bench.datapath"):
            asyncio.run(_write(_plan(chosen), chosen.output))
    result = json.loads(chosen.output.read_text())
    for name, chart in report.charts(result).items():
        chosen.output.with_name(name).write_text(chart)
    text = report.markdown(result, chosen.output.parent)
    if chosen.publish:
        page.put_between(page.DOCS / page.DETAILS, report.MARKS, text)
    print(text)


def _plan(chosen: argparse.Namespace) -> Plan:
    proxies = chosen.proxies.split(",")
    if said := kubernetes.missing("kube-proxy"):
        _say(f"kube-proxy is left out: {said}")
        proxies = [name for name in proxies if name in (NOTHING, *KROUTE)]
    else:
        kubernetes.required("kube-proxy")
    sizes = chosen.services or SIZES
    return Plan(sizes, chosen.endpoints, proxies, chosen.rounds, chosen.connections, chosen.requests)


async def _write(plan: Plan, file: Path) -> None:
    """Measure, and write the results after each node, so that a later failure loses none of them."""
    result = {**circumstances(), "rounds": plan.rounds, "connections": plan.connections, "requests": plan.requests}
    async for runs in run(plan, _say):
        result |= {"lab": runs[-1]["lab"], "runs": runs, "load_after": os.getloadavg()[0]}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
