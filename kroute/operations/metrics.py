"""The agent's metrics: a table of families, and one reading of everything for each scrape."""

from collections.abc import AsyncIterator, Awaitable, Callable

from kroute.operations import exposition, metrics_kube_proxy, metrics_services, metrics_work
from kroute.operations.metrics_kube_proxy import Row
from kroute.operations.scrape import Scrape

ROWS: tuple[Row, ...] = (*metrics_kube_proxy.ROWS, *metrics_services.ROWS, *metrics_work.ROWS)
"""Every family of series, in the order in which they are written."""


async def write(scrape: Callable[[], Awaitable[Scrape]]) -> AsyncIterator[bytes]:
    """The text of all metrics as they are now."""
    now = await scrape()
    async for part in exposition.write((metric, samples(now)) for metric, samples in ROWS):
        yield part
