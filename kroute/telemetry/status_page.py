"""The status page, as JSON: the node with its Services, searched, filtered and sorted; and one Service in full."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import msgspec

from kroute.base import logs
from kroute.base.logs import RecentEvent
from kroute.inspect import snapshot
from kroute.inspect.figures import Figures, Rates
from kroute.inspect.snapshot import VirtualServerRow
from kroute.inspect.status import Status, StatusProblem, plan_problem
from kroute.kernel.clients import IpvsReader
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import Traffic, VirtualServerKey, VirtualServerState
from kroute.model.document import View
from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan, Vip
from kroute.planning.endpoint_reasons import FrontendView
from kroute.reconcile.batches import in_turns, sliced
from kroute.reconcile.broadcaster import QueueStatistics
from kroute.reconcile.comparison.virtual_servers import Condition
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.telemetry.agent_parts import AgentParts
from kroute.telemetry.agent_status import AgentStatus
from kroute.telemetry.health import Health, HealthEndpoint, ProbeAnswer
from kroute.telemetry.kernel_reader import RateMeter

SHORTEST_REFRESH = 5.0
MOST_ENDPOINTS = 500
"""Endpoints of one Service, of all its frontends together, that the page names."""
SERVICES_A_PAGE = 50
LONGEST_SEARCH = 320
"""Characters: the longest NAMESPACE/NAME."""


class PageRow(View):
    """One Service. `address` is its first virtual server. `rates` is None until they are known."""

    service: str
    state: Condition | None
    address: str
    figures: Figures
    rates: Rates | None
    problems: int


class ServicesPage(View):
    """One page of the Services that match, out of `total`. Pages are counted from 1."""

    total: int
    matching: int
    page: int
    pages: int
    rows: list[PageRow]


class Question(NamedTuple):
    """What a viewer asks for. Whatever is malformed in a question has its default.

    `search` is part of a name or address, `only` a key of FILTERS or empty, `sort` a key of ORDERS.
    """

    search: str = ""
    only: str = ""
    sort: str = "service"
    descending: bool = False
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Read the query of a request."""
        only, sort, page = query.get("only", ""), query.get("sort", ""), query.get("page", "")
        return cls(
            query.get("search", "")[:LONGEST_SEARCH].lower(),
            only if only in FILTERS else "",
            sort if sort in ORDERS else "service",
            query.get("order") == "descending",
            int(page) if page.isascii() and page.isdigit() and len(page) < 10 else 1,
        )


FILTERS: Mapping[str, Callable[[PageRow], bool]] = {
    "problems": lambda row: row.problems > 0 or row.state not in {None, Condition.SERVING},
    "serving": lambda row: row.state == Condition.SERVING,
    "refusing": lambda row: row.state == Condition.REFUSING,
    "missing": lambda row: row.state == Condition.MISSING,
    "draining": lambda row: row.figures.draining + row.figures.ejected > 0,
    "busy": lambda row: row.figures.active > 0,
}
"""Which Services to list."""

_STATES = (Condition.SERVING, None, Condition.REFUSING, Condition.MISSING)
ORDERS: Mapping[str, Callable[[PageRow], Any]] = {
    "service": lambda row: row.service,
    "state": lambda row: (_STATES.index(row.state), row.problems),
    "realServers": lambda row: row.figures.serving,
    "active": lambda row: row.figures.active,
    "connections": lambda row: row.rates.connections if row.rates else 0.0,
    "packets": lambda row: row.rates.packets_in + row.rates.packets_out if row.rates else 0.0,
}
"""By what to sort them. Those that are equal are in the order of their names."""


