"""A listening socket that gives every client its share: connections beyond it are closed at once.

The event loop is never the victim of its clients: none of them gets more than its share, and all together no more than
the process can answer beside its work.
"""

import asyncio
import ipaddress
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from kroute.kernel.netlink.socket_diag import owner_of

MOST_IN_ALL = 1000
"""Connections a second of all clients to all ports of a budget. An answer takes some 0.3 ms, so these take a third of a
processor. A hundred load balancers that probe seven ports each second make 700."""
SHARES = ((1 / 4, 1 / 4), (1 / 2, 1 / 20), (3 / 4, 1 / 100))
"""The share of one client, by how much of the budget all have had this second: up to so much, so much of it. The last
quarter is for clients that have had nothing, so dozens of addresses that ask often leave room for a probe."""
ROOT = 0
_LOCAL, _LOCAL_ROOT = "this node", "root of this node"
MOST_A_TURN = 32
"""How many are accepted or closed on all ports of a budget before the event loop goes on with something else. One that
is closed takes some 20 to 50 us, one that is answered some 300."""


class Budget:
    """The connections that the clients of some ports may make in a second, `most` of all together.

    A client is an IPv4 address or an IPv6 network of 64 bits, whichever ports it asks; 127.0.0.0/8 is one client. Once
    a quarter of the second's connections is spent, the processes of this node are told from others by their sockets:
    those of all users are one client, and those of root, which the kubelet is, have a share that no other client can
    take.
    """

    def __init__(self, most: int = MOST_IN_ALL, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._second = 0
        self._spent = 0
        self._made: Counter[str] = Counter()
        self._in_turn = 0
        self._had_turn: set[object] = set()

    def take(self, address: str, owner: Callable[[], int | None]) -> bool:
        """Count a connection, if its client has not had its share of this second.

        `owner` says which user of this node has made it, None if it comes from elsewhere.
        """
        second = int(self._clock())
        if second != self._second:
            self._second, self._spent = second, 0
            self._made.clear()
        client, share = client_of(address), self._share()
        if self._spent >= self._most // 4 and (user := owner()) is not None:
            client = _LOCAL_ROOT if user == ROOT else _LOCAL
            share = self._most // 4 if user == ROOT else share
        if self._made[client] >= share:
            return False
        self._made[client] += 1
        self._spent += client != _LOCAL_ROOT
        return True

    def has_turn(self, port: object) -> bool:
        """Whether a port may accept one more in this turn of the event loop. Each port may accept one."""
        if not self._in_turn:
            asyncio.get_running_loop().call_soon(self._end_turn)
        elif self._in_turn >= MOST_A_TURN and port in self._had_turn:
            return False
        self._in_turn += 1
        self._had_turn.add(port)
        return True

    def _end_turn(self) -> None:
        self._in_turn = 0
        self._had_turn.clear()

    def _share(self) -> int:
        """How many connections one client may have had, with this one, if it is to be accepted."""
        for bound, share in SHARES:
            if self._spent < int(bound * self._most):
                return max(1, int(share * self._most))
        return int(self._spent < self._most)


class FairListener(socket.socket):
    """Accepts for asyncio, which stops for this turn when `accept` says that nothing waits."""

    def __init__(self, listener: socket.socket, budget: Budget) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._budget = budget

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection of a client that has not had its share of this second; others are closed."""
        while self._budget.has_turn(self):
            connection, peer = super().accept()
            if self._budget.take(peer[0], partial(owner_of, connection)):
                return connection, peer
            connection.close()
        raise BlockingIOError


def client_of(address: str) -> str:
    """What shares one share; the addresses of one host may be all of an IPv6 network."""
    ipv4 = address.rpartition(":")[2] if "." in address else ""
    if ipv4.startswith("127.") or address == "::1":
        return _LOCAL
    return ipv4 or str(ipaddress.ip_network(f"{address.partition('%')[0]}/64", strict=False))
