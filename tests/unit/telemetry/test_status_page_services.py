"""The list of Services on the status page: searched, filtered, sorted, with rates of two readings."""

import asyncio

import pytest

from kroute.inspect.figures import Figures, Rates, read_figures
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import RealServerState, Traffic, VirtualServerOptions, VirtualServerState
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, Protocol, RealServer, ServicePlan, VirtualServer, VirtualServerKey
from kroute.telemetry.kernel_reader import LONGEST_SPAN, KernelReader, RateMeter
from kroute.telemetry.status_page import FILTERS, ORDERS, PageRow, Question, services_page
from tests.unit.observed import Kernel
from tests.unit.watching import PATIENCE

REALS = (RealServer("10.1.0.1", 8080), RealServer("10.1.0.2", 8080))


def key(number: int) -> VirtualServerKey:
    return VirtualServerKey(Protocol.TCP, f"10.96.0.{number}", 80)


def plan(name: str, *numbers: int, reals: tuple[RealServer, ...] = REALS, problems: int = 0) -> ServicePlan:
    servers = tuple(VirtualServer(key(number), "rr", 0, None, reals) for number in numbers)
    found = tuple(Problem("InvalidAnnotation", f"{number}", "x is not allowed") for number in range(problems))
    return ServicePlan(ObjectKey("default", name), virtual_servers=servers, problems=found)


def state(*weights: int, active: int = 0, inactive: int = 0) -> VirtualServerState:
    reals = {
        (f"10.1.0.{number}", 8080): RealServerState(weight, active, inactive)
        for number, weight in enumerate(weights, 1)
    }
    return VirtualServerState(VirtualServerOptions(), reals)


PLANS = [
    plan("busy", 1, 2),
    plan("draining", 3),
    plan("idle", 4, problems=1),
    plan("lost", 5),
    plan("refusing", 6, reals=()),
    plan("refused", problems=2),
]
TABLE = {
    key(1): state(1, 1, active=5, inactive=1),
    key(2): state(1, 1, active=2),
    key(3): state(1, 1, 0, active=1),
    key(4): state(1, 1),
}


def kernel() -> Kernel:
    made = Kernel()
    made.table.update(TABLE)
    made.passed.update({key(1): Traffic(10, 100, 200, 1000, 2000), key(2): Traffic(1, 2, 3, 4, 5)})
    return made


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def readings(kernel: Kernel, clock: Clock) -> RateMeter:
    return RateMeter(KernelReader(lambda: PLANS, 10, lambda: kernel, clock=clock))


async def shown(question: Question) -> list[PageRow]:
    read = readings(kernel(), Clock())
    reading = await read.read()
    page = await services_page({it.key: it for it in PLANS}, reading.services, read.rates_of, question)
    assert (page.total, page.matching) == (len(PLANS), len(page.rows))
    return page.rows


def names(rows: list[PageRow]) -> list[str]:
    return [row.service.removeprefix("default/") for row in rows]


async def test_figures_add_up_what_the_kernel_has_of_a_service() -> None:
    found = (await read_figures(PLANS, kernel())).services
    busy, draining, _, lost, refusing, refused = (found[plan.key] for plan in PLANS)
    passed = Traffic(11, 102, 203, 1004, 2005)
    assert busy == Figures(virtual_servers=2, serving=4, active=14, inactive=2, traffic=passed)
    assert draining == Figures(virtual_servers=1, serving=2, draining=1, active=3)
    assert lost == Figures(virtual_servers=1, missing=1, missing_real_servers=2)
    assert refusing == Figures(virtual_servers=1, refusing=1)
    assert refused == Figures()
    states = [figures.state for figures in (busy, draining, lost, refusing, refused)]
    assert states == ["serving", "serving", "missing", "refusing", None]


async def test_one_real_server_that_is_missing_makes_its_service_missing() -> None:
    source = kernel()
    source.table[key(4)] = state(1)
    idle = (await read_figures(PLANS, source)).services[PLANS[2].key]
    assert (idle.state, idle.missing, idle.missing_real_servers) == ("missing", 0, 1)


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ("", ["busy", "draining", "idle", "lost", "refused", "refusing"]),
        ("problems", ["idle", "lost", "refused", "refusing"]),
        ("serving", ["busy", "draining", "idle"]),
        ("refusing", ["refusing"]),
        ("missing", ["lost"]),
        ("draining", ["draining"]),
        ("busy", ["busy", "draining"]),
        ("<script>", ["busy", "draining", "idle", "lost", "refused", "refusing"]),
    ],
)
async def test_a_filter_leaves_those_that_are_so(only: str, wanted: list[str]) -> None:
    assert names(await shown(Question.of({"only": only}))) == wanted


