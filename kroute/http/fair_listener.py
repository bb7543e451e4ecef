"""A listening socket that gives every client its share: who asks too often is closed before anything is made for it.

The event loop is never the victim of those who ask: no client gets more than its share, and all together no more than
the process can answer beside its work.
"""

import ipaddress
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

MOST_A_SECOND = 100
"""Connections a second that one client may make to a port: an IPv4 address, or an IPv6 network of 64 bits. Probes of a
kubelet or a load balancer are a few, and so are those of a browser with the status page."""
MOST_IN_ALL = 1000
"""Connections a second of all clients to all ports of the process together. An answer takes some 0.3 ms, so these take
a third of a processor. A hundred load balancers that probe ten ports each second make as many."""
SHARES = ((MOST_IN_ALL // 4, MOST_A_SECOND), (MOST_IN_ALL // 2, 10), (MOST_IN_ALL * 3 // 4, 2), (MOST_IN_ALL, 1))
"""The share of one client at one port, by how many connections all have had this second: up to so many, so many. The
last quarter is for those who have had none, so hundreds of addresses that ask often leave room for a probe."""
_REFUSALS_A_TURN = 64
"""How many are closed before the event loop goes on with something else; each takes some 20 to 50 us."""


class Budget:
    """What all clients have had of this second. One is shared by all listeners whose answers take the same loop."""

    def __init__(self) -> None:
        self._second = 0
        self._made = 0

    def share(self, second: int) -> int:
        """How many connections one client may have had at one port, with this one, if it is to be accepted."""
        if second != self._second:
            self._second, self._made = second, 0
        return next((share for bound, share in SHARES if self._made < bound), 0)

    def spend(self) -> None:
        """Count a connection that was accepted."""
        self._made += 1


_OF_THE_PROCESS = Budget()


class FairListener(socket.socket):
    """Accepts for asyncio, which stops for this turn when `accept` says that nothing waits."""

    def __init__(
        self,
        listener: socket.socket,
        clock: Callable[[], float] = time.monotonic,
        budget: Budget = _OF_THE_PROCESS,
    ) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._clock = clock
        self._budget = budget
        self._second = 0
        self._made: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection of a client that has not had its share of this second; others are closed."""
        for _ in range(_REFUSALS_A_TURN):
            connection, peer = super().accept()
            if self._has_share(peer[0]):
                return connection, peer
            connection.close()
        raise BlockingIOError

    def _has_share(self, address: str) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._made.clear()
        client = _client(address)
        if self._made[client] >= self._budget.share(second):
            return False
        self._made[client] += 1
        self._budget.spend()
        return True


def _client(address: str) -> str:
    """What shares one share; the addresses of one host may be all of an IPv6 network."""
    if "." in address:
        return address
    return str(ipaddress.ip_network(f"{address.partition('%')[0]}/64", strict=False))
