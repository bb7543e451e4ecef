"""Resolve names in threads of their own, few at a time.

asyncio resolves names in its default pool of threads. While the DNS servers are silent, a look-up holds its thread for
half a minute, also after its caller has given up. Meanwhile everything else that needs a thread of that pool would
wait, such as the announcement of a VIP, and so would the end of the process.
"""

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

MOST_LOOK_UPS = 2
"""Look-ups at once. The next ones wait for a thread to end."""
LOOK_UP_WITHIN = 5.0
"""Seconds for one look-up, its wait included."""


class Names:
    """Looks names up for one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = asyncio.Semaphore(MOST_LOOK_UPS)

    async def getaddrinfo(self, host: Any, port: Any, **hints: int) -> list[Any]:
        """As `socket.getaddrinfo`. Raises socket.gaierror (EAI_AGAIN) if that takes too long."""
        try:
            async with asyncio.timeout(LOOK_UP_WITHIN):
                await self._threads.acquire()
                return await self._started(host, port, hints)
        except TimeoutError:
            said = f"the name {host} was not resolved within {LOOK_UP_WITHIN:g} s"
            raise socket.gaierror(socket.EAI_AGAIN, said) from None

    def _started(self, host: Any, port: Any, hints: dict[str, int]) -> asyncio.Future[list[Any]]:
        """What a thread finds. It keeps its place among the few until it ends."""
        found: asyncio.Future[list[Any]] = self._loop.create_future()

        def settle(addresses: list[Any], error: Exception | None) -> None:
            self._threads.release()
            if found.done():  # nobody waits any longer
                return
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(error)

        def look_up() -> None:
            addresses, failure = [], None
            try:
                addresses = socket.getaddrinfo(host, port, **hints)
            except Exception as error:  # noqa: BLE001  it is the caller's
                failure = error
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(settle, addresses, failure)

        try:
            threading.Thread(target=look_up, name=f"look-up of {host}", daemon=True).start()
        except BaseException:
            self._threads.release()
            raise
        return found
