"""One proxy after the other on a node of its own, with the same API server: a start, single changes, churn."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.phases.lengths import BenchError, Figures
from bench.place.node import API_ADDRESS, NodeUnderTest, RunnerError, node_under_test
from bench.scale.control_plane import PORT as API_PORT
from bench.scale.control_plane import ControlPlane
from bench.scale.proxies import KROUTE, KUBE_PROXY_METRICS, PROXIES, Proxy
from bench.workload import NODE, POD_NETWORK, PORT, TARGET_PORT, Object, Workload

RATE = 100
"""Changes per second of churn."""
_STARTS_WITHIN = 900.0
_CHANGED_WITHIN = 120.0
_LEAST_CHANGES, _CHANGES_END_AFTER = 3, 60.0
_COMPLETE_WITHIN = 300.0
_CALM = 6.0
"""Seconds for which an empty node's use of the processor is measured."""
_IDLES = 15.0
_SETTLES_WITHIN = 5.0
_SAMPLE_EVERY = 5.0
_CHANGES_AT_ONCE = 16
_KROUTE_SETTINGS = {
    "KROUTE_NODE_NAME": NODE,
    "KROUTE_CLUSTER_CIDR": POD_NETWORK,
    "KROUTE_LOG_FORMAT": "json",
    "KROUTE_FIREWALL": "nftables",
}

Say = Callable[[str], None]


class Plan(NamedTuple):
    """What is measured. `churn` is in seconds; `changes` are single ones. Others than kroute have `peer_churn`."""

    services: int
    endpoints: int
    nodes: int
    churn: float
    peer_churn: float
    changes: int
    proxies: Sequence[str]


async def run(plan: Plan, directory: Path, say: Say) -> AsyncIterator[dict[str, Figures]]:
    """Measure, and yield the figures so far after each proxy, by its name. `directory` is the control plane's."""
    workload = Workload(plan.services, plan.endpoints, plan.nodes)
    replaced: Counter[int] = Counter()
    found: dict[str, Figures] = {}
    for name in plan.proxies:
        async with node_under_test() as node, ControlPlane(directory) as api:
            if not found:
                began = time.monotonic()
                await api.create(_namespaces(workload))
                await api.create(_new(it) for it in workload.objects())
                say(f"the API server has all objects after {time.monotonic() - began:.0f} s")
            found[name] = await _Measurement(node, api, name, plan, workload, replaced, say).figures()
            found[name] |= {"lab": node.lab, "python": node.python}
        yield found


