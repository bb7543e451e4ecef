"""An agent with client-go's reflectors, as a model of their pauses (client-go 1.36).

Sources: `tools/cache/reflector.go` (800 ms to 30 s, factor 2, jitter 1, reset after 2 minutes; a refused connection
keeps the watch, every other error and 410 lead to a list after a pause) and `rest/with_retry.go` (ten tries of what is
answered with Retry-After, each after exactly that time).
"""

import asyncio
import random
from collections.abc import Callable

from bench.outage.server import Answer, RefusedError, Server

FIRST, LONGEST, FACTOR, JITTER = 0.8, 30.0, 2.0, 1.0
RESET_AFTER = 120.0
TRIES = 10


class Backoff:
    """client-go's exponential backoff manager."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next = FIRST
        self._last = -RESET_AFTER

    def delay(self) -> float:
        """Seconds to wait now."""
        now = asyncio.get_running_loop().time()
        if now - self._last > RESET_AFTER:
            self._next = FIRST
        self._last = now
        delay, self._next = self._next, min(self._next * FACTOR, LONGEST)
        return delay * (1.0 + JITTER * self._rng.random())


class Reflector:
    """One kind of one agent. `recovered` is called when it has been listed after the restart."""

    def __init__(self, server: Server, rng: random.Random, recovered: Callable[[], None]) -> None:
        self._server = server
        self._backoff = Backoff(rng)
        self._recovered = recovered

    async def run(self) -> None:
        """Follow until the list after the restart."""
        await self._server.has_ended.wait()
        await self._watch()
        while True:
            await asyncio.sleep(self._backoff.delay())
            try:
                if (await self._ask(lists=True)).status == 200:
                    self._recovered()
                    return
            except RefusedError:
                continue

    async def _watch(self) -> None:
        """Ask for a watch until there is an answer, which in a restart leads to a list."""
        while True:
            try:
                if (await self._ask(lists=False)).status != 429:
                    return
            except RefusedError:
                pass
            await asyncio.sleep(self._backoff.delay())

    async def _ask(self, *, lists: bool) -> Answer:
        answer = await self._server.ask(lists=lists)
        for _ in range(TRIES):
            if answer.status != 429:
                break
            await asyncio.sleep(answer.retry_after)
            answer = await self._server.ask(lists=lists)
        return answer
