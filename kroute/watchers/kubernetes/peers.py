"""The two ends of the connections to the API server: where it has answered lately, and from where it was asked."""

import asyncio
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from kroute.model.addresses import canonical

LATELY = 1800.0
"""Seconds. Every connection is asked something more often: a watch ends within ten minutes."""
MOST = 16


class Peers:
    """Who has answered, and when last; `changed` is set when somebody new has.

    A connection whose source address has left the node is ended: the kernel sends nothing from that address, and a
    watch that only listens would wait until it counts as stalled.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.changed = asyncio.Event()
        self._clock = clock
        self._answered: dict[str, float] = {}
        self._sources: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._own: frozenset[str] = frozenset()

    def saw(self, transport: Any) -> None:
        """Take the other end of an answer's connection; None is one that has been closed."""
        address = _end_of(transport, "peername")
        if address is None:
            return
        source = _end_of(transport, "sockname")
        if source is not None:
            self._sources[transport] = source
        known = self.recent()
        self._answered.pop(address, None)
        self._answered[address] = self._clock()
        while len(self._answered) > MOST:
            del self._answered[next(iter(self._answered))]
        if address not in known:
            self.changed.set()

    def recent(self) -> frozenset[str]:
        """Those that have answered lately."""
        since = self._clock() - LATELY
        return frozenset(address for address, at in self._answered.items() if at >= since)

    def keep_to(self, own: frozenset[str]) -> None:
        """End the connections from an address that the node had at the last call, and has not among these."""
        gone, self._own = self._own - own, own
        for transport, source in tuple(self._sources.items()):
            if source in gone:
                transport.abort()


def _end_of(transport: Any, which: str) -> str | None:
    """The address of one end of a connection, or None without any."""
    name = transport.get_extra_info(which) if transport is not None else None
    return canonical(str(name[0])) if name else None
