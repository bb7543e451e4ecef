"""Calls at a constant pace, each on a new connection, and their results."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from tests.lab.hosts import Host

CALL_TIMEOUT = 20.0
"""Seconds after which a call has failed: many times what it takes in a busy machine."""


class Way(NamedTuple):
    """The caller of a call, and its destination."""

    client: Host
    address: str
    port: int


class Load:
    """The results of calls.

    `answered` counts by answering host, `calls` counts answers by way. `failures` are sentences.
    """

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.calls: Counter[Way] = Counter()
        self.failures: list[str] = []

    async def keep_calling(self, way: Way, pace: float) -> None:
        """Call repeatedly, `pace` seconds after each answer, until cancelled."""
        while True:
            try:
                answer = await way.client.http(way.address, way.port, timeout=CALL_TIMEOUT)
            except OSError as error:
                self.failures.append(f"{way.client} asked {way.address} {way.port}: {error!r}")
            else:
                self.answered[answer.host] += 1
                self.calls[way] += 1
            await asyncio.sleep(pace)


@contextlib.asynccontextmanager
async def constant_load(ways: Iterable[Way], pace: float = 0.2) -> AsyncIterator[Load]:
    """Call on each of `ways` for the length of an `async with`."""
    load = Load()
    async with asyncio.TaskGroup() as tasks:
        callers = [tasks.create_task(load.keep_calling(way, pace)) for way in ways]
        try:
            yield load
        finally:
            for caller in callers:
                caller.cancel()
