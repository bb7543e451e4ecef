"""How many clients change their real server, asked of the kernel's schedulers: `python -m bench.hashing [--publish]`.

Each figure is of datagrams from `CLIENTS` addresses through a virtual server in the lab's kernel. Only rendezvous
hashing, which the kernel does not have, is computed here, as the reference: it moves the clients of the one that leaves
and no others.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import fmean
from typing import Any

from bench.place.host import kernel_name
from bench.report import page, plots
from bench.run import circumstances
from kroute.controllers.ipvs.server_order import place
from kroute.kernel import modules
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteVirtualServer,
    SetRealServer,
    VirtualServerOptions,
)
from kroute.model.plan import Protocol, RealServer, VirtualServer, VirtualServerKey
from tests.lab import hash_choices
from tests.lab.places import PROJECT

RESULTS = PROJECT / "bench" / "results"
FILE = RESULTS / "hashing.json"
PAGE = PROJECT / "docs" / "hashing.md"
MARKS = page.marks("hashing")

SIZES = (2, 3, 5, 10, 20, 50, 100)
CLIENTS = 4000
WEIGHTS = (1, 5, 2, 9)
FALLBACK = 0x08
PREFIX = "result: "
KEY = VirtualServerKey(Protocol.UDP, hash_choices.VIPS[0], 53)

Choices = Mapping[str, str]


def rendezvous(servers: Sequence[str], clients: Sequence[str]) -> Choices:
    """Each client's server by the highest random weight."""

    def weight(client: str, server: str) -> bytes:
        return hashlib.blake2b(f"{client} {server}".encode(), digest_size=8).digest()

    return {client: max(servers, key=lambda server: weight(client, server)) for client in clients}


def moved(before: Choices, after: Choices) -> float:
    """The share of clients whose real server is another one."""
    return sum(after[client] != server for client, server in before.items()) / len(before)


