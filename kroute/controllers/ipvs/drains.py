"""Draining real servers: they take no new connections, and stay for those that are open."""

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress

from kroute.kernel.clients import VirtualServerTable
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.objects import RealServerKey, RealServerState, StatesByServer
from kroute.kernel.ipvs.objects import VirtualServerKey as KernelKey
from kroute.model.plan import Protocol, VirtualServerKey
from kroute.reconcile.comparison.virtual_servers import planned_key

POLLED_TOGETHER = 16
"""Virtual servers that are polled in one pass. It is small so that changes need not wait for a poll of all."""

FIRST_POLL = 2.0
LAST_POLL = 30.0
"""Seconds between two polls of the connections of draining real servers. A poll costs a system call or a netlink dump
for each virtual server, and a connection may live for days, so polls become rarer when nothing has begun to drain
lately."""

DATAGRAM_DRAIN = 1.5
"""Seconds for which a real server that is not TCP's drains at least, so that answers under way arrive. IPVS ends its
flows only by its deletion, and a client that keeps its socket must have moved before the pod ends, which is 5 s after
SIGTERM for CoreDNS with kubeadm's configuration (`lameduck`). It drains until the next poll, so for 2 s or a little
less if nothing else drains, and for 3.5 s at most."""

KEPT = 150.0
MOST_KEPT = 5000
SEARCHED_A_SECOND = 1_000_000
LONGEST_WAIT = 900.0
"""How many real servers of TCP that have drained are deleted. The kernel keeps each for KEPT seconds, more or less, and
searches all that it keeps for each real server that is added (`ip_vs_trash_get_dest`). With thousands that takes longer
than all that kroute does for a change. So it is to keep MOST_KEPT, or fewer while changes are so many that it would
look at more than SEARCHED_A_SECOND. The others wait with weight 0, which costs nobody anything; but of all that wait
the LONGEST_WAITth part is deleted each second. Those that are not TCP's do not wait, since only their deletion ends
flows to them."""


