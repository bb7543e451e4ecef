"""An agent as its clients see it: real sockets on loopback, controllers that tests can fail, and a kernel in memory."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from kroute.base.histogram import Histogram
from kroute.checks.ownership import Ownership
from kroute.controllers.node_controllers import OptionalControllers
from kroute.firewall.backend import Choice
from kroute.firewall.sets import SetFill
from kroute.inspect.policies import Enforced
from kroute.inspect.status import AllocatorView
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import Traffic, VirtualServerKey, VirtualServerState
from kroute.kernel.netlink.netlink_socket import NetlinkStatistics
from kroute.planning.catalog import Catalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.settings import ListenAddress
from kroute.telemetry.agent_parts import AgentParts
from kroute.telemetry.changes import ChangeObserver
from kroute.telemetry.events import EventRecorder
from kroute.telemetry.loop_watch import LoopWatch
from kroute.telemetry.observation import Observation
from kroute.telemetry.statistics import Statistics
from kroute.watchers.kubernetes.requests import ApiUse, RequestStatistics, WatchStatistics
from tests.builders import facts, settings
from tests.unit.load_balancer import LOCALHOST, free_ports

CONTROLLERS = ("service_proxy", "route_fix", "masquerade", "health_checks")


class Workers:
    """Stands in for NodeControllers."""

    def __init__(self) -> None:
        self.is_live = True
        self.optional = OptionalControllers()
        self.faults: list[str] = []
        self.taken_over = 0
        self.counters = {name: ControllerStatistics(last_success=1_700_000_000.0) for name in CONTROLLERS}
        self.fills: list[SetFill] = [SetFill("KROUTE-VIP", 3, 262_144, 2_097_152)]
        self.durations = {name: Histogram((0.1, 1.0)) for name in CONTROLLERS}

    def complaints(self) -> list[str]:
        return list(self.faults)

    def statistics(self) -> Mapping[str, ControllerStatistics]:
        return self.counters

    def passes(self) -> Mapping[str, Histogram]:
        return self.durations

    def set_fills(self) -> list[SetFill]:
        return self.fills

    def ejections(self) -> int:
        return 2

    def refuted_ejections(self) -> int:
        return 3

    async def live(self) -> None:
        return


class Kernel:
    """Stands in for Ipvs: a reading returns what a test has put in."""

    def __init__(self) -> None:
        self.table: dict[VirtualServerKey, VirtualServerState] = {}
        self.passed: dict[VirtualServerKey, Traffic] = {}
        self.readings = 0
        self.refuses = False

    async def __aenter__(self) -> "Kernel":
        if self.refuses:
            raise KernelError("the kernel lacks the netlink family IPVS; load ip_vs")
        return self

    async def __aexit__(self, *_exc: object) -> None:
        return

    async def scan(
        self, _expected: Collection[VirtualServerKey] = ()
    ) -> AsyncIterator[list[tuple[VirtualServerKey, VirtualServerState]]]:
        self.readings += 1
        for key, state in list(self.table.items()):
            yield [(key, state)]

    async def traffic(self) -> dict[VirtualServerKey, Traffic]:
        return dict(self.passed)


async def _no_traces() -> frozenset[str]:
    return frozenset()


class Observed:
    """An Observation and its sources. `problems` and `created` hold what it reports about the node."""

    def __init__(
        self, policies: Enforced | None = None, allocator: AllocatorView | None = None, **changes: object
    ) -> None:
        self.health_port, self.metrics_port, self.own_port = free_ports(3)
        chosen = {
            "healthz_bind_address": ListenAddress(LOCALHOST, self.health_port),
            "metrics_bind_address": ListenAddress(LOCALHOST, self.metrics_port),
            "own_bind_address": ListenAddress(LOCALHOST, self.own_port),
            **changes,
        }
        self.settings = settings(**chosen)
        self.broadcaster = Broadcaster()
        self.queues = [self.broadcaster.subscribe(name) for name in CONTROLLERS]
        self.workers = Workers()
        self.kernel = Kernel()
        self.watches = {
            kind: WatchStatistics(1, 2, 30, failures=0, denied=0, objects=12, malformed=0, resource_version="7")
            for kind in ("Service", "EndpointSlice", "Node")
        }
        self.requests = RequestStatistics()
        self.changes = ChangeObserver(self.settings.node_name)
        self.faults: list[str] = []
        self.created: list[dict[str, object]] = []
        self.recorder = EventRecorder(self.settings.node_name, lambda _: "", self)
        self.catalog = Catalog(self.settings, facts(name=self.settings.node_name))
        self.ownership = Ownership(
            self.settings,
            report=self.recorder.report_on_node,
            take_back=lambda _: None,
            api=None,
            traces=_no_traces,
        )
        self.ownership.is_ours.set()
        self.parts = AgentParts(
            settings=self.settings,
            firewall=Choice("nftables", "the test says so"),
            catalog=self.catalog,
            broadcaster=self.broadcaster,
            controllers=self.workers,
            changes=self.changes,
            statistics=self.statistics,
            ownership=self.ownership,
            faults=lambda: self.faults,
            open_ipvs=lambda: self.kernel,
            policies=policies,
            allocator=(lambda: allocator) if allocator is not None else None,
        )
        self.observation = Observation(self.parts, self.recorder)

    def statistics(self) -> Statistics:
        return Statistics(
            watches=self.watches,
            queues=self.broadcaster.statistics(),
            controllers=dict(self.workers.counters),
            sockets={"ipvs": NetlinkStatistics(messages=7, bytes=700, sends=2)},
            loop=LoopWatch().statistics,
            latency=self.changes.statistics(),
            api=ApiUse("https://admin:SECRET@192.0.2.1:6443", requests=self.requests.series()),
        )

    async def create(self, _path: str, body: Mapping[str, object]) -> None:
        """Keep an Event."""
        self.created.append(dict(body))

    async def patch(self, _path: str, _patch: Mapping[str, object]) -> None:
        """Take the count of an Event that is kept."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Observe, and write Events, during the block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.observation.run()), group.create_task(self.recorder.run())]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
