"""The content of the status page, as JSON."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from kroute import __version__
from kroute.broadcaster import Broadcaster
from kroute.inspect import snapshot
from kroute.inspect.snapshot import ProblemRow, VirtualServerRow
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import VirtualServerKey, VirtualServerState
from kroute.model.objects import ObjectKey
from kroute.model.plan import Plan, ServicePlan
from kroute.recent_events import RecentEvent, RecentEvents
from kroute.reconcile.batches import sliced
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.settings import Settings
from kroute.telemetry.health import Health, HealthEndpoint, ProbeAnswer
from kroute.telemetry.kernel_reader import KernelReader

SERVICES_A_PAGE = 50
MOST_PROBLEMS = 100
LONGEST_SEARCH = 320
"""Characters: the longest NAMESPACE/NAME."""
SHORTEST_REFRESH = 5.0


class ControllerRow(msgspec.Struct):
    """One controller. `depth` and `lag` (seconds) are those of its queue."""

    name: str
    depth: int
    lag: float
    writes: int
    repairs: int
    failures: int
    waiting: int
    last_resync: float


class ServicesPage(msgspec.Struct):
    """One page of the Services that match a search, out of `total`. Pages are counted from 1."""

    total: int
    matching: int
    page: int
    pages: int
    virtual_servers: list[VirtualServerRow]


class Status(msgspec.Struct):
    """Everything on the page. `refresh_after` is how many seconds to wait before the next request."""

    version: str
    node: str
    health: ProbeAnswer
    overview: dict[str, int | str]
    problems: list[ProblemRow]
    problems_total: int
    services: ServicesPage
    controllers: list[ControllerRow]
    changes: list[RecentEvent]
    refresh_after: float


class StatusPage:
    """Builds the status with one page of Services, so that its size does not depend on how many there are."""

    def __init__(
        self,
        settings: Settings,
        broadcaster: Broadcaster,
        controllers: Callable[[], Mapping[str, ControllerStatistics]],
        health: Health,
        kernel: KernelReader,
        recent: RecentEvents,
    ) -> None:
        self._settings = settings
        self._broadcaster = broadcaster
        self._controllers = controllers
        self._health = health
        self._kernel = kernel
        self._recent = recent

    async def status(self, search: str, page: int) -> Status:
        """The status, with this page of the Services whose name or one of whose addresses contains `search`.

        If the kernel cannot be read, the virtual servers are shown as missing, and the overview says why.
        """
        plans = self._broadcaster.services
        services, shown = await _services_page(plans, search[:LONGEST_SEARCH], page)
        readable = "yes"
        found: Mapping[VirtualServerKey, VirtualServerState] = {}
        try:
            found = await self._kernel.states({server.key for plan in shown for server in plan.virtual_servers})
        except KernelError as error:
            readable = str(error)
        services.virtual_servers = snapshot.of_agent(shown, found).virtual_servers
        problems = _problems(self._broadcaster.plans)
        return Status(
            version=__version__,
            node=self._settings.node_name,
            health=self._health.look(HealthEndpoint.HEALTHZ),
            overview={
                "ready": "yes" if self._health.look(HealthEndpoint.READYZ).healthy else "no",
                "firewall": self._settings.firewall,
                "virtual servers": sum(len(plan.virtual_servers) for plan in plans.values()),
                "kernel readable": readable,
            },
            problems=problems[:MOST_PROBLEMS],
            problems_total=len(problems),
            services=services,
            controllers=self._controller_rows(),
            changes=list(self._recent.newest_first),
            refresh_after=max(SHORTEST_REFRESH, self._kernel.worth),
        )

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


def _problems(plans: Iterable[Plan]) -> list[ProblemRow]:
    return [
        ProblemRow(plan.service_name, problem.reason, problem.message)
        for plan in sorted((it for it in plans if it.problems), key=lambda it: it.key)
        for problem in plan.problems
    ]


async def _services_page(
    plans: Mapping[ObjectKey, ServicePlan], search: str, page: int
) -> tuple[ServicesPage, list[ServicePlan]]:
    """The page, still without its virtual servers, and the plans on it. Other tasks run in between."""
    services = list(plans.values())
    matching: list[ServicePlan] = []
    async for batch in sliced(services):
        matching += [plan for plan in batch if not search or _matches(plan, search.lower())]
    matching.sort(key=lambda plan: plan.key)
    pages = max(1, -(-len(matching) // SERVICES_A_PAGE))
    page = min(max(1, page), pages)
    shown = matching[(page - 1) * SERVICES_A_PAGE : page * SERVICES_A_PAGE]
    return ServicesPage(len(services), len(matching), page, pages, []), shown


def _matches(plan: ServicePlan, search: str) -> bool:
    return search in str(plan.key) or any(search in server.key.address for server in plan.virtual_servers)
