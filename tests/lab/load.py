"""Calls at a constant pace, each on a new connection, and their results."""

import asyncio
import contextlib
import operator
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from tests.lab.deployment import eventually
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

    `answered` counts by answering host, `calls` counts answers by way, `ended` the calls of each caller, answered or
    not. `failures` are sentences.
    """

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.calls: Counter[Way] = Counter()
        self.ended: list[int] = []
        self.failures: list[str] = []

    async def goes_on(self, calls: int) -> None:
        """Wait until every caller has ended this many more calls. All but the first of them began after this moment."""
        enough = [ended + calls for ended in self.ended]

        def has_gone_on() -> None:
            assert all(map(operator.ge, self.ended, enough)), self.failures

        await eventually(has_gone_on, within=60)

    async def keep_calling(self, caller: int, way: Way, pace: float) -> None:
        """Call repeatedly, `pace` seconds after each answer, until cancelled."""
        while True:
            try:
                answer = await way.client.http(way.address, way.port, timeout=CALL_TIMEOUT)
            except OSError as error:
                self.failures.append(f"{way.client} asked {way.address} {way.port}: {error!r}")
            else:
                self.answered[answer.host] += 1
                self.calls[way] += 1
            self.ended[caller] += 1
            await asyncio.sleep(pace)


@contextlib.asynccontextmanager
async def constant_load(ways: Iterable[Way], pace: float = 0.2) -> AsyncIterator[Load]:
    """Call on each of `ways` for the length of an `async with`."""
    load, ways = Load(), list(ways)
    load.ended = [0] * len(ways)
    async with asyncio.TaskGroup() as tasks:
        callers = [tasks.create_task(load.keep_calling(number, way, pace)) for number, way in enumerate(ways)]
        try:
            yield load
        finally:
            for caller in callers:
                caller.cancel()
