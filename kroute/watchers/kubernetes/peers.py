"""The addresses at which the API server has answered lately."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from kroute.model.addresses import canonical

LATELY = 1800.0
"""Seconds. Every connection is asked something more often: a watch ends within ten minutes."""
MOST = 16


class Peers:
    """Who has answered, and when last; `changed` is set when somebody new has."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.changed = asyncio.Event()
        self._clock = clock
        self._answered: dict[str, float] = {}

    def saw(self, transport: Any) -> None:
        """Take the other end of an answer's connection; None is one that has been closed."""
        name = transport.get_extra_info("peername") if transport is not None else None
        address = canonical(str(name[0])) if name else None
        if address is None:
            return
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
