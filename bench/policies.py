"""What network policies cost a node, by kroute and by kube-router's firewall: `python -m bench.policies [--publish]`.

Each runs on a node of its own, and is started without network policies, and then with more and more of them. Whether
the kernel has a change is seen by datagrams, which begin to pass or to be dropped.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from bench.datapath import measure as datapath
from bench.datapath.ways import CLEANUP, ENDPOINT_PLACE, ENDPOINTS, OUTSIDE, POD, WAYS, Measured
from bench.phases.lengths import BenchError, Figures
from bench.phases.session import NO_RESYNCS, Session
from bench.phases.start import moments
from bench.place.node import node_under_test
from bench.report import page
from bench.report.spread import mib_text, time_text
from bench.run import circumstances, ending_in_a_line
from bench.scale.proxies import kube_router
from bench.workload import NODE, NODE_ADDRESS, Object
from tests.apiserver.recording import Recording
from tests.lab import kubernetes
from tests.lab.places import PROJECT
from tests.unit.planning.policies import cluster, large

FILE = PROJECT / "bench" / "results" / "policies.json"
PAGE = "network-policies.md"
MARKS = page.marks("policies")
SIZES = (0, 10, 1000)
KUBE_ROUTER = "kube-router"
PROXIES = {**datapath.KROUTE, KUBE_ROUTER: datapath.Proxy(KUBE_ROUTER)}
CALLS = ("pod", "cluster-ip")
NEW_HERE, NEW_ELSEWHERE = "10.255.0.100", "10.255.2.2"
_SYNCED = {False: ["sync ipvs services took"], True: ["sync ipvs services took", "sync iptables took"]}
"""What kube-router has logged when it has written everything once, without and with network policies."""
_RECORDED = json.loads(Recording.load("list-pods-of-node").body)["items"][0]
_WITHIN = 600.0
_APART = 0.1
_LONG = 10.0
"""Seconds after which a slow proxy has no more changes of a kind."""
_ALL_LONG = 120.0
"""Seconds after which it has no other kinds."""


class Plan(NamedTuple):
    """What is measured: in a cluster of so many pods, `local` of them on the node, with these numbers of policies.

    With the last number, `changes` of each kind are made. A node is left alone for `calm` seconds before its memory is
    read, and while its use of the processor at rest is measured.
    """

    pods: int
    local: int
    sizes: Sequence[int]
    changes: int
    calm: float
    calls: datapath.Plan


class Change(NamedTuple):
    """An object that comes and goes. When it has come, datagrams from one end to the other pass, or not any more."""

    title: str
    item: Object
    source: tuple[str, str]
    destination: str
    passes: bool


@dataclass(frozen=True)
class Cluster(Measured):
    """The Services, the pods that call and are called, in the first namespace, and all others, without policies."""

    pods_of_all: int = 0
    local: int = 0
    policies: int = 0

    def objects(self) -> Iterator[Object]:
        yield from super().objects()
        yield from (_full(item) for item in self._others if item["kind"] != "NetworkPolicy")
        for number, address in enumerate((*ENDPOINTS, POD.address)):
            yield self._pod(number * large.APPS, address, NODE)

    @property
    def network_policies(self) -> list[Object]:
        return [item for item in self._others if item["kind"] == "NetworkPolicy"]

    @property
    def changes(self) -> Mapping[str, Change]:
        """What comes and goes: to the pods that are called, and from OUTSIDE, which is not a pod."""
        block = cluster.ingress(cluster.block(f"{OUTSIDE.address}/32"), namespace="n0", name="outside")
        new, outside = (OUTSIDE.namespace, NEW_ELSEWHERE), (OUTSIDE.namespace, OUTSIDE.address)
        peer = partial(self._pod, address=NEW_ELSEWHERE, on="node9")
        like, other = self._pod(1000, NEW_HERE, NODE), self._pod(1003, NEW_HERE, NODE)
        return {
            "like": Change("a pod on this node, isolated as others are", like, outside, NEW_HERE, passes=False),
            "other": Change("a pod on this node, isolated as no other is", other, outside, NEW_HERE, passes=False),
            "peer": Change("a pod elsewhere, known to its namespace", peer(1002), new, ENDPOINTS[0], passes=True),
            "monitor": Change("a pod elsewhere, known to all", peer(1001), new, ENDPOINTS[0], passes=True),
            "policy": Change("a policy", block, outside, ENDPOINTS[0], passes=True),
        }

    @property
    def _others(self) -> Iterator[Object]:
        return large.objects(self.pods_of_all, self.local, self.policies, NODE)

    def _pod(self, number: int, address: str, on: str) -> Object:
        """One more pod of the first namespace, whose application is that of its number."""
        namespaces = self.policies // 5
        item = large.pod(namespaces * (10_000 + number), namespaces, on)
        item["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
        return _full(item)


def _full(item: Object) -> Object:
    """A Pod with all that a real one has beside; Namespaces and policies as they are."""
    if item["kind"] != "Pod":
        return item
    host = NODE_ADDRESS if item["spec"]["nodeName"] == NODE else "172.16.0.9"
    parts = {part: {**_RECORDED[part], **item[part]} for part in ("metadata", "spec", "status")}
    parts["metadata"]["uid"] = ""  # each gets its own
    parts["status"]["hostIP"] = host
    return {**item, **parts}


class _Measurement:
    """One proxy on one node."""

    def __init__(self, session: Session, plan: Plan, name: str, workload: Cluster) -> None:
        self._session = session
        self._node = session.node
        self._plan = plan
        self._is_kroute = name != KUBE_ROUTER
        self._workload = workload
        self._calls = datapath.Measurement(session, plan.calls, CALLS)
        self._at_rest = 0.0

    async def figures(self) -> Figures:
        """Measure. In seconds and bytes."""
        await self._calls.prepare()
        await self._session.calibrate(self._plan.calm)
        self._at_rest = self._session.baseline
        more = f"ip -n {ENDPOINT_PLACE.namespace} address add {NEW_HERE}/24 dev eth0"
        more += f" && ip -n {OUTSIDE.namespace} address add {NEW_ELSEWHERE}/32 dev eth0"
        await self._command(f"{more} && ip route add {NEW_ELSEWHERE} via {OUTSIDE.address}")
        try:
            if self._is_kroute:
                await self._session.rehearse()
            found: Figures = {"without": await self._start(enforces=False), "with": {}}
            await self._node.ask("stop")
            for size in self._plan.sizes:
                for item in self._workload.network_policies[:size]:
                    self._session.apply(item)
                found["with"][str(size)] = await self._start(enforces=True) | await self._called()
                if size == self._plan.sizes[-1]:
                    found["changes"] = await self._changes()
                await self._node.ask("stop")
            return found
        finally:
            await self._command(CLEANUP)

    async def _start(self, *, enforces: bool) -> Figures:
        """Start the proxy. Returns what it takes until everything is in the kernel, and its memory after that."""
        await self._session.compare_clocks()
        cpu, began = self._node.cpu(), time.monotonic()
        if self._is_kroute:
            settings = {**NO_RESYNCS, "KROUTE_NETWORK_POLICIES": str(enforces).lower()}
            started = await self._session.start_agent(settings)
            ready = moments(await self._node.ask("log"))["kroute.ready"]
            ready = max(ready, await self._enforced_at() if enforces else 0.0) - self._session.clock_ahead
        else:
            command = kube_router(self._session.kubeconfig(), firewall=enforces)
            started = await self._node.ask("launch", argv=[*command, "--v=2"])
            ready = await self._node.ask("logged", texts=_SYNCED[enforces], within=_WITHIN)
        cpu = self._node.cpu() - cpu - self._at_rest * (time.monotonic() - began)
        if enforces and self._session.api.objects("NetworkPolicy"):
            await self._see((OUTSIDE.namespace, OUTSIDE.address), ENDPOINTS[0], passes=False)
        await asyncio.sleep(self._plan.calm)
        memory = await self._session.memory()
        return {"start": ready - started, "cpu": cpu, "rss": memory["now"], "rss_peak": memory["peak"]}

    async def _enforced_at(self) -> float:
        """Wait until kroute has written the policies, maybe later than `kroute.ready`. Returns the node's Unix time."""
        while not (at := (await self._session.statistics()).controllers["network_policy"].last_resync):  # noqa: ASYNC110
            await asyncio.sleep(_APART)
        return at

    async def _called(self) -> Figures:
        """The figures of each way. No packet passes through the proxy, so it is to cost nothing."""
        await self._node.ask("signal", name="SIGSTOP")
        ways = await self._calls.measured()
        await self._node.ask("signal", name="SIGCONT")
        await asyncio.sleep(self._plan.calm)
        return {"ways": ways}

    async def _changes(self) -> Figures:
        """The figures of each kind of change, and of no further one when these have taken long."""
        found: Figures = {}
        began = time.monotonic()
        for name, change in self._workload.changes.items():
            if time.monotonic() < began + _ALL_LONG:
                found[name] = await self._changed(change)
        return found

    async def _changed(self, change: Change) -> Figures:
        """Make and undo a change, again and again, and wait until the kernel has it; then without looking."""
        taken: dict[str, list[float]] = {"comes": [], "goes": []}
        steps = (("comes", self._session.apply, change.passes), ("goes", self._session.delete, not change.passes))
        began = time.monotonic()
        while len(taken["goes"]) < self._plan.changes and not (taken["goes"] and time.monotonic() > began + _LONG):
            for name, make, passes in steps:
                await self._see(change.source, change.destination, passes=not passes)
                look = asyncio.create_task(self._see(change.source, change.destination, passes=passes))
                await asyncio.sleep(_APART)  # it looks before anything changes
                sent = time.time()
                make(change.item)
                taken[name].append(await look - self._session.clock_ahead - sent)
                if taken[name][-1] < 0:
                    raise BenchError(f"{change.title} {name}: the kernel was so before")
                await asyncio.sleep(_APART + taken[name][-1] / 2)
        times = {name: median(each) for name, each in taken.items()}
        await self._session.calibrate(self._plan.calm)
        cpu, began = self._node.cpu(), time.monotonic()
        for _ in taken["goes"]:
            for name, make, _ in steps:
                make(change.item)
                await asyncio.sleep(_APART + 1.5 * times[name])
        cpu = self._node.cpu() - cpu - self._session.baseline * (time.monotonic() - began)
        return {**times, "cpu": cpu / (2 * len(taken["goes"])), "taken": taken}

    async def _see(self, source: tuple[str, str], address: str, *, passes: bool) -> float:
        ends = [(f"/run/netns/{place}", it) for place, it in (source, (ENDPOINT_PLACE.namespace, address))]
        what = {"source": ends[0], "destination": ends[1], "passes": passes, "within": _WITHIN}
        return float(await self._node.ask("see", what="datagrams", **what))

    async def _command(self, script: str) -> None:
        await self._node.ask("command", argv=["bash", "-c", script])


