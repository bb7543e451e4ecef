"""The events of a fake kernel."""

from kroute.kernel.net.monitor import AddressEvent, Event, LinkEvent, Overrun, RouteEvent
from tests.fakes.client import FakeClient
from tests.fakes.kernel import FakeKernel
from tests.fakes.monitor_queue import MonitorQueue


class FakeMonitor(FakeClient):
    """Same shape as kroute.kernel.net.monitor.Monitor."""

    def __init__(
        self,
        kernel: FakeKernel,
        *,
        only_interface: str | None = None,
        except_interface: str | None = None,
        other_addresses: bool = False,
        routes: bool = True,
    ) -> None:
        super().__init__(kernel)
        self._other_addresses = other_addresses
        self._only = only_interface
        self._except = except_interface
        self._routes = routes
        self._queue = MonitorQueue()

    async def open(self) -> None:
        await super().open()
        self.kernel.subscribe(self._queue)

    async def close(self) -> None:
        if self.is_open:
            self.kernel.unsubscribe(self._queue)
        await super().close()

    async def next(self) -> list[Event | Overrun]:
        self.check_open()
        while True:
            events = [event for event in await self._queue.take() if self._wants(event)]
            if events:
                return events

    def _wants(self, event: Event | Overrun) -> bool:
        if isinstance(event, Overrun):
            return True
        if isinstance(event, RouteEvent) and not self._routes:
            return False
        if isinstance(event, AddressEvent) and self._other_addresses:
            return event.interface != self._only
        if self._only is not None and event.interface != self._only:
            return False
        return isinstance(event, LinkEvent) or event.interface != self._except
