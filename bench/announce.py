"""What it costs to announce VIPs to a router: `python -m bench.announce [--publish]`.

The node has kroute and BIRD, and the router is a BIRD at the other end of the wire, whose table says what has arrived.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.phases.lengths import BenchError, Figures
from bench.phases.session import NO_RESYNCS, Session
from bench.place.node import API_ADDRESS, NodeUnderTest, node_under_test
from bench.report import page
from bench.report.spread import mib_text, time_text
from bench.run import FIREWALLS, circumstances, ending_in_a_line
from bench.workload import NODE_ADDRESS, Workload
from tests.lab.places import PROJECT

FILE = PROJECT / "bench" / "results" / "announce.json"
MARKS = page.marks("announce")
SIZES = (1000, 10_000)
BIRD = "/run/bird"
ANNOUNCE = {
    **NO_RESYNCS,
    "KROUTE_ANNOUNCE": "true",
    "KROUTE_ADVERTISE_CLUSTER_IP": "true",
    "KROUTE_PEER_ROUTER_IPS": API_ADDRESS,
    "KROUTE_PEER_ROUTER_ASNS": "65000",
}
_ROUTER = f"""router id {API_ADDRESS};
protocol device {{ }}
protocol bgp node {{
  local {API_ADDRESS} as 65000;
  neighbor {NODE_ADDRESS} as 64512;
  connect delay time 1;
  ipv4 {{ import all; export none; }};
}}
"""
_WITHIN = 600.0
_APART = 0.002
CALM = 4.0
"""Seconds between two changes, longer than `--withdraw-grace`: what is withdrawn is unbound after it. IPVS sums up its
statistics every two seconds, so costs at rest are measured over a multiple of these."""


class Router:
    """A BIRD on this end of the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls) -> AsyncIterator["Router"]:
        """One that learns what the node announces, for the length of an `async with`."""
        with tempfile.TemporaryDirectory(prefix="kroute-bench-router-", dir="/run") as directory:
            configuration, socket = Path(directory) / "router.conf", Path(directory) / "router.ctl"
            configuration.write_text(_ROUTER)
            with subprocess.Popen(["bird", "-f", "-c", str(configuration), "-s", str(socket)]) as process:
                try:
                    while not socket.exists():  # noqa: ASYNC110  BIRD sets no event here
                        await asyncio.sleep(_APART)
                    reader, writer = await asyncio.open_unix_connection(socket)
                    router = cls(reader, writer)
                    await router._answer()  # the greeting
                    yield router
                    writer.close()
                finally:
                    process.kill()

    async def has(self, count: int) -> float:
        """Wait until it has so many routes. Returns the Unix time."""
        told = re.compile(rf"\d{{4}}[ -]{count} of {count} routes")
        return await self._seen("show route table master4 count", lambda answer: told.match(answer) is not None)

    async def reaches(self, address: str, *, is_reached: bool) -> float:
        """Wait until it has a route to the address, or none any more. Returns the Unix time."""
        return await self._seen(f"show route for {address}", lambda answer: ("unicast" in answer) is is_reached)

    async def _seen(self, command: str, is_right: Callable[[str], bool]) -> float:
        async with asyncio.timeout(_WITHIN):
            while True:
                self._writer.write(f"{command}\n".encode())
                if is_right(await self._answer()):
                    return time.time()
                await asyncio.sleep(_APART)

    async def _answer(self) -> str:
        lines: list[str] = []
        while not (lines and re.match(r"\d{4} ", lines[-1])):
            lines.append((await self._reader.readuntil()).decode())
        return "".join(lines)