@pytest.mark.parametrize(
    ("sort", "order", "first"),
    [
        ("service", "descending", ["refusing", "refused", "lost"]),
        ("state", "descending", ["lost", "refusing", "refused"]),
        ("active", "descending", ["busy", "draining", "idle"]),
        ("active", "ascending", ["idle", "lost", "refused"]),
        ("realServers", "descending", ["busy", "draining", "idle"]),
        ("nonsense", "", ["busy", "draining", "idle"]),
    ],
)
async def test_an_order_is_by_its_value_then_by_name(sort: str, order: str, first: list[str]) -> None:
    assert names(await shown(Question.of({"sort": sort, "order": order})))[:3] == first


async def test_every_filter_and_order_takes_every_row() -> None:
    for only in FILTERS:
        for sort in ORDERS:
            assert len(await shown(Question(only=only, sort=sort))) <= len(PLANS)


async def test_a_search_finds_names_and_addresses_in_any_case() -> None:
    assert names(await shown(Question.of({"search": "DRAIN"}))) == ["draining"]
    assert names(await shown(Question.of({"search": "10.96.0.2"}))) == ["busy"]


async def test_rates_are_the_difference_of_two_readings() -> None:
    source, clock = kernel(), Clock()
    read = readings(source, clock)
    await read.read()
    assert (read.rates_of(PLANS[0].key), read.total) == (None, None)
    clock.now += 10
    source.passed[key(1)] = Traffic(110, 600, 1200, 11_000, 22_000)
    await read.read()
    rates = Rates(10.0, 50.0, 100.0, 1000.0, 2000.0)
    assert read.rates_of(PLANS[0].key) == rates
    assert read.rates_of(PLANS[1].key) == Rates()
    assert read.total == rates


async def test_a_virtual_server_that_was_added_again_has_no_negative_rate() -> None:
    source, clock = kernel(), Clock()
    read = readings(source, clock)
    await read.read()
    clock.now += 10
    source.passed = {key(1): Traffic(5, 50, 60, 70, 80)}
    await read.read()
    assert read.rates_of(PLANS[0].key) == Rates(0.5, 5.0, 6.0, 7.0, 8.0)


async def test_readings_long_apart_say_nothing_of_now() -> None:
    clock = Clock()
    read = readings(kernel(), clock)
    await read.read()
    clock.now += LONGEST_SPAN + 1
    await read.read()
    assert read.total is None


async def test_when_nobody_looks_any_more_the_readings_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kroute.telemetry.kernel_reader.LONGEST_SPAN", 0.01)
    read = readings(kernel(), Clock())
    await read.read()
    async with asyncio.timeout(PATIENCE):
        while read._last.services:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.01)
    assert (await read.read()).services


async def test_those_who_ask_soon_after_each_other_share_a_reading() -> None:
    source, clock = kernel(), Clock()
    read = readings(source, clock)
    first = await read.read()
    clock.now += 0.5
    assert await read.read() is first
    clock.now += 1
    assert await read.read() is not first
    assert source.readings == 2


async def test_a_kernel_that_cannot_be_read_is_an_error() -> None:
    source = kernel()
    source.refuses = True
    with pytest.raises(KernelError, match="load ip_vs"):
        await readings(source, Clock()).read()


@pytest.mark.parametrize(
    ("page", "wanted"), [("2", 2), ("3", 3), ("99", 3), ("0", 1), ("-1", 1), ("x", 1), ("²", 1), ("9" * 50, 1)]
)
async def test_any_page_that_is_asked_for_exists(page: str, wanted: int) -> None:
    plans = {it.key: it for it in (plan(f"s{number:03}", 1) for number in range(120))}
    found = await services_page(plans, {}, lambda _: None, Question.of({"page": page}))
    assert (found.page, found.pages) == (wanted, 3)
    assert found.rows[0].service == f"default/s{(wanted - 1) * 50:03}"
    assert found.rows[0].state == "missing"
