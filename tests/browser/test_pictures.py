"""The pictures of the status page in docs/images are of the page as it is.

`KROUTE_WRITE_IMAGES=1` writes them, and what is on them into `pictured.json`. Without it, the page must have the same
parts as when they were taken; pixels may differ.
"""

import json
import os
import struct
from pathlib import Path

import pytest

from tests.browser.chromium import Browser
from tests.browser.conftest import shows
from tests.lab.places import PROJECT
from tests.unit.observed import Observed

pytestmark = pytest.mark.browser

IMAGES = PROJECT / "docs" / "images"
PICTURED = Path(__file__).parent / "pictured.json"
WRITES = os.environ.get("KROUTE_WRITE_IMAGES") == "1"
LARGEST = 200 << 10
"""Bytes of a picture."""
PARTS = """
  return [...document.querySelectorAll('h1, h2, h3, th, dt, label, button, a, figcaption')]
    .filter((it) => it.checkVisibility() && !it.closest('.skip, #changes, .problems')
      && it.getBoundingClientRect().top < innerHeight)
    .map((it) => `${it.tagName.toLowerCase()} ${it.firstChild.textContent.trim()}`);
"""
PICTURES = {
    "status-page": ("", 1200, 1250, "light"),
    "status-page-service": ("#service=shop/web", 1200, 900, "dark"),
    "status-page-phone": ("", 360, 1210, "light"),
}
"""Each picture with the part of the page, its width and height, and the colours."""


@pytest.mark.parametrize("name", PICTURES)
async def test_a_picture_shows_the_page_as_it_is(shop: Observed, page: Browser, name: str) -> None:
    part, width, height, scheme = PICTURES[name]
    await page.resize(width, height)
    await page.prefer(scheme)
    await page.script("location.hash = arguments[0]", part)
    await shows(lambda: _has_rates(page, part), True)
    parts = await page.script(PARTS)
    pictured = json.loads(PICTURED.read_text()) if PICTURED.exists() else {}
    if WRITES:
        await _trend(page)
        (IMAGES / f"{name}.png").write_bytes(await page.picture())
        PICTURED.write_text(json.dumps(pictured | {name: parts}, indent=1) + "\n")
        pictured[name] = parts
    assert parts == pictured[name], "the page has changed: take the pictures again with KROUTE_WRITE_IMAGES=1"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_there_and_a_page_shows_it(name: str) -> None:
    picture = (IMAGES / f"{name}.png").read_bytes()
    _, width, height, _ = PICTURES[name]
    assert struct.unpack_from(">II", picture, 16) == (width, height)
    assert len(picture) < LARGEST
    assert f"](images/{name}.png)" in "".join(page.read_text() for page in (PROJECT / "docs").glob("*.md"))


def test_there_is_no_other_picture() -> None:
    assert (
        {it.stem for it in IMAGES.glob("status-page*.png")} == set(PICTURES) == json.loads(PICTURED.read_text()).keys()
    )


async def _has_rates(page: Browser, part: str) -> bool:
    texts = await page.script("return [...document.querySelectorAll('dd')].map((it) => it.textContent)")
    is_chosen = await page.script("return !document.getElementById('service-view').hidden") == bool(part)
    return is_chosen and texts != [] and not any("…" in it for it in texts)


async def _trend(page: Browser) -> None:
    """Wait until the line of new connections has some points."""
    await shows(lambda: page.script("return document.querySelectorAll('#trend polyline')[0].points.length > 25"), True)
