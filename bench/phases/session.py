"""One cluster of one size: the API stand-in, the node under test, and the costs between two moments."""

import asyncio
import bisect
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import msgspec

from bench.phases.cost import Cost
from bench.place import certificate
from bench.place.node import API_ADDRESS, NodeUnderTest
from bench.workload import NODE, POD_NETWORK, Object, Workload
from kroute.telemetry.statistics import NEWEST_QUESTION, QUESTION, NewestMeasurements, Statistics
from tests.apiserver import ApiServer

READY_WITHIN = 600.0
NO_RESYNCS = ("--resync-period", "24h")
_CLOCK_READINGS = 5
_TOKEN = "bench-token"


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

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, node: NodeUnderTest, workload: Workload, firewall: str) -> AsyncIterator["Session"]:
        """A session whose API stand-in has the workload, and speaks TLS. `firewall` is the node's backend.

        The node has no agent yet. Its agents are to use a service account, as those of the DaemonSet do.
        """
        made = certificate.make(node.shared, API_ADDRESS)
        async with ApiServer(host=API_ADDRESS, token=_TOKEN, tls=made.context) as api:
            for item in workload.objects():
                api.apply(item)
            api.compact()
            api.encode_ahead()
            server = urlsplit(api.url)
            files = {"token": _TOKEN, "ca.crt": made.file.read_text()}
            await node.ask("join", host=server.hostname, port=server.port, files=files)
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

    async def start_agent(self, *flags: str, profile: bool = False) -> float:
        """Start kroute with its defaults and these flags, and wait until it is ready.

        Returns when it was started, by this clock.
        """
        self.api.requests.clear()
        started: float = await self.node.ask("start", argv=self._argv(*flags), profile=profile)
        await self.node.ask("ready", within=READY_WITHIN)
        return started - self.clock_ahead

    async def rehearse(self) -> None:
        """Have the program's files in the node's memory before a start is measured."""
        await self.node.ask("rehearse", argv=self._argv(), within=READY_WITHIN)

    def _argv(self, *flags: str) -> list[str]:
        argv = ["run", "--node-name", NODE, "--cluster-cidr", POD_NETWORK, "--log-format", "json"]
        return [*argv, "--firewall", self.firewall, *flags]

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

    async def memory(self) -> dict[str, int]:
        """The agent's resident memory in bytes: `now`, and at its `peak`."""
        found: dict[str, int] = await self.node.ask("memory")
        return found

    @contextlib.asynccontextmanager
    async def measured(self) -> AsyncIterator[Cost]:
        """Measure the costs within an `async with`. The `Cost` is complete at its end."""
        cost = Cost()
        before = await self.statistics()
        began, cpu = time.monotonic(), self.node.cpu()
        yield cost
        cost.wall = time.monotonic() - began
        cost.cpu = self.node.cpu() - cpu - self.baseline * cost.wall
        cost.count(await self.statistics(), before)
        newest = await self.newest()
        cost.count_rounds([it.seconds for it in newest.rounds if it.end > before.now])
        cost.latencies = sorted(it.seconds for it in newest.latencies if it.end > before.now)

    async def cost_since_start(self, started: float) -> Cost:
        """What the agent has done since its start, without processor time. Rounds count from its first list on."""
        cost = Cost(wall=time.time() - started)
        statistics = await self.statistics()
        cost.count(statistics, None)
        listed = self.first_list - self.epoch_of(statistics)
        cost.count_rounds([it.seconds for it in (await self.newest()).rounds if it.end > listed])
        return cost

    async def completions(self) -> list[float]:
        """When each of the newest plans was complete in the kernel, as Unix times by this clock."""
        epoch = self.epoch_of(await self.statistics())
        return sorted(it.end + epoch for it in (await self.newest()).latencies)

    def epoch_of(self, statistics: Statistics) -> float:
        """What to add to a time of the agent's monotonic clock to get a Unix time by this clock."""
        return statistics.unix_time - statistics.now - self.clock_ahead