class Measurement:
    """Asks the kernel of this namespace."""

    def __init__(self, ipvs: Ipvs) -> None:
        self._ipvs = ipvs
        self._clients = hash_choices.clients(socket.AF_INET, CLIENTS)

    async def of(self, count: int) -> dict[str, Any]:
        """All figures for so many real servers."""
        servers = sorted(hash_choices.servers(socket.AF_INET, count))
        leaving = (servers[0], servers[count // 2], servers[-1])
        all_mh, all_sh = await self._choices("mh", servers), await self._choices("sh", servers)
        everybody = rendezvous(servers, self._clients)
        left = [[it for it in servers if it != gone] for gone in leaving]
        return {
            "servers": count,
            "mh": fmean([moved(all_mh, await self._choices("mh", it)) for it in left]),
            "mh drains": fmean([moved(all_mh, await self._choices("mh", servers, drains=it)) for it in leaving]),
            "sh": fmean([moved(all_sh, await self._choices("sh", it)) for it in left]),
            "rendezvous": fmean([moved(everybody, rendezvous(it, self._clients)) for it in left]),
            "by order": {
                "mh": await self._by_order("mh", servers, (1,)),
                "mh, weights": await self._by_order("mh", servers, WEIGHTS),
                "sh": await self._by_order("sh", servers, (1,)),
            },
            "newcomer": await self._newcomer(servers),
        }

    async def _choices(
        self, scheduler: str, order: Sequence[str], weights: Mapping[str, int] | None = None, drains: str = ""
    ) -> Choices:
        adds = [AddRealServer(KEY, (it, 53), (weights or {}).get(it, 1)) for it in order]
        await self._write(AddVirtualServer(KEY, VirtualServerOptions(scheduler, FALLBACK)), *adds)
        if drains:
            await self._write(SetRealServer(KEY, (drains, 53), 0))
        found = hash_choices.choices(KEY.address, 53, self._clients)
        await self._write(DeleteVirtualServer(KEY))
        assert len(found) == CLIENTS, "a client was refused"
        return found

    async def _by_order(self, scheduler: str, servers: Sequence[str], weights: Sequence[int]) -> float:
        """The share of clients that two nodes send to different real servers if they heard of them as they came."""
        of = dict(zip(servers, cycle(weights), strict=False))
        orders = [servers, servers[::-1], *(random.Random(seed).sample(servers, len(servers)) for seed in (1, 2))]
        first, *others = [await self._choices(scheduler, order, of) for order in orders]
        return fmean([moved(first, it) for it in others])

    async def _newcomer(self, servers: Sequence[str]) -> dict[str, float]:
        """What the addition of the first in the plan's order costs, the worst case: messages, and seconds."""
        desired = VirtualServer(KEY, "mh", FALLBACK, None, tuple(RealServer(it, 53) for it in servers))
        adds = [AddRealServer(KEY, (it, 53), 1) for it in servers[1:]]
        await self._write(AddVirtualServer(KEY, VirtualServerOptions("mh", FALLBACK)), *adds)
        began = time.perf_counter()
        changes = place(desired, (await self._ipvs.real_servers([KEY]))[KEY])
        await self._write(*changes)
        seconds = time.perf_counter() - began
        await self._write(DeleteVirtualServer(KEY))
        return {"messages": len(changes), "seconds": seconds}

    async def _write(self, *changes: Any) -> None:
        failures = await self._ipvs.write(changes)
        assert not failures, failures


async def measure() -> list[dict[str, Any]]:
    """Measure in this network namespace, which should be empty."""
    await modules.load(["ip_vs"])
    hash_choices.prepare()
    async with Ipvs() as ipvs:
        measurement = Measurement(ipvs)
        return [await measurement.of(count) for count in SIZES]


def charts(result: Mapping[str, Any]) -> dict[str, str]:
    """The charts, by file name."""
    runs = result["runs"]
    lines = {"1/n": [(it["servers"], 1 / it["servers"]) for it in runs]}
    lines |= {name: [(it["servers"], it[name]) for it in runs] for name in ("mh", "mh drains", "sh", "rendezvous")}
    orders = {name: [(it["servers"], it["by order"][name]) for it in runs] for name in runs[0]["by order"]}
    x_name = "real servers"
    return {
        "hashing-moved.svg": plots.line_chart(
            "Clients that move when one of n leaves or comes", x_name, "share of clients", lines, logarithmic=True
        ),
        "hashing-order.svg": plots.line_chart(
            "Clients that two nodes send apart, by the order of arrival alone",
            x_name,
            "share of clients",
            orders,
            logarithmic=True,
        ),
    }


def markdown(result: Mapping[str, Any]) -> str:
    """The tables, and the charts."""
    lines = [
        f"Measured {result['when']} at `{result['commit']}`, on {result['lab']}, {CLIENTS:,} clients.",
        "",
        "| real servers | 1/n | `mh` | `mh`, it drains | `sh` | rendezvous |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for run in result["runs"]:
        shares = (1 / run["servers"], run["mh"], run["mh drains"], run["sh"], run["rendezvous"])
        lines.append(f"| {run['servers']} | {' | '.join(f'{it:.1%}' for it in shares)} |")
    lines += [
        "",
        "| real servers | sent apart: `mh` | `mh`, weights 1 to 9 | `sh` | worst newcomer: messages | time |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for run in result["runs"]:
        shares, cost = run["by order"].values(), run["newcomer"]
        apart = " | ".join(f"{it:.1%}" for it in shares)
        lines.append(f"| {run['servers']} | {apart} | {cost['messages']} | {cost['seconds'] * 1000:.1f} ms |")
    images = [f"![{name.removesuffix('.svg')}](../bench/results/{name})" for name in charts(result)]
    return "\n".join([*lines, "", *images]) + "\n"


def main() -> None:
    """Measure in the lab, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.hashing", description=__doc__)
    parser.add_argument("--publish", action="store_true", help=f"put the tables and charts into {PAGE.name}")
    parser.add_argument("--again", action="store_true", help="measure nothing, write the last result again")
    parser.add_argument("--here", action="store_true", help="measure in this network namespace, and print the figures")
    chosen = parser.parse_args()
    if chosen.here:
        print(PREFIX + json.dumps({"lab": kernel_name(), "runs": asyncio.run(measure())}))
        return
    if not chosen.again:
        FILE.write_text(json.dumps(_in_the_lab(), indent=1) + "\n")
    result = json.loads(FILE.read_text())
    for name, chart in charts(result).items():
        (RESULTS / name).write_text(chart)
    if chosen.publish:
        page.put_between(PAGE, MARKS, markdown(result))
    print(markdown(result))


def _in_the_lab() -> dict[str, Any]:
    here = [sys.executable, "-m", "bench.hashing", "--here"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.run", "unshare", "--net", *here],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(PREFIX)]
    if done.returncode or not found:
        sys.exit(f"bench.hashing: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    measured, now = json.loads(found[0].removeprefix(PREFIX)), circumstances()
    return {"when": now["when"], "commit": now["commit"], **measured}


if __name__ == "__main__":
    main()
