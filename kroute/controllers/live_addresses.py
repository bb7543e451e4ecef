"""Which addresses this node delivers to Services, and for which of them routers may send clients."""

import asyncio
from collections.abc import Set


class LiveAddresses:
    """Shared by service_proxy and direct_return, which deliver addresses, and announcing. Each call is atomic.

    `announced` are those that routers may have learned. Only announcing sets it, and says UNANNOUNCED when it shrinks.
    """

    def __init__(self) -> None:
        self.announced: Set[str] = frozenset()
        self._parts: list[Set[str]] = []
        self._wakers: list[asyncio.Event] = []

    def include(self, addresses: Set[str]) -> None:
        """Have these addresses count as delivered, too. The set, or the view of a mapping, is that of the caller."""
        self._parts.append(addresses)

    def follow(self, waker: asyncio.Event) -> None:
        """Set `waker` whenever addresses become live, or addresses on no link are live no longer."""
        self._wakers.append(waker)

    def changed(self) -> None:
        """Tell those who follow."""
        for waker in self._wakers:
            waker.set()

    def among(self, addresses: Set[str]) -> frozenset[str]:
        """Those of these addresses that are delivered."""
        return frozenset[str]().union(*(addresses & part for part in self._parts))
