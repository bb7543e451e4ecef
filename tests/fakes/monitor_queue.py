"""The queued events of one fake monitor."""

import asyncio

from kroute.kernel.net.monitor import Event, Overrun


class MonitorQueue:
    """A list of events, and an event that is set while there are any."""

    def __init__(self) -> None:
        self._events: list[Event | Overrun] = []
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._arrived.set()

    def overrun(self, event: Overrun) -> None:
        self._events = [event]
        self._arrived.set()

    async def take(self) -> list[Event | Overrun]:
        await self._arrived.wait()
        self._arrived.clear()
        events, self._events = self._events, []
        return events