async def services_page(
    plans: Mapping[ObjectKey, ServicePlan],
    figures: Mapping[ObjectKey, Figures],
    rates_of: Callable[[ObjectKey], Rates | None],
    question: Question,
) -> ServicesPage:
    """The page of these plans that a viewer asks for. Other tasks run in between."""
    services = list(plans.values())
    matching: list[PageRow] = []
    async for batch in sliced(services):
        found = [plan for plan in batch if not question.search or _contains(plan, question.search)]
        rows = [_row(plan, figures.get(plan.key), rates_of(plan.key)) for plan in found]
        matching += [row for row in rows if not question.only or FILTERS[question.only](row)]
    if question.sort != "service":
        matching.sort(key=ORDERS["service"])
    matching.sort(key=ORDERS[question.sort], reverse=question.descending)
    pages = max(1, -(-len(matching) // SERVICES_A_PAGE))
    page = min(max(1, question.page), pages)
    shown = matching[(page - 1) * SERVICES_A_PAGE : page * SERVICES_A_PAGE]
    for row in shown:
        row.address = _first_address(plans.get(ObjectKey.parse(row.service)))
    return ServicesPage(len(services), len(matching), page, pages, shown)


def _contains(plan: ServicePlan, search: str) -> bool:
    return search in str(plan.key) or any(search in server.key.address for server in plan.virtual_servers)


def _first_address(plan: ServicePlan | None) -> str:
    return str(plan.virtual_servers[0].key) if plan is not None and plan.virtual_servers else ""


def _row(plan: ServicePlan, figures: Figures | None, rates: Rates | None) -> PageRow:
    known = figures or Figures(len(plan.virtual_servers), missing=len(plan.virtual_servers))
    return PageRow(
        service=str(plan.key),
        state=known.state,
        address="",  # only for those that are shown
        figures=known,
        rates=rates,
        problems=len(plan.problems),
    )


class Content(View):
    """Everything on the page. `rates` are those of all Services together, None until they are known.

    `refresh_after` is how many seconds to wait before the next request.
    """

    health: ProbeAnswer
    status: Status
    rates: Rates | None
    services: ServicesPage
    controllers: dict[str, ControllerStatistics]
    queues: list[QueueStatistics]
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
    """Builds the page. Its size does not depend on how many Services there are."""

    def __init__(self, parts: AgentParts, health: Health, status: AgentStatus) -> None:
        self._parts = parts
        self._health = health
        self._status = status
        self._meter = RateMeter(status.kernel)

    async def content(self, question: Question) -> Content:
        """The page. If the kernel cannot be read, virtual servers are shown as missing, and a problem says why."""
        try:
            figures = (await self._meter.read()).services
        except KernelError:
            figures = {}
        return Content(
            health=self._health.look(HealthEndpoint.HEALTHZ),
            status=await self._status.status(),
            rates=self._meter.total,
            services=await services_page(self._parts.broadcaster.services, figures, self._meter.rates_of, question),
            controllers=self._parts.controllers.statistics(),
            queues=self._parts.broadcaster.statistics(),
            changes=list(logs.RECENT.newest_first),
            refresh_after=self._refresh_after,
        )

    async def service(self, name: str) -> ServiceInFull | None:
        """One Service, `NAMESPACE/NAME`; None if no Service of that name is planned."""
        key = ObjectKey.parse(name)
        plan = self._parts.broadcaster.services.get(key)
        if plan is None:
            return None
        unreadable = ""
        table: Mapping[VirtualServerKey, VirtualServerState] = {}
        traffic: Mapping[VirtualServerKey, Traffic] = {}
        try:
            table, traffic = await self._status.kernel.read(lambda ipvs: _state_and_traffic(plan, ipvs))
        except KernelError as error:
            unreadable = str(error)
        shown = snapshot.of_agent([plan], table)
        shown.add_traffic(traffic)
        view = await in_turns(self._parts.catalog.explaining(key))
        frontends, omitted = _bounded(view.frontends if view is not None else [])
        return ServiceInFull(
            service=str(key),
            time=time.monotonic(),
            vips=list(plan.vips),
            virtual_servers=shown.virtual_servers,
            frontends=frontends,
            omitted=omitted,
            problems=[plan_problem(plan.service_name, problem) for problem in plan.problems],
            unreadable=unreadable,
            refresh_after=self._refresh_after,
        )

    @property
    def _refresh_after(self) -> float:
        return max(SHORTEST_REFRESH, self._status.kernel.worth)


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
