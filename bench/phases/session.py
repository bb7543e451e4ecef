"""One cluster of one size: the API stand-in, the node under test, and the costs between two moments."""

import asyncio
import bisect
import contextlib
import ssl
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from bench.phases.cost import Cost
from bench.phases.lengths import BenchError
from bench.place.batch_tools import expected_content
from bench.place.node import API_ADDRESS, NodeUnderTest
from bench.workload import NODE, POD_NETWORK, Object, Workload
from kroute.telemetry.statistics import NEWEST_QUESTION, QUESTION, NewestMeasurements, Statistics
from tests.apiserver import ApiServer
from tests.apiserver.kubeconfig import write as write_kubeconfig

READY_WITHIN = 600.0
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
NO_RESYNCS = {"KROUTE_RESYNC_PERIOD": "24h"}
_TOKEN = "bench-token"
_CALM_WITHIN = 600.0
_COMPLETE_WITHIN = 300.0
_LOOKS_APART = 3.0


class Certificate(NamedTuple):
    """A certificate that is its own authority. `file` is for clients, `context` for the server."""

    file: Path
    context: ssl.SSLContext


def make_certificate(directory: Path, address: str) -> Certificate:
    """Make a certificate for this address, with a key of RSA 2048 as kubeadm's, and put its file into the directory."""
    file, key = directory / "authority.pem", directory / "key.pem"
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=bench")
    names = f"subjectAltName=IP:{address}"
    command = ["openssl", "req", *made, "-addext", names, "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, key)
    return Certificate(file, context)


class _Sent:
    """The changes of one kind that were made: when, and their resourceVersions."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._versions: list[int] = []

    def note(self, version: int) -> None:
        """Note a change that was made just now."""
        self._at.append(time.monotonic())
        self._versions.append(version)

    def unread_for(self, resource_version: str, now: float) -> float:
        """For how many seconds the oldest change has waited that an agent at this version has not read."""
        first = bisect.bisect_right(self._versions, int(resource_version or 0))
        return now - self._at[first] if first < len(self._at) else 0.0


class Session:
    """The state that the phases share."""

    def __init__(self, node: NodeUnderTest, api: ApiServer, workload: Workload, firewall: str) -> None:
        self.node = node
        self.firewall = firewall
        self.api = api
        self.workload = workload
        self.baseline = 0.0
        self.clock_ahead = 0.0
        self._sent: defaultdict[str, _Sent] = defaultdict(_Sent)
        self._replaced: Counter[int] = Counter()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, node: NodeUnderTest, workload: Workload, firewall: str) -> AsyncIterator["Session"]:
        """A session whose API stand-in has the workload, and speaks TLS. `firewall` is the node's backend.

        The node has no agent yet. Its agents are to use a service account, as those of the DaemonSet do.
        """
        made = make_certificate(node.shared, API_ADDRESS)
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
        self.clock_ahead = await self.node.clock_ahead()

    async def start_agent(self, settings: Mapping[str, str] = NO_SETTINGS, *, profile: bool = False) -> float:
        """Start kroute with its defaults and these settings, by their variables, and wait until it is ready.

        Returns when it was started, by this clock.
        """
        self.api.requests.clear()
        started: float = await self.node.ask("start", settings={**self._settings, **settings}, profile=profile)
        await self.node.ask("ready", within=READY_WITHIN)
        return started - self.clock_ahead

    def kubeconfig(self) -> Path:
        """Write the file of another client of the API stand-in."""
        authority = self.node.shared / "authority.pem"
        return write_kubeconfig(self.node.shared / "kubeconfig", self.api.url, {"token": _TOKEN}, authority)

    async def rehearse(self) -> None:
        """Have the program's files in the node's memory before a start is measured."""
        await self.node.ask("rehearse", settings=self._settings, within=READY_WITHIN)

    @property
    def _settings(self) -> dict[str, str]:
        """Variables, as the DaemonSet's containers have them. Flags would have the tables of other proxies loaded."""
        return {
            "KROUTE_NODE_NAME": NODE,
            "KROUTE_CLUSTER_CIDR": POD_NETWORK,
            "KROUTE_LOG_FORMAT": "json",
            "KROUTE_FIREWALL": self.firewall,
        }

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
        self.apply(self.workload.service(number))
        self.apply(self.workload.slice(number))

    def delete_service(self, number: int) -> None:
        """Delete a Service and its endpoints."""
        self.delete(self.workload.service(number))
        self.delete(self.workload.slice(number))

    def apply(self, item: Object) -> None:
        """Create or replace an object."""
        self._sent[item["kind"]].note(int(self.api.apply(item)["metadata"]["resourceVersion"]))

    def delete(self, item: Object) -> None:
        """Delete an object."""
        self.api.delete(item["kind"], item["metadata"]["name"], item["metadata"].get("namespace", ""))
        self._sent[item["kind"]].note(self.api.store.revision)

    def unread_for(self, statistics: Statistics, now: float) -> float:
        """For how many seconds the oldest change has waited that the agent had not read when it answered this."""
        unread = (sent.unread_for(statistics.watches[kind].resource_version, now) for kind, sent in self._sent.items())
        return max(unread, default=0.0)

    async def calm(self) -> None:
        """Wait until every change is in the kernel, for ten minutes at most.

        Changes that are missing then count as lost.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CALM_WITHIN):
                while not await self._is_calm():  # noqa: ASYNC110  the agent sets no event here
                    await asyncio.sleep(0.2)

    async def _is_calm(self) -> bool:
        if self.unread_for(await self.statistics(), time.monotonic()) > 0:
            return False
        return not (await self.statistics()).latency.waiting  # what had been read is planned before another answer

    async def complete(self) -> None:
        """Wait until the kernel holds the workload, and nothing else: no real server of a replaced pod, for instance.

        Raises BenchError if that is not so after five minutes: nothing is connected to what drains.
        """
        expected = expected_content(self.workload)
        for _ in range(round(_COMPLETE_WITHIN / _LOOKS_APART)):
            if await self.node.ask("content") == expected:
                return
            await asyncio.sleep(_LOOKS_APART)
        raise BenchError(f"the kernel has {await self.node.ask('content')} instead of {expected}")

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
        """Measure the costs within an `async with`. The `Cost` is complete at its end.

        What the changes in it need afterwards, on a slow machine, counts except for the processor time.
        """
        cost = Cost()
        before = await self.statistics()
        began, cpu = time.monotonic(), self.node.cpu()
        yield cost
        cost.wall = time.monotonic() - began
        cost.cpu = self.node.cpu() - cpu - self.baseline * cost.wall
        await self.calm()
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
