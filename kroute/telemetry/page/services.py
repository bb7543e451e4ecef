"""The list of Services on the status page: searched, filtered, sorted, and cut into pages."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

from kroute.comparison.virtual_servers import Condition
from kroute.model.document import View
from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan
from kroute.reconcile.batches import sliced
from kroute.telemetry.page.readings import Figures, Rates

SERVICES_A_PAGE = 50
LONGEST_SEARCH = 320
"""Characters: the longest NAMESPACE/NAME."""
_UNREAD = Figures(state=Condition.MISSING)


class ServiceRow(View):
    """One Service. `address` is its first virtual server. Real servers are counted by condition.

    `rates` is None until they are known.
    """

    service: str
    state: Condition | None
    address: str
    virtual_servers: int
    serving: int
    draining: int
    missing: int
    active: int
    inactive: int
    rates: Rates | None
    problems: int


class ServicesPage(View):
    """One page of the Services that match, out of `total`. Pages are counted from 1."""

    total: int
    matching: int
    page: int
    pages: int
    rows: list[ServiceRow]


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


FILTERS: Mapping[str, Callable[[ServiceRow], bool]] = {
    "problems": lambda it: it.problems > 0 or it.state not in {None, Condition.SERVING},
    "serving": lambda it: it.state == Condition.SERVING,
    "refusing": lambda it: it.state == Condition.REFUSING,
    "missing": lambda it: it.state == Condition.MISSING,
    "draining": lambda it: it.draining > 0,
    "busy": lambda it: it.active > 0,
}
"""Which Services to list."""

_STATES = (Condition.SERVING, None, Condition.REFUSING, Condition.MISSING)
ORDERS: Mapping[str, Callable[[ServiceRow], Any]] = {
    "service": lambda it: it.service,
    "state": lambda it: (_STATES.index(it.state), it.problems),
    "realServers": lambda it: it.serving,
    "active": lambda it: it.active,
    "connections": lambda it: it.rates.connections if it.rates else 0.0,
    "packets": lambda it: it.rates.packets_in + it.rates.packets_out if it.rates else 0.0,
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
    matching: list[ServiceRow] = []
    async for batch in sliced(services):
        matching += _matching(batch, figures, rates_of, question)
    if question.sort != "service":
        matching.sort(key=ORDERS["service"])
    matching.sort(key=ORDERS[question.sort], reverse=question.descending)
    pages = max(1, -(-len(matching) // SERVICES_A_PAGE))
    page = min(max(1, question.page), pages)
    shown = matching[(page - 1) * SERVICES_A_PAGE : page * SERVICES_A_PAGE]
    for row in shown:
        row.address = _first_address(plans.get(ObjectKey.parse(row.service)))
    return ServicesPage(len(services), len(matching), page, pages, shown)


def _matching(
    plans: Iterable[ServicePlan],
    figures: Mapping[ObjectKey, Figures],
    rates_of: Callable[[ObjectKey], Rates | None],
    question: Question,
) -> list[ServiceRow]:
    found = [plan for plan in plans if not question.search or _contains(plan, question.search)]
    rows = [_row(plan, figures.get(plan.key), rates_of(plan.key)) for plan in found]
    return [row for row in rows if not question.only or FILTERS[question.only](row)]


def _contains(plan: ServicePlan, search: str) -> bool:
    return search in str(plan.key) or any(search in server.key.address for server in plan.virtual_servers)


def _first_address(plan: ServicePlan | None) -> str:
    return str(plan.virtual_servers[0].key) if plan is not None and plan.virtual_servers else ""


def _row(plan: ServicePlan, figures: Figures | None, rates: Rates | None) -> ServiceRow:
    known = figures or (_UNREAD if plan.virtual_servers else Figures())
    return ServiceRow(
        service=str(plan.key),
        state=known.state,
        address="",  # only for those that are shown
        virtual_servers=len(plan.virtual_servers),
        serving=known.serving,
        draining=known.draining,
        missing=known.missing,
        active=known.active,
        inactive=known.inactive,
        rates=rates,
        problems=len(plan.problems),
    )
