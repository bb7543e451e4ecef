"""A listening socket that gives every client its share: who asks too often is closed before anything is made for it."""

import ipaddress
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

MOST_A_SECOND = 100
"""Connections a second that one client may make to a port: an IPv4 address, or an IPv6 network of 64 bits. Probes of a
kubelet or a load balancer are a few, and so are those of a browser with the status page."""
_REFUSALS_A_TURN = 64
"""How many are closed before the event loop goes on with something else; each takes some 20 us."""


class FairListener(socket.socket):
    """Accepts for asyncio, which stops for this turn when `accept` says that nothing waits."""

    def __init__(self, listener: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._clock = clock
        self._second = 0
        self._made: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection of a client that has not had its share of this second."""
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
        self._made[client] += 1
        return self._made[client] <= MOST_A_SECOND


def _client(address: str) -> str:
    """What shares one share; the addresses of one host may be all of an IPv6 network."""
    if "." in address:
        return address
    return str(ipaddress.ip_network(f"{address.partition('%')[0]}/64", strict=False))
