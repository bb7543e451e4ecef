"""`python -m bench.outage [--publish] [--parts agent,servers,herd]`."""

import argparse
import asyncio
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.outage import report
from bench.outage.herd import AGENTS, CLIENTS, simulate
from bench.outage.measure import measure, measure_servers
from bench.outage.server import Capacity
from bench.report import page
from bench.run import circumstances, ending_in_a_line
from tests.apiserver.restart import Restart
from tests.lab.places import PROJECT

FILE = PROJECT / "bench" / "results" / "outage.json"
HERDS = (
    (10.0, AGENTS, Capacity(0.005)),
    (10.0, AGENTS, Capacity(0.02)),
    (29.0, AGENTS, Capacity(0.02)),
    (10.0, AGENTS // 16, Capacity(0.1, processors=1, in_flight=31)),
)
"""Seconds away, agents, and the server. The list of `restart.json`, of a few objects, was answered within 20 ms. The
last is a sixteenth of a herd and of a server whose lists are large."""
RUNS = 3


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.outage", description=__doc__)
    parser.add_argument("--parts", default="agent,servers,herd", help="the others keep the figures of the last result")
    parser.add_argument("--publish", action="store_true", help=f"put the tables into docs/{page.DETAILS}")
    parser.add_argument("--output", type=Path, default=FILE, help="the file of the results")
    chosen = parser.parse_args()
    parts = chosen.parts.split(",")
    result: dict[str, Any] = json.loads(chosen.output.read_text()) if chosen.output.exists() else {}
    now = {name: value for name, value in circumstances().items() if name in {"when", "commit"}}
    with ending_in_a_line("bench.outage"):
        if "agent" in parts:
            result |= now
            result["lab"], result["agent"] = asyncio.run(measure(RUNS, _say))
        if "servers" in parts:
            lab, figures = asyncio.run(measure_servers(RUNS, _say))
            result |= {"servers": figures, "servers_at": {**now, "lab": lab}}
    if "herd" in parts:
        result |= {"herd": _herds(), "herd_at": now}
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(result, indent=1) + "\n")
    if chosen.publish:
        report.publish(result, page.DOCS / page.DETAILS)
    print(report.markdown(result))


def _herds() -> list[dict[str, Any]]:
    wanted = [(client, *herd) for herd in HERDS for client in CLIENTS]
    with ProcessPoolExecutor() as pool:
        runs = [
            pool.submit(simulate, client, Restart.recorded().lasting(away), capacity, agents)
            for client, away, agents, capacity in wanted
        ]
        return [
            {"away": away, "agents": agents, "capacity": capacity._asdict(), "outcome": run.result()._asdict()}
            for (_, away, agents, capacity), run in zip(wanted, runs, strict=True)
        ]


if __name__ == "__main__":
    main()
