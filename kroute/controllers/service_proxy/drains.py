"""Real servers that take no new connections and are kept for the ones they have."""

from collections.abc import Collection, Container, Mapping

from kroute.comparison.virtual_servers import planned_key
from kroute.kernel.ipvs.client import RealServerKey, RealServerState
from kroute.kernel.ipvs.client import VirtualServerKey as KernelKey
from kroute.model.plan import Protocol, VirtualServerKey

LOOKED_AT_TOGETHER = 16
"""Virtual servers whose connections are looked at in one pass: what changes meanwhile is not to wait for all."""

FIRST_POLL = 2.0
LAST_POLL = 30.0
"""Seconds between two looks at the connections of draining real servers: more often while something began to drain
lately, since a look costs a netlink dump for each virtual server, and a connection may live for days."""


class Drains:
    """The real servers that drain, by virtual server. Times are seconds, on the caller's clock; `timeout` 0: none."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[VirtualServerKey, dict[RealServerKey, float]] = {}
        self._polled = 0.0
        self._unseen: list[VirtualServerKey] = []
        self._newest = 0.0
        self._oldest = 0.0

    def of(self, key: VirtualServerKey) -> Collection[RealServerKey]:
        """The draining real servers of a virtual server."""
        return self._since.get(key, {}).keys()

    def start(self, key: VirtualServerKey, real_server: RealServerKey, now: float) -> None:
        """This real server has weight 0 from now on; one that drains already goes on."""
        if not self._since:
            self._polled = self._oldest = now
        self._newest = now
        self._since.setdefault(key, {}).setdefault(real_server, now)

    def stop(self, key: VirtualServerKey, real_server: RealServerKey) -> None:
        """This real server has gone, or has its weight back."""
        since = self._since.get(key)
        if since is not None:
            since.pop(real_server, None)
            if not since:
                del self._since[key]

    def forget(self, key: VirtualServerKey) -> None:
        """The virtual server has gone."""
        self._since.pop(key, None)

    def found(self, key: VirtualServerKey, real_servers: Collection[RealServerKey], now: float) -> None:
        """Remember what a scan of the kernel shows; what drained already keeps its time."""
        before = self._since.pop(key, {})
        if real_servers:
            self._since[key] = {real_server: before.get(real_server, now) for real_server in real_servers}

    def keep_only(self, keys: Container[VirtualServerKey]) -> None:
        """A reading has found no other virtual servers than these with something that drains."""
        self._since = {key: since for key, since in self._since.items() if key in keys}
        self._look_at_ages()

    def next_poll(self) -> float | None:
        """When to look at connections next; None if nothing drains."""
        if self._unseen:
            return self._polled
        if not self._since:
            return None
        age = max(0.0, self._polled - self._newest)
        poll = self._polled + min(LAST_POLL, max(FIRST_POLL, age / 10))
        if self._timeout > 0:
            poll = min(poll, max(self._oldest + self._timeout, self._polled + FIRST_POLL))
        return poll

    def to_look_at(self, now: float) -> list[VirtualServerKey]:
        """The virtual servers that are to be looked at now. A look goes on, at once, until it has come to the last."""
        if not self._unseen:
            poll = self.next_poll()
            if poll is None or now < poll:
                return []
            self._unseen = list(self._since)
        together = self._unseen[-LOOKED_AT_TOGETHER:]
        del self._unseen[-LOOKED_AT_TOGETHER:]
        self._polled = now
        if not self._unseen:
            self._look_at_ages()
        return together

    def over(
        self, table: Mapping[KernelKey, Mapping[RealServerKey, RealServerState]], now: float
    ) -> list[tuple[VirtualServerKey, RealServerKey]]:
        """Of what was looked at, the real servers that may be deleted: without connections, out of time, not of TCP."""
        return [
            (key, real_server)
            for key in map(planned_key, table)
            for real_server, start in self._since.get(key, {}).items()
            if (state := table[key].get(real_server)) is not None
            and (
                key.protocol != Protocol.TCP
                or state.active + state.inactive == 0
                or (self._timeout > 0 and now >= start + self._timeout)
            )
        ]

    def _look_at_ages(self) -> None:
        """Once a look at the kernel, and not for each change: what has gone since makes the next look too early."""
        starts = [start for since in self._since.values() for start in since.values()]
        self._newest, self._oldest = max(starts, default=0.0), min(starts, default=0.0)
