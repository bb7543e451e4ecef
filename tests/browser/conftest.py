"""The status page in a browser."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from kroute.telemetry import status_page
from tests.browser import scene
from tests.browser.chromium import Browser, CommandError, chromium, window
from tests.unit.load_balancer import ask_soon
from tests.unit.observed import Observed


@pytest.fixture
async def shop(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Observed]:
    """The agent of `tests.browser.scene`, whose page asks again soon."""
    monkeypatch.setattr(status_page, "SHORTEST_REFRESH", 0.2)
    monkeypatch.setattr("kroute.telemetry.kernel_reader.SHORTEST", 0.2)
    made = scene.observed()
    async with made.running(), scene.busy(made):
        await ask_soon(made.metrics_port)
        yield made


@pytest.fixture(scope="session")
def chromium_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running Chromium."""
    with chromium(tmp_path_factory.mktemp("chromium")) as session:
        yield session


@pytest.fixture
async def page(shop: Observed, chromium_session: str) -> AsyncIterator[Browser]:
    """The page of that agent, which shows something."""
    async with window(chromium_session) as made:
        await made.open(f"http://127.0.0.1:{shop.metrics_port}/")
        await shows(lambda: made.text("#verdict"), "1 problem")
        yield made


async def shows(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    """The page comes to show this by itself."""
    found, deadline = None, asyncio.get_running_loop().time() + 60
    while found != wanted:
        with suppress(CommandError):  # what it looks at does not exist yet, or is being replaced
            found = await look()
        assert found == wanted or asyncio.get_running_loop().time() < deadline, (found, wanted)
        await asyncio.sleep(0.05)


async def column(page: Browser, number: int) -> list[str]:
    """A column of the list of Services."""
    return [row[number] for row in await page.rows("#services")]
