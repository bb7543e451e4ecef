"""One cluster of one size: the API stand-in, the node under test, and the costs between two moments."""

import asyncio
import bisect
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.node import API_ADDRESS, NodeUnderTest
from bench.workload import NODE, POD_NETWORK, Object, Workload
from kroute.telemetry.statistics import NEWEST_QUESTION, QUESTION, NewestMeasurements, Statistics
from tests.apiserver import ApiServer

READY_WITHIN = 600.0
_CLOCK_READINGS = 5


@dataclass
class Cost:
    """What an agent has done between two moments. Times in seconds, sizes in bytes.

    `cpu` is what the node used beyond the session's baseline; `writes` counts changes that the controllers made
    and chunks that were sent to the kernel; `rounds` are the long rounds of the event loop.
    """

    wall: float = 0.0
    cpu: float = 0.0
    writes: int = 0
    messages: int = 0
    bytes: int = 0
    busy: float = 0.0
    longest_round: float = 0.0
    rounds_over_20_ms: int = 0
    rounds_over_200_ms: int = 0
    latencies: list[float] = field(default_factory=list)
    end: Statistics | None = None


class Session:
    """The state that the phases share. `sent` holds the time and the resourceVersion of each change of a slice."""

    def __init__(self, node: NodeUnderTest, api: ApiServer, workload: Workload, firewall: str) -> None:
        self.node = node
        self.firewall = firewall
        self.api = api
        self.workload = workload
        self.baseline = 0.0
        self.clock_ahead = 0.0
        self.sent_at: list[float] = []
        self.sent_versions: list[int] = []
        self._replaced: Counter[int] = Counter()
        self._kubeconfig = api.kubeconfig(node.shared / "kubeconfig")

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, node: NodeUnderTest, workload: Workload, firewall: str) -> AsyncIterator["Session"]:
        """A session whose API stand-in has the workload. The node has no agent yet; `firewall` is its backend."""
        async with ApiServer(host=API_ADDRESS) as api:
            for item in workload.objects():
                api.apply(item)
            api.compact()
            api.encode_ahead()
            yield cls(node, api, workload, firewall)

    async def calibrate(self, seconds: float) -> None:
        """Measure the node's baseline, its use of the processor at rest. Costs are what exceeds it."""
        began, before = time.monotonic(), self.node.cpu()
        await asyncio.sleep(seconds)
        self.baseline = (self.node.cpu() - before) / (time.monotonic() - began)

    async def compare_clocks(self) -> None:
        """Measure how far the node's clock is ahead of this one."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            asked = time.time()
            theirs = await self.node.ask("clock")
            answered = time.time()
            readings.append((answered - asked, theirs - (asked + answered) / 2))
        self.clock_ahead = min(readings)[1]

    async def start_agent(self, resync_period: str, *, profile: bool = False) -> float:
        """Start kroute and wait until it is ready. Returns when it was started, by this clock."""
        self.api.requests.clear()
        argv = ["run", "--kubeconfig", str(self._kubeconfig), "--node-name", NODE, "--cluster-cidr", POD_NETWORK]
        argv += ["--log-format", "json", "--resync-period", resync_period, "--firewall", self.firewall]
        started: float = await self.node.ask("start", argv=argv, profile=profile)
        await self.node.ask("ready", within=READY_WITHIN)
        return started - self.clock_ahead

    @property
    def first_list(self) -> float:
        """When the agent requested its first list, by this clock."""
        return self.api.requests[0].at

    def next_slice(self, number: int) -> Object:
        """The Service's slice with one more of its pods replaced."""
        self._replaced[number] += 1
        return self.workload.slice(number, self._replaced[number])

    def expected_table(self) -> dict[str, list[str]]:
        """Every ClusterIP with the current addresses of its endpoints."""
        return {
            self.workload.cluster_ip(number): self.workload.pod_ips(number, self._replaced[number])
            for number in range(self.workload.services)
        }

    def add_service(self, number: int) -> None:
        """Create one more Service, with its endpoints."""
        self.api.apply(self.workload.service(number))
        self.api.apply(self.workload.slice(number))

    def delete_service(self, number: int) -> None:
        """Delete a Service and its endpoints."""
        for item in (self.workload.service(number), self.workload.slice(number)):
            self.api.delete(item["kind"], item["metadata"]["name"], item["metadata"]["namespace"])

    def change_slice(self, item: Object) -> None:
        """Replace an EndpointSlice, and record the time."""
        stored = self.api.apply(item)
        self.sent_at.append(time.monotonic())
        self.sent_versions.append(int(stored["metadata"]["resourceVersion"]))

    def unread_for(self, resource_version: str, now: float) -> float:
        """For how many seconds the oldest change has waited that an agent at this version has not read."""
        first = bisect.bisect_right(self.sent_versions, int(resource_version or 0))
        return now - self.sent_at[first] if first < len(self.sent_at) else 0.0

    async def statistics(self) -> Statistics:
        return msgspec.convert(await self.node.ask("question", question=QUESTION), Statistics)

    async def newest(self) -> NewestMeasurements:
        """The agent's individual measurements."""
        return msgspec.convert(await self.node.ask("question", question=NEWEST_QUESTION), NewestMeasurements)

    @contextlib.asynccontextmanager
    async def measured(self) -> AsyncIterator[Cost]:
        """Measure the costs within an `async with`. The `Cost` is complete at its end."""
        cost = Cost()
        before = await self.statistics()
        began, cpu = time.monotonic(), self.node.cpu()
        yield cost
        cost.wall = time.monotonic() - began
        cost.cpu = self.node.cpu() - cpu - self.baseline * cost.wall
        self._count(cost, await self.statistics(), before)
        newest = await self.newest()
        _count_rounds(cost, [it.seconds for it in newest.rounds if it.end > before.now])
        cost.latencies = sorted(it.seconds for it in newest.latencies if it.end > before.now)

    async def cost_since_start(self, started: float) -> Cost:
        """What the agent has done since its start, without processor time. Rounds count from its first list on."""
        cost = Cost(wall=time.time() - started)
        statistics = await self.statistics()
        self._count(cost, statistics, None)
        listed = self.first_list - self.epoch_of(statistics)
        _count_rounds(cost, [it.seconds for it in (await self.newest()).rounds if it.end > listed])
        return cost

    def epoch_of(self, statistics: Statistics) -> float:
        """What to add to a time of the agent's monotonic clock to get a Unix time by this clock."""
        return statistics.unix_time - statistics.now - self.clock_ahead

    @staticmethod
    def _count(cost: Cost, after: Statistics, before: Statistics | None) -> None:
        def difference(count: Any) -> Any:
            return count(after) - (count(before) if before is not None else 0)

        cost.end = after
        cost.writes = difference(writes)
        cost.messages = difference(lambda it: sum(socket.messages for socket in it.sockets.values()))
        cost.bytes = difference(lambda it: sum(socket.bytes for socket in it.sockets.values()))
        cost.busy = difference(lambda it: it.loop.busy)


def writes(statistics: Statistics) -> int:
    """The number of an agent's writes: changes by the controllers, and chunks by the sockets."""
    return sum(it.writes for it in statistics.controllers.values()) + sum(
        it.transactions for it in statistics.sockets.values()
    )


def _count_rounds(cost: Cost, rounds: Sequence[float]) -> None:
    cost.longest_round = max(rounds, default=0.0)
    cost.rounds_over_20_ms = sum(seconds > 0.02 for seconds in rounds)
    cost.rounds_over_200_ms = sum(seconds > 0.2 for seconds in rounds)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that `percent` % of the sorted values do not exceed; NaN if there are no values."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan
