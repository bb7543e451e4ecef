"""The dummy link that carries the VIPs.

service_proxy makes and repairs it. route_fix writes routes on it, and learns here whether it exists and when it was
made or repaired. Both share one object, but only service_proxy calls the methods that change it.
"""

import asyncio

from kroute.kernel.clients import LinkClient
from kroute.kernel.errors import KernelError
from kroute.reconcile.ledger import Ledger, LinkMade


class DummyInterface:
    """The link called `name`. `index` is its number in the kernel, None while the link is not known to exist.

    `revision` grows whenever the link was made or repaired: its routes may be lost, and refused writes may work now.
    """

    def __init__(self, name: str, links: LinkClient, ledger: Ledger) -> None:
        self.name = name
        self.index: int | None = None
        self.revision = 0
        self._links = links
        self._ledger = ledger
        self._wakers: list[asyncio.Event] = []

    @property
    def is_ours(self) -> bool:
        """Whether everything on the link is ours: kroute made the link, or found one of its name at its first start."""
        return self.name in self._ledger.links

    def watch(self, waker: asyncio.Event) -> None:
        """Set `waker` whenever the revision grows."""
        self._wakers.append(waker)

    async def exists(self) -> bool:
        return await self._links.index(self.name) is not None

    def lost(self) -> None:
        """Note that the link was deleted, and all addresses and routes with it."""
        self.index = None

    async def ensure(self) -> list[str]:
        """Make the link, or repair it if it is ours; returns what was wrong, one sentence each.

        Raises KernelError if that fails, or if a link of that name is not a dummy.
        """
        wrong = []
        state = await self._links.read(self.name)
        if state is None:
            self._ledger.record([LinkMade(self.name)])
            await self._links.create_dummy(self.name)
            wrong.append(f"link {self.name} was missing")
        elif state.kind != "dummy":
            raise KernelError(
                f"link {self.name} is of kind {state.kind}, not dummy: choose another name with --dummy-interface"
            )
        elif not state.is_right and self.is_ours:
            await self._links.repair(self.name)
            wrong.append(f"link {self.name} was changed")
        index = state.ifindex if state is not None else await self._links.index(self.name)
        if wrong or index != self.index:
            self.index = index
            self.revision += 1
            for waker in self._wakers:
                waker.set()
        return wrong

    async def delete(self) -> bool:
        """Delete the link if it exists and is ours; returns whether it was deleted. Only cleanup calls this."""
        if not self.is_ours or not await self.exists():
            return False
        await self._links.delete(self.name)
        self.lost()
        return True
