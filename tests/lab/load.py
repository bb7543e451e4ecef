"""Calls at a constant pace, each on a new connection, and their results."""

import asyncio
import contextlib
import itertools
import operator
import time
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
    not. `failures` are sentences, and `lost` says when each of these calls began (time.monotonic). `longest` is how
    many seconds the slowest answer took.
    """

    def __init__(self, timeout: float = CALL_TIMEOUT) -> None:
        self._timeout = timeout
        self._underway = set[asyncio.Task[None]]()
        self.answered: Counter[str] = Counter()
        self.calls: Counter[Way] = Counter()
        self.ended: list[int] = []
        self.failures: list[str] = []
        self.lost: list[float] = []
        self.longest = 0.0

    async def goes_on(self, calls: int) -> None:
        """Wait until every caller has ended this many more calls. All but the first of them began after this moment."""
        enough = [ended + calls for ended in self.ended]

        def has_gone_on() -> None:
            assert all(map(operator.ge, self.ended, enough)), self.failures

        await eventually(has_gone_on, within=60)

    async def settles(self) -> None:
        """Wait until the calls of `call_often` that are open now have ended."""
        await asyncio.gather(*self._underway)

    async def keep_calling(self, caller: int, way: Way, pace: float) -> None:
        """Call repeatedly, `pace` seconds after each answer, until cancelled."""
        while True:
            await self.call(caller, way)
            await asyncio.sleep(pace)

    async def call(self, caller: int, way: Way) -> None:
        """Call once."""
        asked = time.monotonic()
        try:
            answer = await way.client.http(way.address, way.port, timeout=self._timeout)
        except OSError as error:
            self.lost.append(asked)
            self.failures.append(f"{way.client} asked {way.address} {way.port}: {error!r}")
        else:
            self.answered[answer.host] += 1
            self.calls[way] += 1
            self.longest = max(self.longest, time.monotonic() - asked)
        self.ended[caller] += 1

    async def call_often(self, ways: list[Way], per_second: int) -> None:
        """Begin so many calls a second, on one way after the other, until cancelled. A late machine omits some."""
        begun, underway = time.monotonic(), self._underway
        async with asyncio.TaskGroup() as calls:
            for way in itertools.cycle(ways):
                if len(underway) < 2 * per_second:
                    underway.add(task := calls.create_task(self.call(0, way)))
                    task.add_done_callback(underway.discard)
                begun = max(begun + 1 / per_second, time.monotonic() - 1 / per_second)
                await asyncio.sleep(begun - time.monotonic())


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


@contextlib.asynccontextmanager
async def steady_load(
    ways: Iterable[Way],
    per_second: int,
    timeout: float = CALL_TIMEOUT,  # noqa: ASYNC109  of each call
) -> AsyncIterator[Load]:
    """Begin so many calls a second for the length of an `async with`. The calls that are open at its end are ended."""
    load = Load(timeout)
    load.ended = [0]
    caller = asyncio.create_task(load.call_often(list(ways), per_second))
    try:
        yield load
    finally:
        caller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await caller
