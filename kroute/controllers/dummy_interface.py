"""The dummy link that carries the VIPs.

service_proxy makes it and repairs it; route_fix puts routes on it and learns here that it is there, or is another one
than before. Both look at the same object; only service_proxy calls what changes it.
"""

import asyncio

from kroute.kernel.clients import LinkClient
from kroute.kernel.errors import KernelError
from kroute.reconcile.ledger import Ledger, LinkMade


class DummyInterface:
    """The link of the name `name`. `index` is the kernel's number of it, None while it is not known to be there.

    `revision` grows whenever the link was made or put right: routes may have gone, and what was refused may work now.
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
        """Whether all on the link is ours: kroute made the link, or found it under its name at its first start."""
        return self.name in self._ledger.links

    def watch(self, waker: asyncio.Event) -> None:
        """Set this event whenever the revision has grown."""
        self._wakers.append(waker)

    async def exists(self) -> bool:
        """Whether there is a link of that name."""
        return await self._links.index(self.name) is not None

    def lost(self) -> None:
        """The link is gone: whatever was on it went with it."""
        self.index = None

    async def ensure(self) -> list[str]:
        """Make the link, or put right what is wrong with it; says what was wrong.

        Raises KernelError if that cannot be done, and for a link of that name that cannot carry VIPs.
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
        index = await self._links.index(self.name)
        if wrong or index != self.index:
            self.index = index
            self.revision += 1
            for waker in self._wakers:
                waker.set()
        return wrong

    async def delete(self) -> bool:
        """Delete the link if it is ours; whether it was there and is gone. For cleanup."""
        if not self.is_ours or not await self.exists():
            return False
        await self._links.delete(self.name)
        self.lost()
        return True