class _Measurement:
    """All phases of one proxy on one node. `replaced` counts a Service's replaced pods, over all proxies."""

    def __init__(
        self,
        node: NodeUnderTest,
        api: ControlPlane,
        name: str,
        plan: Plan,
        workload: Workload,
        replaced: Counter[int],
        say: Say,
    ) -> None:
        self._node = node
        self._api = api
        self._proxy: Proxy = PROXIES[name]
        self._is_kroute = name == KROUTE
        self._plan = plan
        self._workload = workload
        self._replaced = replaced
        self._say = say
        self._baseline = 0.0
        self._clock_ahead = 0.0

    async def figures(self) -> Figures:
        """Measure. Times in seconds, sizes in bytes, shares of a processor."""
        self._baseline = await self._share(_CALM)
        self._clock_ahead = await self._node.clock_ahead()
        figures = await self._start()
        self._told(figures)
        figures |= await self._changes()
        self._told(figures)
        figures["idle_cpu"] = await self._share(_IDLES) - self._baseline
        figures |= await self._churn()
        figures |= await self._end()
        self._told(figures)
        await self._node.ask("stop")
        return figures

    # ---- phases --------------------------------------------------------------------------------------------------

    async def _start(self) -> Figures:
        """From the start of the process until everything is in the kernel."""
        cpu = self._node.cpu()
        if self._proxy.command is None:
            files = self._api.service_account
            await self._node.ask("join", host=API_ADDRESS, port=API_PORT, files=files)
            started = await self._node.ask("start", settings=_KROUTE_SETTINGS, profile=False)
            await self._node.ask("ready", within=_STARTS_WITHIN)
            ready = await self._node.ask("clock")
        else:
            kubeconfig = self._node.shared / "kubeconfig"
            kubeconfig.write_text(json.dumps(self._api.kubeconfig()))
            started = await self._node.ask("launch", argv=self._proxy.command(kubeconfig))
            ready = await self._seen_start()
        took = ready - started
        cpu = self._node.cpu() - cpu - self._baseline * took
        await self._complete()
        await asyncio.sleep(_SETTLES_WITHIN)
        return {"start": took, "start_cpu": cpu, "rss_started": await self._resident()}

    async def _seen_start(self) -> float:
        """When a proxy other than kroute has written everything, by the node's clock."""
        if self._proxy.says_when:
            return await self._see("first_sync", port=KUBE_PROXY_METRICS, within=_STARTS_WITHIN)
        counts = {"servers": self._workload.services, "real_servers": self._workload.pods}
        return await self._see("all_real_servers", **counts, within=_STARTS_WITHIN)

    async def _changes(self) -> Figures:
        """Replace one endpoint, and wait until the new one is in the kernel, again and again.

        A slow proxy has fewer changes. One that takes longer than `_CHANGED_WITHIN` counts as that.
        """
        taken: list[float] = []
        began = time.monotonic()
        for number in range(self._plan.changes):
            if len(taken) >= _LEAST_CHANGES and time.monotonic() - began > _CHANGES_END_AFTER:
                break
            service = number * 7 % self._workload.services
            item = self._next_slice(service)
            look = asyncio.create_task(self._see_change(service, item))
            await asyncio.sleep(0.5)  # it looks before anything changes
            sent = time.time()
            await self._api.replace(item)
            try:
                taken.append(await look - self._clock_ahead - sent)
            except RunnerError:
                taken.append(_CHANGED_WITHIN)
            await asyncio.sleep(1.0)
        return {"change_p50": median(taken), "change_max": max(taken), "changes": len(taken)}

    async def _see_change(self, service: int, item: Object) -> float:
        """When the Service's new endpoint is in the kernel, by the node's clock."""
        if self._proxy.in_nft:
            name = _name(self._workload.service(service)["metadata"])
            return await self._see("service_chain", name=name, within=_CHANGED_WITHIN)
        newest = (self._replaced[service] - 1) % self._workload.endpoints
        [address] = item["endpoints"][newest]["addresses"]
        vip = self._workload.cluster_ip(service)
        return await self._see("real_server", vip=vip, address=address, within=_CHANGED_WITHIN)

    async def _churn(self) -> Figures:
        """Replace endpoints at a constant rate. In kroute's, etcd is compacted and the API server restarted."""
        seconds = self._plan.churn if self._is_kroute else self._plan.peer_churn
        cpu, began = self._node.cpu(), time.monotonic()
        resident: list[tuple[float, int]] = []
        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(self._sample(began, resident))
            disturbing = group.create_task(self._disturb(seconds)) if self._is_kroute else None
            made = await self._blow(seconds)
            away = await disturbing if disturbing else None
            sampling.cancel()
        wall = time.monotonic() - began
        part = min(60.0, seconds / 3)
        first = [size for at, size in resident if at <= part]
        last = [size for at, size in resident if at >= seconds - part]
        return {
            "churn": wall,
            "churn_changes": made,
            "churn_cpu": (self._node.cpu() - cpu) / wall - self._baseline,
            "rss_first": max(first),
            "rss_last": max(last),
            "rss_peak": max(size for _, size in resident),
            "away": away,
            "series": resident,
        }

    async def _end(self) -> Figures:
        """How long until the kernel has what the API server has, and what is missing if that never comes."""
        began = time.monotonic()
        missed = await self._complete()
        figures: Figures = {"missed": missed, "complete_after": time.monotonic() - began}
        if self._is_kroute:
            code, said = await self._node.ask("kroute", settings=_KROUTE_SETTINGS, arguments=["plan"])
            if code not in {0, 5}:
                raise BenchError(f"kroute plan: {said}")
            figures["plan_differs"] = "" if code == 0 else said
        return figures

    # ---- parts ---------------------------------------------------------------------------------------------------

    async def _blow(self, seconds: float) -> int:
        """Make the changes, each at its time or as soon as the server takes it. Returns how many they were."""
        began, limit = time.monotonic(), asyncio.Semaphore(_CHANGES_AT_ONCE)
        changes = round(seconds * RATE)
        busy: set[int] = set()

        async def change(service: int) -> None:
            try:
                await self._api.replace(self._next_slice(service))
            finally:
                busy.discard(service)
                limit.release()

        async with asyncio.TaskGroup() as group:
            for number in range(changes):
                service = number * 7 % self._workload.services
                await limit.acquire()
                while service in busy:  # noqa: ASYNC110  the changes of one slice keep their order
                    await asyncio.sleep(0.01)
                busy.add(service)
                group.create_task(change(service))
                ahead = began + (number + 1) / RATE - time.monotonic()
                await asyncio.sleep(max(0.0, ahead))
        return changes

    async def _disturb(self, seconds: float) -> float:
        """Compact etcd after a third of the time, and restart the API server after two. Returns how long that took."""
        await asyncio.sleep(seconds / 3)
        self._say(f"etcd is compacted at revision {await self._api.compact()}")
        await asyncio.sleep(seconds / 3)
        await self._api.compact()
        away = await self._api.restart_server()
        self._say(f"the API server was away for {away:.1f} s")
        return away

    async def _sample(self, began: float, resident: list[tuple[float, int]]) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                resident.append((time.monotonic() - began, await self._resident()))
                await asyncio.sleep(_SAMPLE_EVERY)

    async def _complete(self) -> int:
        """Wait until the kernel has what the API server lists now. Returns how many Services differ at last."""
        by_name, by_address = await self._expected()
        end = time.monotonic() + _COMPLETE_WITHIN
        while True:
            if self._proxy.in_nft:
                missed: int = await self._node.ask("nft_differences", expected=by_name)
            else:
                ports = {"port": PORT, "target_port": TARGET_PORT}
                missed = await self._node.ask("differences", expected=by_address, **ports)
            if not missed or time.monotonic() > end:
                return missed
            await asyncio.sleep(1.0)

    async def _expected(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """The addresses of each Service's endpoints as the API server lists them, by its name and by its ClusterIP."""
        services = await self._api.list("/api/v1/services")
        slices = await self._api.list("/apis/discovery.k8s.io/v1/endpointslices")
        vips = {_name(it["metadata"]): it["spec"]["clusterIP"] for it in services}
        del vips["default/kubernetes"]
        by_name = {
            name: [address for endpoint in it["endpoints"] for address in endpoint["addresses"]]
            for it in slices
            if (name := _name(it["metadata"], it["metadata"]["labels"]["kubernetes.io/service-name"])) in vips
        }
        if by_name.keys() != vips.keys() or len(vips) != self._workload.services:
            raise BenchError(f"the API server has {len(vips)} Services and {len(by_name)} slices")
        return by_name, {vips[name]: addresses for name, addresses in by_name.items()}

    def _next_slice(self, service: int) -> Object:
        self._replaced[service] += 1
        return _new(self._workload.slice(service, self._replaced[service]))

    async def _resident(self) -> int:
        memory: Mapping[str, int] = await self._node.ask("memory")
        return memory["now"]

    async def _see(self, what: str, **arguments: Any) -> float:
        seen: float = await self._node.ask("see", what=what, **arguments)
        return seen

    async def _share(self, seconds: float) -> float:
        began, cpu = time.monotonic(), self._node.cpu()
        await asyncio.sleep(seconds)
        return (self._node.cpu() - cpu) / (time.monotonic() - began)

    def _told(self, figures: Figures) -> None:
        short = {name: _rounded(value) for name, value in figures.items() if name != "series"}
        self._say(f"{self._proxy.title}: {short}")


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _name(metadata: Mapping[str, Any], name: str = "") -> str:
    return f"{metadata['namespace']}/{name or metadata['name']}"


def _new(item: Object) -> Object:
    """An object as a client sends it: without what the API server adds."""
    left_out = {"uid", "creationTimestamp", "managedFields", "generateName"}
    return {**item, "metadata": {name: it for name, it in item["metadata"].items() if name not in left_out}}


def _namespaces(workload: Workload) -> list[Object]:
    names = {workload.service(number)["metadata"]["namespace"] for number in range(min(100, workload.services))}
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": it}} for it in sorted(names)]