def markdown(result: Mapping[str, Any]) -> str:
    """A table of starts and changes, and one of connections; a column for each proxy."""
    found: Sequence[Figures] = list(result["proxies"].values())
    counts = " / ".join(f"{size:,}" for size in result["sizes"])
    lines = [page.measured({**result, **found[0]})]
    head = f"{result['pods']:,} pods, {result['local']} on the node; {counts} policies"
    tables = {head: [*_starts(), *_changes(result["sizes"][-1])], f"with {counts} policies": _connections()}
    for title, rows in tables.items():
        lines += ["", f"| {title} | {' | '.join(PROXIES[name].title for name in result['proxies'])} |"]
        lines += ["|---|" + "---:|" * len(found)]
        lines += [f"| {name} | {' | '.join(map(text, found))} |" for name, text in rows]
    return "\n".join(lines) + "\n"


Row = tuple[str, Callable[[Figures], str]]


def _starts() -> list[Row]:
    return [
        ("start without network policies: process to all in the kernel", lambda it: time_text(it["without"]["start"])),
        ("its CPU", lambda it: time_text(it["without"]["cpu"])),
        ("start with them", lambda it: _each(it, lambda at: time_text(at["start"]))),
        ("its CPU", lambda it: _each(it, lambda at: time_text(at["cpu"]))),
        ("RSS without", lambda it: mib_text(it["without"]["rss"])),
        ("more with them", lambda it: _each(it, lambda at: mib_text(at["rss"] - it["without"]["rss"]))),
        ("at the peak", lambda it: _each(it, lambda at: mib_text(at["rss_peak"] - it["without"]["rss_peak"]))),
    ]


