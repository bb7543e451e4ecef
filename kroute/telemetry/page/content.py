"""The content of the status page, as JSON: the node with a list of Services, and one Service in full."""

import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from kroute.broadcaster import Broadcaster
from kroute.inspect import snapshot, status_problems
from kroute.inspect.snapshot import TrafficCounts, VirtualServerRow
from kroute.inspect.status import Status, StatusProblem
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Traffic, VirtualServerKey, VirtualServerState
from kroute.model.document import View
from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan, Vip
from kroute.planning.catalog import Catalog
from kroute.planning.endpoint_reasons import FrontendView
from kroute.recent_events import RecentEvent, RecentEvents
from kroute.reconcile.batches import in_turns
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.telemetry.health import Health, HealthEndpoint, ProbeAnswer
from kroute.telemetry.kernel_reader import IpvsReader, KernelReader
from kroute.telemetry.page.readings import NOTHING, Rates, Readings
from kroute.telemetry.page.services import Question, ServicesPage, services_page

SHORTEST_REFRESH = 5.0
MOST_ENDPOINTS = 500
"""Endpoints of one Service, of all its frontends together, that the page names."""


class ControllerRow(View):
    """One controller. `depth` and `lag` (seconds) are those of its queue."""

    name: str
    depth: int
    lag: float
    writes: int
    repairs: int
    failures: int
    waiting: int
    last_resync: float


class Content(View):
    """Everything on the page. `rates` are those of all Services together, None until they are known.

    `refresh_after` is how many seconds to wait before the next request.
    """

    health: ProbeAnswer
    status: Status
    rates: Rates | None
    services: ServicesPage
    controllers: list[ControllerRow]
    changes: list[RecentEvent]
    refresh_after: float


class ServiceInFull(View):
    """One Service. `frontends` say of each endpoint why it serves or does not; `omitted` is how many are left out.

    `time` is in seconds of a monotonic clock: a viewer computes rates from the traffic of two answers.
    """

    service: str
    time: float
    vips: list[Vip]
    virtual_servers: list[VirtualServerRow]
    frontends: list[FrontendView]
    omitted: int
    problems: list[StatusProblem]
    unreadable: str
    refresh_after: float


class StatusPage:
    """Builds the page. Its size does not depend on how many Services there are. `node_status` is what is wrong."""

    def __init__(
        self,
        catalog: Catalog,
        broadcaster: Broadcaster,
        controllers: Callable[[], Mapping[str, ControllerStatistics]],
        health: Health,
        kernel: KernelReader,
        recent: RecentEvents,
        node_status: Callable[[], Awaitable[Status]],
    ) -> None:
        self._catalog = catalog
        self._broadcaster = broadcaster
        self._controllers = controllers
        self._health = health
        self._recent = recent
        self._node_status = node_status
        self.use(kernel)

    def use(self, kernel: KernelReader) -> None:
        """Read by this reader from now on."""
        self._kernel = kernel
        self._readings = Readings(kernel, lambda: list(self._broadcaster.services.values()))

    async def content(self, question: Question) -> Content:
        """The page. If the kernel cannot be read, virtual servers are shown as missing, and a problem says why."""
        try:
            reading = await self._readings.read()
        except KernelError:
            reading = NOTHING
        readings = self._readings
        return Content(
            health=self._health.look(HealthEndpoint.HEALTHZ),
            status=await self._node_status(),
            rates=readings.total,
            services=await services_page(self._broadcaster.services, reading.services, readings.rates_of, question),
            controllers=self._controller_rows(),
            changes=list(self._recent.newest_first),
            refresh_after=self._refresh_after,
        )

    async def service(self, name: str) -> ServiceInFull | None:
        """One Service, `NAMESPACE/NAME`; None if no Service of that name is planned."""
        key = ObjectKey.parse(name)
        plan = self._broadcaster.services.get(key)
        if plan is None:
            return None
        unreadable = ""
        table: Mapping[VirtualServerKey, VirtualServerState] = {}
        traffic: Mapping[VirtualServerKey, Traffic] = {}
        try:
            table, traffic = await self._kernel.read(lambda ipvs: _state_and_traffic(plan, ipvs))
        except KernelError as error:
            unreadable = str(error)
        rows = snapshot.of_agent([plan], table).virtual_servers
        for row in rows:
            row.traffic = TrafficCounts(*counted) if (counted := traffic.get(row.key)) is not None else None
        frontends, omitted = _bounded(await self._frontends(key))
        problems = [status_problems.of_plan(plan.service_name, it) for it in plan.problems]
        return ServiceInFull(
            str(key), time.monotonic(), list(plan.vips), rows, frontends, omitted, problems, unreadable,
            self._refresh_after,
        )  # fmt: skip

    @property
    def _refresh_after(self) -> float:
        return max(SHORTEST_REFRESH, self._kernel.worth)

    async def _frontends(self, key: ObjectKey) -> list[FrontendView]:
        view = await in_turns(self._catalog.explaining(key))
        return view.frontends if view is not None else []

    def _controller_rows(self) -> list[ControllerRow]:
        queues = {queue.subscriber: queue for queue in self._broadcaster.statistics()}
        return [
            ControllerRow(
                name=name,
                depth=queues[name].depth,
                lag=queues[name].lag,
                writes=each.writes,
                repairs=each.repairs,
                failures=each.failures,
                waiting=each.waiting,
                last_resync=each.last_resync,
            )
            for name, each in self._controllers().items()
        ]


async def _state_and_traffic(
    plan: ServicePlan, ipvs: IpvsReader
) -> tuple[Mapping[VirtualServerKey, VirtualServerState], Mapping[VirtualServerKey, Traffic]]:
    keys = {server.key for server in plan.virtual_servers}
    table: dict[VirtualServerKey, VirtualServerState] = {
        key: state async for part in ipvs.scan(keys) for key, state in part if key in keys
    }
    return table, await ipvs.traffic()


def _bounded(frontends: list[FrontendView]) -> tuple[list[FrontendView], int]:
    """The frontends with at most MOST_ENDPOINTS endpoints of all of them, and how many are left out."""
    room, omitted, kept = MOST_ENDPOINTS, 0, []
    for frontend in frontends:
        shown = frontend.endpoints[:room]
        omitted += len(frontend.endpoints) - len(shown)
        room -= len(shown)
        kept.append(msgspec.structs.replace(frontend, endpoints=shown))
    return kept, omitted