class _Measurement:
    """One size on one node."""

    def __init__(self, session: Session, router: Router, calm: float) -> None:
        self._calm = calm
        self._session = session
        self._node: NodeUnderTest = session.node
        self._router = router
        self._size = session.workload.services

    async def figures(self, changes: int) -> Figures:
        """Measure. In seconds and bytes. Between two starts everything is removed, and BIRD goes on."""
        await self._session.rehearse()
        await self._session.start_agent(ANNOUNCE)
        await self._command(f"bird -R -c {BIRD}/kroute.conf -s {BIRD}/bird.ctl -P {BIRD}/pid")
        try:
            await self._router.has(self._size)
            found: Figures = {"without": await self._start(NO_RESYNCS), "with": await self._start(ANNOUNCE)}
            status = await self._command(f"cat /proc/$(cat {BIRD}/pid)/status")
            found["bird"] = int(status.partition("VmRSS:")[2].split()[0]) * 1024
            return found | await self._changes(changes)
        finally:
            await self._command(f"kill $(cat {BIRD}/pid); rm -r {BIRD}")

    async def _start(self, settings: Mapping[str, str]) -> Figures:
        """Start on an empty kernel, while the router has no route. Returns what it takes to the last of them."""
        await self._node.ask("stop")
        code, said = await self._node.ask("kroute", settings={}, arguments=["cleanup"])
        if code:
            raise BenchError(f"kroute cleanup ends with {code}: {said}")
        await self._router.has(0)
        await self._session.calibrate(self._calm)
        await self._session.compare_clocks()
        cpu, began = self._node.cpu(), time.monotonic()
        started = await self._session.start_agent(settings)
        ready = await self._router.has(self._size) if settings is ANNOUNCE else time.time()
        cpu = self._node.cpu() - cpu - self._session.baseline * (time.monotonic() - began)
        await asyncio.sleep(self._calm)
        return {"start": ready - started, "cpu": cpu, "rss": (await self._session.memory())["now"]}

    async def _changes(self, count: int) -> Figures:
        """Add a Service and delete it, again and again, and look at the router; then without looking."""
        workload, added = self._session.workload, self._size
        address, taken = workload.cluster_ip(added), {"comes": list[float](), "goes": list[float]()}
        steps = (("comes", self._session.add_service, True), ("goes", self._session.delete_service, False))
        for _ in range(count):
            for name, make, is_reached in steps:
                sent = time.time()
                make(added)
                taken[name].append(await self._router.reaches(address, is_reached=is_reached) - sent)
                await asyncio.sleep(self._calm)
        await self._session.calibrate(2 * count * self._calm)
        cpu, began = self._node.cpu(), time.monotonic()
        for _ in range(count):
            for _, make, _ in steps:
                make(added)
                await asyncio.sleep(self._calm)
        cpu = self._node.cpu() - cpu - self._session.baseline * (time.monotonic() - began)
        return {**{name: median(each) for name, each in taken.items()}, "change_cpu": cpu / (2 * count), "taken": taken}

    async def _command(self, script: str) -> str:
        text: str = await self._node.ask("command", argv=["bash", "-c", script])
        return text


ROWS: Sequence[tuple[str, Callable[[Figures], str]]] = (
    ("start without `--announce`: process to ready", lambda it: time_text(it["without"]["start"])),
    ("start with it: process to the last VIP at the router", lambda it: time_text(it["with"]["start"])),
    ("CPU of the start without", lambda it: time_text(it["without"]["cpu"])),
    ("with it, BIRD's included", lambda it: time_text(it["with"]["cpu"])),
    ("RSS of kroute without", lambda it: mib_text(it["without"]["rss"])),
    ("more with it", lambda it: mib_text(it["with"]["rss"] - it["without"]["rss"])),
    ("RSS of BIRD", lambda it: mib_text(it["bird"])),
    ("a Service comes: API server to the router's table, p50", lambda it: time_text(it["comes"])),
    ("a Service goes: API server to the router's table, p50", lambda it: time_text(it["goes"])),
    ("CPU of one of the two, BIRD's included", lambda it: time_text(it["change_cpu"])),
)


def markdown(result: Mapping[str, Any]) -> str:
    """The table; a column for each size."""
    sizes: Mapping[str, Figures] = result["sizes"]
    lines = [
        page.measured(result),
        "",
        f"| VIPs announced | {' | '.join(f'{int(size):,}' for size in sizes)} |",
        "|---|" + "---:|" * len(sizes),
        *(f"| {title} | {' | '.join(map(text, sizes.values()))} |" for title, text in ROWS),
    ]
    return "\n".join(lines) + "\n"


async def run(sizes: Sequence[int], endpoints: int, changes: int, calm: float = CALM) -> AsyncIterator[dict[str, Any]]:
    """Measure, and yield the result so far after each size."""
    result: dict[str, Any] = {**circumstances(), "sizes": {}}
    for size in sizes:
        async with (
            node_under_test() as node,
            Router.running() as router,
            Session.open(node, Workload(size, endpoints), FIREWALLS[0]) as session,
        ):
            result |= {"lab": node.lab, "python": node.python}
            result["sizes"][str(size)] = await _Measurement(session, router, calm).figures(changes)
        yield result | {"load_after": os.getloadavg()[0]}


async def _measure(chosen: argparse.Namespace) -> None:
    """Measure, and write the results after each node, so that a later failure loses none of them."""
    async for result in run(chosen.services or SIZES, chosen.endpoints, chosen.changes):
        chosen.output.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{time.strftime('%H:%M:%S')} {[*result['sizes']][-1]} VIPs are done", flush=True)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.announce", description=__doc__)
    parser.add_argument("--services", type=int, action="append", help=f"each with a VIP; default: {SIZES}")
    parser.add_argument("--endpoints", type=int, default=10, help="of each Service")
    parser.add_argument("--changes", type=int, default=10, help="of each kind")
    page.add_options(parser, page.DETAILS, FILE)
    chosen = parser.parse_args()
    if not chosen.again:
        with ending_in_a_line("bench.announce"):
            asyncio.run(_measure(chosen))
    text = markdown(json.loads(chosen.output.read_text()))
    if chosen.publish:
        page.put_between(page.DOCS / page.DETAILS, MARKS, text)
    print(text)


if __name__ == "__main__":
    main()