def _changes(policies: int) -> Iterator[Row]:
    for name, change in Cluster(1, policies=5).changes.items():
        figures = {
            f"with {policies:,}, {change.title} comes: API server to kernel, p50": "comes",
            "goes": "goes",
            "CPU of one of the two": "cpu",
        }
        for title, figure in figures.items():
            yield title, partial(_change, name=name, figure=figure)


def _change(figures: Figures, name: str, figure: str) -> str:
    return time_text(figures["changes"][name][figure]) if name in figures["changes"] else "-"


def _connections() -> Iterator[Row]:
    for way in CALLS:
        figures: dict[str, Callable[[Figures], str]] = {
            f"{WAYS[way].title}: CPU of the node for a connection": lambda it: time_text(it["connect"]["cpu"]),
            "connections a second": lambda it: f"{1 / it['connect']['seconds']:,.0f}",
            "p50 of connect": lambda it: time_text(it["first"]["p50"]),
            "p99 of connect": lambda it: time_text(it["first"]["p99"]),
            "CPU for a request on a kept connection": lambda it: time_text(it["request"]["cpu"]),
        }
        for title, text in figures.items():
            yield title, lambda it, way=way, text=text: _each(it, lambda at: text(at["ways"][way]))  # type: ignore[misc]


def _each(figures: Figures, text: Callable[[Figures], str]) -> str:
    """A value for each number of policies."""
    return " / ".join(map(text, figures["with"].values()))