class Drains:
    """The draining real servers of each virtual server. Times are seconds on the caller's clock.

    `timeout` is how long a real server may drain; 0: without limit.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[VirtualServerKey, dict[RealServerKey, float]] = {}
        self._polled = 0.0
        self._unseen: list[VirtualServerKey] = []
        self._newest = 0.0
        self._oldest = 0.0
        self._room = 0.0
        """How many of TCP may be deleted in this poll."""
        self._kept = 0.0
        """How many deleted ones the kernel may have kept by the last poll, which began at `_room_noted`."""
        self._room_noted = 0.0
        self._begun = 0
        """How many have begun to drain since then, the first of them at `_first_begun`."""
        self._first_begun = 0.0

    def of(self, key: VirtualServerKey) -> Collection[RealServerKey]:
        """The draining real servers of a virtual server."""
        return self._since.get(key, {}).keys()

    def start(self, key: VirtualServerKey, real_server: RealServerKey, now: float) -> None:
        """Note that this real server has weight 0 from now on. One that drains already keeps its start."""
        if not self._since:
            self._polled = self._oldest = now
        self._newest = now
        since = self._since.setdefault(key, {})
        if real_server not in since:
            since[real_server] = now
            if not self._begun:
                self._first_begun = now
            self._begun += 1

    def stop(self, key: VirtualServerKey, real_servers: Iterable[RealServerKey]) -> None:
        """Note that these real servers were deleted, or have their weights back."""
        since = self._since.get(key)
        if since is not None:
            for real_server in real_servers:
                since.pop(real_server, None)
            if not since:
                del self._since[key]

    def forget(self, key: VirtualServerKey) -> None:
        """Note that the virtual server was deleted."""
        self._since.pop(key, None)

    def found(self, key: VirtualServerKey, real_servers: Collection[RealServerKey], now: float) -> None:
        """Replace a virtual server's draining real servers by those of a scan. One that is known keeps its start."""
        before = self._since.pop(key, {})
        if real_servers:
            self._since[key] = {real_server: before.get(real_server, now) for real_server in real_servers}

    def keep_only(self, keys: Container[VirtualServerKey]) -> None:
        """Forget all virtual servers but these, in which a scan has found draining real servers."""
        self._since = {key: since for key, since in self._since.items() if key in keys}
        self._note_ages()

    def next_due(self) -> float | None:
        """When to poll connections next; None if no real server drains."""
        if self._unseen:
            return self._polled
        if not self._since:
            return None
        age = max(0.0, self._polled - self._newest)
        poll = self._polled + min(LAST_POLL, max(FIRST_POLL, age / 10))
        if self._timeout > 0:
            poll = min(poll, max(self._oldest + self._timeout, self._polled + FIRST_POLL))
        return poll

    def to_poll(self, now: float) -> list[VirtualServerKey]:
        """The virtual servers to poll now.

        A poll that has begun continues in the next passes, without a pause, until it has visited every virtual server,
        or of TCP's as many as have all the real servers that may be deleted; the next poll begins with the others.
        """
        if not self._unseen:
            poll = self.next_due()
            if poll is None or now < poll:
                return []
            self._unseen = self._in_room(now)
        together = self._unseen[:POLLED_TOGETHER]
        del self._unseen[:POLLED_TOGETHER]
        self._polled = now
        if not self._unseen:
            self._note_ages()
        return together

    async def read(self, ipvs: VirtualServerTable, keys: Sequence[VirtualServerKey]) -> StatesByServer:
        """The real servers of these virtual servers: of IPv4 without a dump, unless a draining one is of IPv6."""
        ipv4 = [
            key for key in keys if ":" not in key.address and not any(":" in address for address, _ in self.of(key))
        ]
        table: StatesByServer = {}
        if ipv4:
            with suppress(KernelError):
                table = await ipvs.ipv4_real_servers(ipv4)
        others = [key for key in keys if key not in table]
        return {**table, **await ipvs.real_servers(others)} if others else table

    def drained(
        self, table: Mapping[KernelKey, Mapping[RealServerKey, RealServerState]], now: float
    ) -> list[tuple[VirtualServerKey, RealServerKey]]:
        """The real servers in `table`, the result of a poll, that may be deleted.

        These have no connections, have drained for longer than the timeout, or than DATAGRAM_DRAIN if they are not
        TCP's; or another program has deleted them. Of TCP's they are as many as there is room for.
        """
        over = []
        for key in map(planned_key, table):
            of_key = [
                (key, real_server)
                for real_server, start in self._since.get(key, {}).items()
                if (state := table[key].get(real_server)) is None
                or (key.protocol != Protocol.TCP and now >= start + DATAGRAM_DRAIN)
                or state.active + state.inactive == 0
                or (self._timeout > 0 and now >= start + self._timeout)
            ]
            if key.protocol == Protocol.TCP:
                del of_key[max(0, int(self._room)) :]
                self._room -= len(of_key)
            self._kept += len(of_key)
            over += of_key
        return over

    def _in_room(self, now: float) -> list[VirtualServerKey]:
        """The virtual servers of a poll that begins."""
        waiting, passed = sum(map(len, self._since.values())), now - self._room_noted
        a_second = self._begun / max(FIRST_POLL, now - self._first_begun)
        most = min(MOST_KEPT, SEARCHED_A_SECOND / a_second) if a_second else MOST_KEPT
        self._kept *= math.exp(-passed / KEPT)
        self._room = max(most - self._kept, waiting * min(passed, LAST_POLL) / LONGEST_WAIT)
        self._begun, self._room_noted = 0, now
        if waiting <= self._room:
            return list(self._since)
        found, room = [], self._room
        for key, since in list(self._since.items()):
            if key.protocol == Protocol.TCP:
                if room < 1:
                    continue
                room -= len(since)
                self._since[key] = self._since.pop(key)
            found.append(key)
        return found

    def _note_ages(self) -> None:
        """Compute the newest and oldest start. It runs once a poll, not after each change: at worst a poll is early."""
        starts = [start for since in self._since.values() for start in since.values()]
        self._newest, self._oldest = max(starts, default=0.0), min(starts, default=0.0)
