"""The status page, as a person sees it: in a headless Chromium, fed by an agent on loopback."""

import asyncio

import pytest

from kroute.base.histogram import Histogram
from kroute.firewall.nftables.policy_tables import PolicyTables
from kroute.inspect.policies import Enforced
from kroute.kernel.ipvs.objects import Traffic
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, Protocol, RealServer, ServicePlan, VirtualServer, VirtualServerKey
from tests.browser.chromium import Browser
from tests.browser.conftest import column, shows
from tests.builders import NODE
from tests.unit.load_balancer import ask_soon
from tests.unit.observed import Observed
from tests.unit.planning.policies.cluster import Cluster, pod, policy

pytestmark = pytest.mark.browser

SERVICE, STATE, ADDRESS, REAL_SERVERS, CONNECTIONS, NEW, PACKETS, BYTES = range(8)


FACTS = """
  return Object.fromEntries([...document.querySelectorAll('.server dl div')]
    .map((it) => [it.firstChild.textContent, it.lastChild.textContent]));
"""
ISOLATED = """
  return [...document.querySelectorAll('#overview div')]
    .find((it) => it.firstChild.textContent === 'Isolated pods').lastChild.textContent;
"""
UNKNOWN = "\N{EN DASH}"


def plan(name: str, number: int, *problems: Problem) -> ServicePlan:
    key = VirtualServerKey(Protocol.TCP, f"10.97.{number // 250}.{number % 250 + 1}", 80)
    server = VirtualServer(key, "wlc", 0, None, (RealServer("10.1.0.1", 8080),))
    return ServicePlan(ObjectKey("default", name), virtual_servers=(server,), problems=problems)


def row_of(page: Browser, name: str):
    async def cells() -> list[str]:
        return next((row for row in await page.rows("#services") if row[SERVICE] == name), [])

    return cells


async def test_the_page_follows_services_connections_problems_and_health(shop: Observed, page: Browser) -> None:
    cells = await row_of(page, "shop/web")()
    assert cells[:5] == ["shop/web", "● serving", "TCP 10.96.0.20:80", "6, 1 draining", "55"]
    assert await page.title() == f"kroute on {NODE}"
    assert (await row_of(page, "back-office/reports")())[1:4] == ["○ refusing", "TCP 10.96.90.4:80", "none"]

    shop.broadcaster.publish([plan("new", 1, Problem("InvalidAnnotation", "x=y", "y is not allowed"))])
    await shows(lambda: page.text("#verdict"), "2 problems")
    assert await page.text("#problems li") == "InvalidAnnotation 2 problems"
    assert (await row_of(page, "default/new")())[STATE] == "✕ missing, 1 problem"

    shop.workers.faults = ["masquerade has failed for 75 s: the lock is held"]
    await shows(lambda: page.text("#verdict"), "not healthy")
    assert (await page.text("#problems li")).splitlines()[1] == shop.workers.faults[0]
    assert await page.script("return [...document.querySelectorAll('#problems > li')].map((it) => it.className)") == [
        "fail", "warning",
    ]  # fmt: skip

    requested = await page.requested()
    assert all(url.startswith(f"http://127.0.0.1:{shop.metrics_port}/") for url in requested)
    assert await page.complaints() == []


async def test_an_agent_that_enforces_network_policies_counts_isolated_pods(page: Browser) -> None:
    made = Cluster(pod("web", "10.0.0.1", "fd00::1"), pod("api", "10.0.0.2"), policy("deny"))
    agent = Observed(Enforced(made.catalog, PolicyTables(None), Histogram((1.0,))))
    async with agent.running():
        await ask_soon(agent.metrics_port)
        assert "Isolated pods" not in await page.text("#overview")
        await page.open(f"http://127.0.0.1:{agent.metrics_port}/")
        await shows(lambda: page.script(ISOLATED), "2")


async def test_problems_of_one_reason_are_folded_into_one_that_stays_open(shop: Observed, page: Browser) -> None:
    odd = [plan(f"odd{number}", number, Problem("InvalidPort", "x", "port 0 is not served")) for number in range(49)]
    shop.broadcaster.publish([*odd, plan("new", 99, Problem("InvalidAnnotation", "x=y", "y is not allowed"))])
    await shows(lambda: page.text("#problems"), "InvalidAnnotation 2 problems\nInvalidPort 49 problems")
    await page.click("#problems > li:last-child summary")

    async def opened() -> list[str]:
        return (await page.text("#problems > li:last-child")).splitlines()

    lines = await opened()
    assert lines[:3] == ["InvalidPort 49 problems", "default/odd0 InvalidPort", "port 0 is not served"]
    shop.broadcaster.publish([plan("odd50", 50, Problem("InvalidPort", "x", "port 0 is not served"))])
    await shows(lambda: page.text("#verdict"), "52 problems")
    assert (await opened())[:2] == ["InvalidPort 50 problems", "default/odd0 InvalidPort"]
    shop.broadcaster.publish([plan(f"zmore{number}", 100 + number, odd[0].problems[0]) for number in range(70)])
    await shows(lambda: page.text("#verdict"), "122 problems")
    assert (await opened())[-1] == "and 22 more: kroute show services"


async def test_rates_are_those_of_the_counters(shop: Observed, page: Browser) -> None:
    for key in shop.kernel.passed:
        shop.kernel.passed[key] = Traffic(*[number + 10**9 for number in shop.kernel.passed[key]])

    async def units() -> tuple[bool, ...]:
        _, _, _, _, _, new, packets, passed = await row_of(page, "shop/web")()
        return new[-1] in "MG", packets[-1] in "MG", passed[-3:] in {"MiB", "GiB"}

    await shows(units, (True, True, True))
    await shows(lambda: page.script("return document.querySelectorAll('#trend polyline')[0].points.length > 2"), True)


