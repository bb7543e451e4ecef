"""No text of the cluster's becomes a part of the status page: names, problems, log lines, searches, addresses."""

import time
from contextlib import suppress

import pytest

from kroute.base import logs
from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, Protocol, RealServer, ServicePlan, VirtualServer, VirtualServerKey
from tests.browser.chromium import Browser, CommandError
from tests.browser.conftest import column, shows
from tests.builders import NODE
from tests.unit.observed import Observed

pytestmark = pytest.mark.browser

EVIL = '<img src=x onerror="document.title=\'taken\'"><script>document.title="taken"</script>'
TAG = "<img src=x onerror=document.title='taken'>"
"""Without a slash, which separates a namespace from a name."""
EVILS = (EVIL, TAG, "javascript:alert(1)", "'\"><svg onload=alert(1)>", "\u202egnp.exe", "a" * 253, "`x` ` <b>")
COUNT = (
    "return [...document.querySelectorAll('script, img, svg, iframe, object, b, style, [onerror], [onload]')].length"
)


def evil(name: str, number: int) -> ServicePlan:
    server = VirtualServer(
        VirtualServerKey(Protocol.TCP, f"10.98.0.{number}", 80), name, 0, None, (RealServer(name, 80),)
    )
    return ServicePlan(ObjectKey(name, name), virtual_servers=(server,), problems=(Problem(name, name, name),))


async def test_no_text_is_ever_taken_for_html(shop: Observed, page: Browser) -> None:
    parts = await page.script(COUNT)
    shop.broadcaster.publish([evil(name, number) for number, name in enumerate(EVILS)])
    shop.workers.faults = [EVIL]
    logs.RECENT.remember({"level": f"error {EVIL}", "event": EVIL, "field": EVIL}, time.time())
    await shows(lambda: _has_all(page), True)
    assert await page.script(COUNT) == parts
    links = await page.script("return [...document.links].map((it) => it.getAttribute('href'))")
    assert all(link.startswith("#") for link in links)
    await page.type("#search", TAG)
    await shows(lambda: column(page, 0), [f"{TAG}/{TAG}"])
    await page.click("#services a")
    await shows(lambda: page.text("#service-name"), f"{TAG}/{TAG}")
    await shows(lambda: page.script("return document.querySelectorAll('.server').length"), 1)
    assert await page.script(COUNT) == parts
    assert await page.title() == f"{TAG}/{TAG} on {NODE}"
    assert await page.complaints() == []


async def test_an_address_with_anything_in_it_is_a_page(shop: Observed, page: Browser) -> None:
    parts = await page.script(COUNT)
    for part in (f"#service={EVIL}", "#service=%", "#service=%00", "#x", f"#{EVIL}"):
        await page.script("location.hash = arguments[0]", part)
        asked = await page.text("#asked")
        await page.click("#pause")
        await page.click("#pause")
        await shows(lambda: page.text("#verdict"), "1 problem")
        assert asked
        assert await page.script(COUNT) == parts
        assert not (await page.title()).startswith("taken")


async def test_what_is_not_shipped_with_the_page_does_not_run(shop: Observed, page: Browser) -> None:
    with pytest.raises(CommandError, match="TrustedHTML"):
        await page.script("document.body.innerHTML = arguments[0]", EVIL)
    with suppress(CommandError):
        await page.script(
            "const it = document.createElement('script'); it.textContent = arguments[0]; document.body.append(it)",
            "document.title = 'taken'",
        )
    await page.script(
        "const it = document.createElement('link'); it.rel = 'stylesheet'; it.href = 'data:text/css,*{display:none}';"
        "document.head.append(it)"
    )
    assert await page.text("#verdict") == "1 problem"
    assert await page.title() == f"kroute on {NODE}"
    assert any("Content Security Policy" in complaint for complaint in await page.complaints())


async def _has_all(page: Browser) -> bool:
    return {f"{name}/{name}" for name in EVILS} <= set(await column(page, 0))