async def run(plan: Plan, services: int, proxies: Sequence[str]) -> AsyncIterator[dict[str, Figures]]:
    """Measure, and yield the figures so far after each proxy, by its name."""
    workload = Cluster(services, 1, pods_of_all=plan.pods, local=plan.local, policies=plan.sizes[-1])
    found: dict[str, Figures] = {}
    for name in proxies:
        async with node_under_test() as node, Session.open(node, workload, PROXIES[name].firewall) as session:
            found[name] = await _Measurement(session, plan, name, workload).figures()
            found[name] |= {"lab": node.lab, "python": node.python}
        yield found


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.policies", description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--local", type=int, default=110)
    parser.add_argument("--policies", type=int, action="append", help=f"the last one a multiple of 5; default: {SIZES}")
    parser.add_argument("--services", type=int, default=10)
    parser.add_argument("--changes", type=int, default=8, help="of each kind")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--connections", type=int, default=400, help="new ones by each way in a round")
    parser.add_argument("--proxies", default=",".join(PROXIES), help="which, in this order")
    page.add_options(parser, PAGE, FILE)
    chosen = parser.parse_args()
    if not chosen.again:
        with ending_in_a_line("bench.policies"):
            asyncio.run(_write(chosen))
    text = markdown(json.loads(chosen.output.read_text()))
    if chosen.publish:
        page.put_between(page.DOCS / PAGE, MARKS, text)
    print(text)


async def _write(chosen: argparse.Namespace) -> None:
    """Measure, and write the results after each node, so that a later failure loses none of them."""
    proxies = chosen.proxies.split(",")
    if said := kubernetes.missing(KUBE_ROUTER):
        print(f"kube-router is left out: {said}")
        proxies = [name for name in proxies if name != KUBE_ROUTER]
    else:
        kubernetes.required(KUBE_ROUTER)
    calls = datapath.Plan((), 0, (), chosen.rounds, chosen.connections, chosen.connections)
    plan = Plan(chosen.pods, chosen.local, chosen.policies or SIZES, chosen.changes, 4.0, calls)
    result = {**circumstances(), "pods": plan.pods, "local": plan.local, "sizes": plan.sizes}
    async for found in run(plan, chosen.services, proxies):
        result |= {"proxies": found, "load_after": os.getloadavg()[0]}
        chosen.output.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{time.strftime('%H:%M:%S')} {[*found][-1]} is done", flush=True)


if __name__ == "__main__":
    main()