async def test_ten_thousand_services_are_paged_searched_filtered_and_sorted(shop: Observed, page: Browser) -> None:
    await page.script("location.hash = ''")
    shop.broadcaster.publish([plan(f"shop-{number:05}", number) for number in range(2, 9_994)])
    await shows(lambda: page.text("#page"), "page 1 of 200")
    await page.click("#next")
    await shows(lambda: page.text("#page"), "page 2 of 200")
    assert (await column(page, SERVICE))[0] == "default/shop-00050"

    await page.click("#services-head [data-sort=active] button")
    await shows(lambda: page.text("#page"), "page 1 of 200")
    await shows(lambda: _first(page), ["shop/web", "shop/api", "kube-system/kube-dns"])
    orders = "return [...document.querySelectorAll('[aria-sort]')].map((it) => it.ariaSort)"
    assert await page.script(orders) == ["none", "none", "none", "descending", "none", "none"]

    await page.script("const it = document.getElementById('only'); it.value = 'draining';"
                      "it.dispatchEvent(new Event('change'))")  # fmt: skip
    await shows(lambda: page.text("#services-count"), "1 of 10,000")
    await page.script("const it = document.getElementById('only'); it.value = '';"
                      "it.dispatchEvent(new Event('change'))")  # fmt: skip
    await page.type("#search", "shop-0777")
    await shows(lambda: page.text("#services-count"), "10 of 10,000")
    await page.script("const it = document.getElementById('search'); it.value = ''; it.focus()")
    await page.type("#search", "10.97.31.101")
    await shows(lambda: column(page, SERVICE), ["default/shop-07850"])
    await page.type("#search", " none")
    await shows(lambda: page.text("#services-empty"), "No Service matches.")


async def test_one_service_in_full_by_keyboard_alone(shop: Observed, page: Browser) -> None:
    tab, enter, escape = "\ue004", "\ue007", "\ue00c"
    focused = "return document.activeElement.dataset.key ?? document.activeElement.id"
    for _ in range(40):
        if await page.script(focused) == "service shop/web":
            break
        await page.press(tab)
    assert await page.script(focused) == "service shop/web"
    asked = await page.text("#asked")
    await shows(lambda: _changed(page, "#asked", asked), True)
    assert await page.script(focused) == "service shop/web", "a refresh has taken the focus"

    await page.press(enter)
    await shows(lambda: page.text("#service-name"), "shop/web")
    assert await page.script(focused) == "service-name"
    rows = ["10.244.0.40:8080", "node1", "1", "3", "0", "● serving"]
    await shows(lambda: _first_row(page, "#service-servers tbody"), rows)
    assert ["10.244.2.90:8080", UNKNOWN, "0", "7", "0", "◐ draining"] in await page.rows("#service-servers tbody")
    left_out = ["TCP 10.96.0.20:80", "10.244.1.99:8080", "node2", "not ready"]
    assert left_out in await page.rows("#left-out-rows")
    assert (await page.script(FACTS))["Scheduler"] == "rr"

    async def has_rates() -> bool:
        return (await page.script(FACTS))["New connections/s"] not in {"…", "0"}

    await shows(has_rates, True)
    assert await page.title() == f"shop/web on {NODE}"
    await page.press(escape)
    await shows(lambda: page.script(focused), "service shop/web")
    assert await page.script("return document.getElementById('service-view').hidden")


async def test_a_service_that_goes_is_said_to_be_gone(shop: Observed, page: Browser) -> None:
    await page.script("location.hash = '#service=' + encodeURIComponent('shop/search')")
    await shows(lambda: page.text("#service-servers h3"), "TCP 10.96.77.1:9200 ● serving")
    shop.broadcaster.publish([ServicePlan(ObjectKey("shop", "search"))])
    await shows(lambda: page.text("#service-note"), "There is no such Service on this node.")


async def test_an_agent_that_ends_is_noticed(shop: Observed, page: Browser) -> None:
    async def refuse(_view: object) -> None:
        raise ConnectionResetError

    (await shop.observation.metrics_port()).page.content = refuse
    await shows(lambda: _begins(page), "no answer from the agent")
    assert "shop/web" in await column(page, SERVICE)


async def test_a_paused_page_asks_nothing_and_goes_on_when_told(shop: Observed, page: Browser) -> None:
    await page.click("#pause")
    async with asyncio.timeout(60):  # a question may be under way
        before = await _readings_after_the_last(shop)
    assert await page.script("return document.getElementById('pause').ariaPressed") == "true"
    await page.click("#pause")
    await shows(lambda: _has_read(shop, before), True)


async def _readings_after_the_last(shop: Observed) -> int:
    """How often the kernel was read, as soon as nobody has asked for five times as long as a page waits."""
    before = -1
    while before != shop.kernel.readings:
        before = shop.kernel.readings
        await asyncio.sleep(1)
    return before


async def _has_read(shop: Observed, before: int) -> bool:
    return shop.kernel.readings > before


async def _begins(page: Browser) -> str:
    return (await page.text("#verdict")).partition(" (")[0]


async def _first(page: Browser) -> list[str]:
    return (await column(page, SERVICE))[:3]


async def _first_row(page: Browser, body: str) -> list[str]:
    return (await page.rows(body) or [[]])[0]


async def _changed(page: Browser, selector: str, before: str) -> bool:
    return await page.text(selector) != before
