"""Measure the ways of a packet through one proxy after the other, each on a node of its own, at several sizes."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.datapath.ways import CLEANUP, ENDPOINT_PLACE, FLOORS, WAYS, Measured, topology
from bench.phases.cost import percentile
from bench.phases.lengths import Figures
from bench.phases.session import Session
from bench.place.node import RunnerError, node_under_test
from bench.run import FIREWALLS
from bench.scale.proxies import KUBE_PROXY_METRICS, kube_proxy
from bench.workload import TARGET_PORT
from tests.lab.kube_proxy_process import MODES

_SOURCE = Path(__file__).with_name("load.c")
_STARTS_WITHIN = 300.0
_CALM = 4.0
"""Seconds for which the node's use of the processor at rest is measured."""

Say = Callable[[str], None]


class Proxy(NamedTuple):
    """A proxy: kroute with a firewall's backend, or kube-proxy in a mode, or none."""

    title: str
    firewall: str = ""
    mode: str = ""


NOTHING = "none"
KROUTE = {f"kroute-{it}": Proxy(f"kroute, {it}", firewall=it) for it in FIREWALLS}
KUBE_PROXY = {f"kube-proxy-{it}": Proxy(f"kube-proxy, {it}", mode=it) for it in sorted(MODES)}
PROXIES: Mapping[str, Proxy] = {NOTHING: Proxy("no proxy"), **KROUTE, **KUBE_PROXY}


class Plan(NamedTuple):
    """What is measured. Each of `rounds` has so many new connections by each way, and requests on one."""

    sizes: Sequence[int]
    endpoints: int
    proxies: Sequence[str]
    rounds: int
    connections: int
    requests: int


async def run(plan: Plan, say: Say) -> AsyncIterator[list[Figures]]:
    """Measure, and yield the figures so far after each node. A node without a proxy needs one size."""
    found: list[Figures] = []
    for services in plan.sizes:
        for name in plan.proxies:
            if name == NOTHING and found:
                continue
            async with (
                node_under_test() as node,
                Session.open(node, Measured(services, plan.endpoints), PROXIES[name].firewall) as session,
            ):
                measurement = Measurement(session, plan, FLOORS if name == NOTHING else list(WAYS))
                figures = {"proxy": name, "services": services, "lab": node.lab}
                found.append(figures | await measurement.figures(PROXIES[name]))
            say(f"{PROXIES[name].title}, {services} Services: {_briefly(found[-1])}")
            yield found


class Measurement:
    """Some ways through one proxy at one size."""

    def __init__(self, session: Session, plan: Plan, ways: Sequence[str]) -> None:
        self._session = session
        self._node = session.node
        self._plan = plan
        self._ways = ways

    async def figures(self, proxy: Proxy) -> Figures:
        """Measure. `start` is in seconds, None if the proxy does not get there."""
        await self.prepare()
        try:
            try:
                start = await self._start(proxy)
            except RunnerError as error:
                return {"start": None, "why": str(error)}
            if start:
                await self._node.ask("signal", name="SIGSTOP")  # no packet passes through it, so it is to cost nothing
            return {"start": start, "ways": await self.measured()}
        finally:
            await self._node.ask("command", argv=["bash", "-c", CLEANUP])

    async def prepare(self) -> None:
        """Make the namespaces of the clients and of the endpoints, and start the load generator."""
        load = self._node.shared / "load"
        await asyncio.to_thread(subprocess.run, ["cc", "-O2", "-o", load, _SOURCE], check=True)
        await self._node.ask("command", argv=["bash", "-c", topology()])
        endpoints = f"/run/netns/{ENDPOINT_PLACE.namespace}"
        await self._node.ask("load", argv=[str(load), endpoints, str(TARGET_PORT)])

    async def _start(self, proxy: Proxy) -> float:
        """Start the proxy. Returns the seconds until everything is in the kernel."""
        if proxy.firewall:
            began = time.time()
            await self._session.start_agent()
            return time.time() - began
        if proxy.mode:
            command = [*kube_proxy(proxy.mode)(self._session.kubeconfig()), "--kube-api-content-type=application/json"]
            started: float = await self._node.ask("launch", argv=command)
            within = {"port": KUBE_PROXY_METRICS, "within": _STARTS_WITHIN}
            synchronized: float = await self._node.ask("see", what="first_sync", **within)
            return synchronized - started
        return 0.0

    async def measured(self) -> dict[str, Figures]:
        """Every way in turn, round by round, so that a slow minute of the host meets all of them."""
        plan = self._plan
        for name in self._ways:
            await self._call(name, "connect", 50)
            await self._call(name, "request", 50)
        await self._session.calibrate(_CALM)
        calls = {"connect": plan.connections, "request": plan.requests}
        found: dict[str, dict[str, list[Figures]]] = {name: {what: [] for what in calls} for name in self._ways}
        for _ in range(plan.rounds):
            for name in self._ways:
                for what, count in calls.items():
                    found[name][what].append(await self._call(name, what, count))
        return {name: _summary(calls["connect"], calls["request"]) for name, calls in found.items()}

    async def _call(self, name: str, what: str, count: int) -> Figures:
        """Seconds of the caller and of the node's processor for each of `count` calls, and the nanoseconds of each."""
        way = WAYS[name]
        place = f"/run/netns/{way.client.namespace}" if way.client.namespace else "-"
        cpu, began = self._node.cpu(), time.monotonic()
        line = f"{what} {place} {way.client.address} {way.address} {way.port} {count}"
        answer: dict[str, Any] = await self._node.ask("call", line=line)
        cpu = self._node.cpu() - cpu - self._session.baseline * (time.monotonic() - began)
        return {"cpu": cpu / count, "seconds": answer["seconds"] / count, "nanoseconds": answer["nanoseconds"]}


def _summary(connects: Sequence[Figures], requests: Sequence[Figures]) -> Figures:
    """In seconds. The processor time is that of the cheapest round: other work of the host makes all the others dearer.

    `seconds` are of the median round, `first` are percentiles of all connects.
    """
    first = sorted(it for each in connects for it in each["nanoseconds"])
    figures = {"first": {f"p{percent}": percentile(first, percent) / 1e9 for percent in (50, 99)}}
    for name, rounds in (("connect", connects), ("request", requests)):
        cpu = sorted(each["cpu"] for each in rounds)
        figures[name] = {"cpu": cpu[0], "cpu_of_rounds": cpu, "seconds": median(each["seconds"] for each in rounds)}
    return figures


def _briefly(figures: Figures) -> str:
    if figures["start"] is None:
        return f"did not get there: {figures['why'][:300]}"
    ways = {name: f"{it['connect']['cpu'] * 1e6:.0f}" for name, it in figures["ways"].items()}
    kept = {name: f"{it['request']['cpu'] * 1e6:.1f}" for name, it in figures["ways"].items()}
    return f"start {figures['start']:.1f} s, us of processor time for a connection {ways}, for a request {kept}"
