"""The status page on a telephone, without a mouse, and to somebody who hears it."""

import pytest

from kroute.model.objects import ObjectKey
from kroute.model.plan import Problem, Protocol, RealServer, ServicePlan, VirtualServer, VirtualServerKey
from tests.browser.chromium import Browser
from tests.browser.conftest import column, shows
from tests.unit.observed import Observed

pytestmark = pytest.mark.browser

NARROW = 360
WIDER_THAN = """
  const widest = document.documentElement.clientWidth;
  return [...document.querySelectorAll('body *')].filter((it) => it.checkVisibility()
    && !it.closest('.unseen, .skip, thead, svg') && it.getBoundingClientRect().right > widest + 0.5)
    .map((it) => it.outerHTML.slice(0, 120));
"""
SCROLLS = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
UNNAMED = """
  return [...document.querySelectorAll('button, input, select, a, summary')].filter((it) => it.checkVisibility()
    && !(it.textContent.trim() || it.labels?.length || it.ariaLabel)).map((it) => it.outerHTML);
"""
ARE_TABLES = """
  return [...document.querySelectorAll('#node-view table, #node-view tbody tr, #node-view td')]
    .every((it) => ['table', 'row', 'cell'].includes(it.getAttribute('role')));
"""
HEADINGS = """
  return [...document.querySelectorAll('h1, h2')].filter((it) => it.checkVisibility())
    .map((it) => it.tagName + ' ' + it.firstChild.textContent.trim());
"""
LONG = "a" * 63 + "/" + "b" * 253


def long_plan() -> ServicePlan:
    address = "fd00:1234:5678:9abc:def0:1234:5678:9abc"
    server = VirtualServer(
        VirtualServerKey(Protocol.SCTP, address, 65535), "mh", 0, None, (RealServer(address, 65535),)
    )
    problem = Problem("ExternalAddressNotAllowed", "x", "x" * 200)
    return ServicePlan(ObjectKey.parse(LONG), virtual_servers=(server,), problems=(problem,))


async def test_nothing_is_wider_than_the_screen(shop: Observed, page: Browser) -> None:
    shop.broadcaster.publish([long_plan()])
    await page.script("for (const it of document.querySelectorAll('details')) it.open = true")
    await shows(lambda: _has(page, LONG), True)
    for place in ("", f"#service={LONG}"):
        await page.script("location.hash = arguments[0]", place)
        if place:
            await shows(lambda: page.script("return document.querySelectorAll('.server').length"), 1)
        for width in (NARROW, 768, 1280):
            await page.resize(width, 800)
            assert (await page.script(WIDER_THAN), await page.script(SCROLLS)) == ([], False), (place, width)


async def test_on_a_small_screen_a_service_is_a_card_and_still_a_row_of_a_table(shop: Observed, page: Browser) -> None:
    await page.resize(NARROW, 800)
    assert await page.script("return getComputedStyle(document.querySelector('#services td'), '::before').display")
    label = "return getComputedStyle(document.querySelectorAll('#services td')[5], '::before').content"
    assert await page.script(label) == '"New/s"'
    assert await page.script(ARE_TABLES)
    await page.script(
        "const it = document.getElementById('sort'); it.value = 'packets'; it.dispatchEvent(new Event('change'))"
    )
    await shows(lambda: _first(page), "kube-system/kube-dns")


async def test_everything_has_a_name_and_a_place_for_those_who_hear_the_page(shop: Observed, page: Browser) -> None:
    assert await page.script(UNNAMED) == []
    assert await page.script("return document.documentElement.lang") == "en"
    assert await page.script(HEADINGS) == [
        "H1 kroute", "H2 Problems", "H2 This node", "H2 Services", "H2 Controllers", "H2 Last changes",
    ]  # fmt: skip
    assert await page.script("return document.querySelectorAll('th:not([scope])').length") == 0
    assert await page.script("return document.querySelectorAll('main:not([hidden])').length") == 1
    assert await page.script("return document.getElementById('verdict').getAttribute('role')") == "status"


async def test_texts_stand_out_from_what_is_behind_them(shop: Observed, page: Browser) -> None:
    """The contrast of WCAG 2.1, level AA: 4.5."""
    for scheme in ("light", "dark"):
        await page.prefer(scheme)
        assert await page.script(CONTRASTS) == [], scheme


CONTRASTS = """
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = numbers(color).map((it) => it / 255)
      .map((it) => it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (it) => {
    for (; it; it = it.parentElement) {
      const color = getComputedStyle(it).backgroundColor;
      if (numbers(color)[3] !== 0) return color;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const texts = [...document.querySelectorAll('body *')].filter((it) => it.checkVisibility() && !it.disabled
    && [...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return texts.map((it) => {
    const [a, b] = [light(getComputedStyle(it).color), light(behind(it))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), it.outerHTML.slice(0, 80)];
  }).filter(([ratio]) => ratio < 4.5);
"""


async def _has(page: Browser, name: str) -> bool:
    return name in await column(page, 0)


async def _first(page: Browser) -> str:
    return (await column(page, 0))[0]
