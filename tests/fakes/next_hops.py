"""The next hops of a fake kernel."""

from tests.fakes.client import FakeClient


class FakeNextHops(FakeClient):
    """Same shape as kroute.kernel.net.next_hops.NextHops."""

    async def open(self) -> None:
        await super().open()
        self.kernel.routes_changed.clear()

    async def read(self) -> frozenset[str]:
        self.check_open()
        return frozenset(self.kernel.gateways)

    async def changed(self) -> None:
        self.check_open()
        await self.kernel.routes_changed.wait()
        self.kernel.routes_changed.clear()
