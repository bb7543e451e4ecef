"""`python -m bench.scale [--publish] [--services N] [--churn SECONDS] [--proxies kroute,nftables,ipvs,kube-router]`."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.report import page
from bench.run import circumstances, ending_in_a_line
from bench.scale import report
from bench.scale.measure import Plan, run
from bench.scale.proxies import PROXIES
from tests.lab import kubernetes
from tests.lab.places import PROJECT

FILE = PROJECT / "bench" / "results" / "scale.json"
PROGRAMS = ("etcd", "kube-apiserver", "kube-proxy", "kube-router")


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("--services", type=int, default=5000)
    parser.add_argument("--endpoints", type=int, default=10, help="of each Service")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--churn", type=float, default=600.0, help="seconds of churn that kroute has")
    parser.add_argument("--peer-churn", type=float, default=60.0, help="seconds of churn that the others have")
    parser.add_argument("--changes", type=int, default=7, help="single changes")
    parser.add_argument("--proxies", default=",".join(PROXIES), help="which, in this order")
    page.add_options(parser, page.SUMMARY, FILE)
    chosen = parser.parse_args()
    if not chosen.again:
        _measure(chosen)
    result = json.loads(chosen.output.read_text())
    if chosen.publish:
        page.put_between(page.DOCS / page.SUMMARY, report.MARKS, report.markdown(result))
    print(report.markdown(result))


def _measure(chosen: argparse.Namespace) -> None:
    if said := kubernetes.missing(*PROGRAMS):
        sys.exit(f"bench.scale: {said}")
    for program in PROGRAMS:
        kubernetes.required(program)
    plan = Plan(
        services=chosen.services,
        endpoints=chosen.endpoints,
        nodes=chosen.nodes,
        churn=chosen.churn,
        peer_churn=chosen.peer_churn,
        changes=chosen.changes,
        proxies=chosen.proxies.split(","),
    )
    with ending_in_a_line("bench.scale"):
        asyncio.run(_write(plan, chosen.output))


async def _write(plan: Plan, file: Path) -> None:
    """Measure, and write the results after each proxy, so that a later failure loses none of them."""
    result = {**circumstances(), "services": plan.services, "endpoints": plan.endpoints, "nodes": plan.nodes}
    with tempfile.TemporaryDirectory(prefix="kroute-bench-") as directory:
        async for proxies in run(plan, Path(directory), _say):
            result |= {"proxies": proxies, "load_after": os.getloadavg()[0]}
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
