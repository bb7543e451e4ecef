"""What weights, slow start and stable hashing cost where nothing asks for them: `python -m bench.unasked [--publish]`.

An agent starts and follows single changes, while its stacks are sampled (bench/place/sampling.py). A sample belongs to
a part if any function of its files is on the stack: what that function calls belongs to it as well. What is inside of
the clients of the kernel does not: these writes and reads are made with and without the part.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.phases.changes import updates
from bench.phases.lengths import QUICK
from bench.phases.session import Session
from bench.phases.start import start
from bench.place.node import node_under_test
from bench.report import page
from bench.report.spread import spread_of
from bench.run import FIREWALLS, RUNS, circumstances, ending_in_a_line
from bench.workload import Workload
from tests.lab.places import PROJECT

FILE = PROJECT / "bench" / "results" / "unasked.json"
MARKS = page.marks("unasked")
SERVICES, ENDPOINTS = 1000, 10

_IPVS = "kroute/controllers/ipvs"
PARTS: Mapping[str, tuple[str, ...]] = {
    "weights and locality": ("kroute/planning/features/weights/",),
    "slow start": (f"{_IPVS}/slow_starts.py", "kroute/planning/features/slow_start.py"),
    "ejection": (f"{_IPVS}/ejections.py", f"{_IPVS}/confirmations.py"),
    "order of real servers": (f"{_IPVS}/server_order.py",),
}
"""The files of each part, or their folder."""
_CLIENTS = "/kroute/kernel/"

Samples = Sequence[tuple[int, Sequence[str]]]


def shares(samples: Samples) -> dict[str, float]:
    """The share of the samples that belong to each part."""
    whole = sum(count for count, _ in samples)
    own = [(count, stack) for count, stack in samples if not any(_CLIENTS in file for file in stack)]
    return {
        part: sum(count for count, stack in own if any(f"/{it}" in file for it in files for file in stack)) / whole
        for part, files in PARTS.items()
    }


def markdown(result: Mapping[str, Any]) -> str:
    """A row for each part."""
    size = f"{SERVICES:,} Services x {ENDPOINTS}"
    lines = [
        page.circumstances(result),
        *("", f"| at {size}, no annotation | of the agent's processor time |", "|---|---:|"),
    ]
    for part in PARTS:
        spread = spread_of([run["shares"][part] * 100 for run in result["runs"]])
        lines.append(f"| {part} | {spread.text(' %')} |")
    return "\n".join(lines) + "\n"


async def measure(runs: int) -> dict[str, Any]:
    """The shares of each run, each on a node of its own."""
    result: dict[str, Any] = {**circumstances(), "runs": []}
    for number in range(runs):
        async with (
            node_under_test() as node,
            Session.open(node, Workload(SERVICES, ENDPOINTS), FIREWALLS[0]) as session,
        ):
            await start(session, profile=True)
            await updates(session, QUICK)
            await node.ask("stop")
            found = shares(json.loads((node.shared / "profile.json").read_text()))
            result["lab"], result["python"] = node.lab, node.python
            result["runs"].append({"number": number, "services": SERVICES, "firewall": FIREWALLS[0], "shares": found})
            print(f"{time.strftime('%H:%M:%S')} {found}", flush=True)
    return {**result, "load_after": circumstances()["load_before"]}


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.unasked", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    page.add_options(parser, page.DETAILS, FILE)
    chosen = parser.parse_args()
    if not chosen.again:
        with ending_in_a_line("bench.unasked"):
            result = asyncio.run(measure(chosen.runs))
        chosen.output.write_text(json.dumps(result, indent=1) + "\n")
    result = json.loads(chosen.output.read_text())
    if chosen.publish:
        page.put_between(page.DOCS / page.DETAILS, MARKS, markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
