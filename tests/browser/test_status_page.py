"""The status page, as a person sees it: in a headless Chromium, fed by an agent on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from kroute.kernel.ipvs.client import RealServerState, VirtualServerOptions, VirtualServerState
from kroute.model.objects import ObjectKey
from kroute.model.plan import NodePlan, Problem, Protocol, RealServer, ServicePlan, VirtualServer, VirtualServerKey
from kroute.telemetry import status as status_module
from tests.browser.chromium import Browser, browser
from tests.builders import NODE, facts
from tests.unit.load_balancer import ask, ask_soon
from tests.unit.observed import Observed

pytestmark = pytest.mark.browser

EVIL = '<img src=x onerror="document.title=\'taken\'"><script>document.title="taken"</script>'


def key(number: int) -> VirtualServerKey:
    return VirtualServerKey(Protocol.TCP, f"10.96.{number // 250}.{number % 250 + 1}", 80)


def plan(name: str, number: int, *problems: Problem) -> ServicePlan:
    reals = (RealServer("10.1.0.1", 8080), RealServer("10.1.0.2", 8080))
    server = VirtualServer(key(number), "wlc", 0, None, reals)
    return ServicePlan(ObjectKey("default", name), virtual_servers=(server,), problems=problems)


def state(**first: int) -> VirtualServerState:
    reals = {("10.1.0.1", 8080): RealServerState(1, **first), ("10.1.0.2", 8080): RealServerState(0, active=1)}
    return VirtualServerState(VirtualServerOptions("wlc"), reals)


@pytest.fixture
async def agent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Observed]:
    monkeypatch.setattr(status_module, "SHORTEST_REFRESH", 0.2)
    monkeypatch.setattr("kroute.telemetry.kernel_reader.SHORTEST", 0.2)
    observed = Observed()
    observed.broadcaster.publish([NodePlan(facts()), plan("web", 1)])
    observed.kernel.table[key(1)] = state(active=3, inactive=4)
    async with observed.running():
        await ask_soon(observed.metrics_port)
        yield observed


@pytest.fixture
async def page(agent: Observed, tmp_path: Path) -> AsyncIterator[Browser]:
    async with browser(tmp_path) as window:
        await window.open(f"http://127.0.0.1:{agent.metrics_port}/")
        await shows(lambda: window.text("#verdict"), "healthy")
        yield window


async def shows(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    """The page comes to show this by itself."""
    found = None
    try:
        async with asyncio.timeout(20):
            while (found := await look()) != wanted:  # noqa: ASYNC110  nothing signals what a page shows
                await asyncio.sleep(0.05)
    except TimeoutError:
        assert found == wanted


async def test_the_page_follows_services_connections_problems_and_health(agent: Observed, page: Browser) -> None:
    first = ["default/web", "TCP 10.96.0.2:80", "wlc", "-", "10.1.0.1:8080", "1", "3", "4", "serving"]
    second = ["", "", "", "", "10.1.0.2:8080", "0", "1", "0", "draining"]
    await shows(lambda: page.rows("#services"), [first, second])
    assert await page.title() == f"kroute on {NODE}"
    assert [row[0] for row in await page.rows("#controllers")] == list(agent.workers.counters)

    agent.kernel.table[key(1)] = state(active=30, inactive=0)
    await shows(lambda: page.rows("#services"), [[*first[:6], "30", "0", "serving"], second])

    agent.broadcaster.publish([plan("web", 1, Problem("InvalidAnnotation", "x=y", "y is not allowed"))])
    await shows(lambda: page.rows("#problems"), [["default/web", "InvalidAnnotation", "y is not allowed"]])

    agent.workers.faults = ["masquerade has failed for 75 s: the lock is held"]
    await shows(lambda: page.text("#verdict"), "not healthy")
    assert await page.text("#causes") == agent.workers.faults[0]

    requested = await page.requested()
    assert all(url.startswith(f"http://127.0.0.1:{agent.metrics_port}/") for url in requested)
    complaints = [it for it in await page.complaints() if "favicon" not in it]
    assert complaints == []


async def test_ten_thousand_services_are_shown_by_the_page_and_found_by_name_or_address(
    agent: Observed, page: Browser
) -> None:
    agent.broadcaster.publish([plan(f"shop-{number:05}", number) for number in range(2, 10_001)])
    await shows(lambda: page.text("#page"), "page 1 of 200")
    assert len(await page.rows("#services")) == 100
    await page.click("#next")
    await shows(lambda: page.text("#page"), "page 2 of 200")
    assert (await page.rows("#services"))[0][0] == "default/shop-00052"
    await page.type("#search", "shop-0777")
    await shows(lambda: page.text("#services-count"), "(10 of 10,000 Services)")
    assert await page.text("#page") == "page 1 of 1"
    await page.script("const it = document.getElementById('search'); it.value = ''; it.focus()")
    await page.type("#search", "10.96.31.101")
    await shows(lambda: page.text("#services-count"), "(1 of 10,000 Services)")
    assert (await page.rows("#services"))[0][:2] == ["default/shop-07850", "TCP 10.96.31.101:80"]


async def test_no_text_is_ever_taken_for_html(agent: Observed, page: Browser) -> None:
    agent.broadcaster.publish([plan("web", 1, Problem("InvalidAnnotation", "x=y", EVIL))])
    agent.workers.faults = [EVIL]
    await shows(lambda: page.rows("#problems"), [["default/web", "InvalidAnnotation", EVIL]])
    assert await page.text("#causes") == EVIL
    await page.type("#search", EVIL)
    await shows(lambda: page.rows("#services"), [])
    assert await page.title() == f"kroute on {NODE}"
    assert await page.script("return document.querySelectorAll('main img, main script').length") == 0


async def test_what_is_not_shipped_with_the_page_does_not_run(agent: Observed, page: Browser) -> None:
    await page.script(
        "const it = document.createElement('script'); it.textContent = 'document.title = \"taken\"';"
        "document.body.append(it)"
    )
    assert await page.title() == f"kroute on {NODE}"
    assert any("Content Security Policy" in complaint for complaint in await page.complaints())


async def test_an_agent_that_ends_is_noticed(agent: Observed, page: Browser) -> None:
    async def refuse(_search: str, _page: int) -> None:
        raise ConnectionResetError

    agent.observation._status.status = refuse
    await shows(lambda: _begins(page), "no answer from the agent")
    assert (await page.rows("#services"))[0][0] == "default/web"


async def _begins(page: Browser) -> str:
    return (await page.text("#verdict")).partition(" (")[0]


@pytest.mark.parametrize(
    "question", ["page=0", "page=999", "page=-1", "page=x", "page=%C2%B2", "search=" + "x" * 1000, ""]
)
async def test_any_question_gets_a_page_that_exists(agent: Observed, question: str) -> None:
    answer = await ask(agent.metrics_port, f"/status.json?{question}", host_header="localhost")
    services = json.loads(answer.body)["services"]
    assert (answer.status, services["page"], services["pages"]) == (200, 1, 1)


async def test_without_the_kernel_the_page_says_so(agent: Observed) -> None:
    agent.kernel.refuses = True
    answer = await ask(agent.metrics_port, "/status.json", host_header="localhost")
    shown = json.loads(answer.body)
    assert "load ip_vs" in shown["overview"]["kernel readable"]
    assert shown["services"]["virtual_servers"][0]["state"] == "missing"
