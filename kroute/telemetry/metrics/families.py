"""The agent's metrics: all families in one table, and one reading of all values for each scrape."""

from collections.abc import AsyncIterator, Awaitable, Callable

from kroute.telemetry.metrics import exposition, kube_proxy, services, work
from kroute.telemetry.metrics.kube_proxy import Row
from kroute.telemetry.metrics.scrape import Scrape

ROWS: tuple[Row, ...] = (*kube_proxy.ROWS, *services.ROWS, *work.ROWS)
"""Every family of series, in the order of writing."""


async def write(scrape: Callable[[], Awaitable[Scrape]]) -> AsyncIterator[bytes]:
    """The text of all metrics with their current values, in slices."""
    now = await scrape()
    async for part in exposition.write((metric, samples(now)) for metric, samples in ROWS):
        yield part
