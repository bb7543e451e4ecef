"""Real servers that take no new connections and are kept for the ones they have."""

from collections.abc import Collection, Mapping

from kroute.kernel.ipvs import RealServerKey, VirtualServerState
from kroute.kernel.ipvs import VirtualServerKey as KernelKey
from kroute.planning.plan import Protocol, VirtualServerKey

FIRST_POLL = 2.0
LAST_POLL = 30.0
"""Seconds between two looks at the connections of draining real servers: more often while something began to drain
lately, since a look reads the whole table, and a connection may live for days."""


class Drains:
    """The real servers that drain, by virtual server. Times are seconds, on the caller's clock; `timeout` 0: none."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: dict[VirtualServerKey, dict[RealServerKey, float]] = {}
        self._polled = 0.0

    def of(self, key: VirtualServerKey) -> Collection[RealServerKey]:
        """The draining real servers of a virtual server."""
        return self._since.get(key, {}).keys()

    def start(self, key: VirtualServerKey, real_server: RealServerKey, now: float) -> None:
        """This real server has weight 0 from now on; one that drains already goes on."""
        if not self._since:
            self._polled = now
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

    def replace(self, draining: Mapping[VirtualServerKey, Collection[RealServerKey]], now: float) -> None:
        """Remember what a reading of the kernel shows; what drained already keeps its time."""
        before = self._since
        self._since = {
            key: {real_server: before.get(key, {}).get(real_server, now) for real_server in real_servers}
            for key, real_servers in draining.items()
            if real_servers
        }

    def next_poll(self) -> float | None:
        """When to look at the connections next; None if nothing drains."""
        if not self._since:
            return None
        starts = [start for since in self._since.values() for start in since.values()]
        age = max(0.0, self._polled - max(starts))
        poll = self._polled + min(LAST_POLL, max(FIRST_POLL, age / 10))
        if self._timeout > 0:
            poll = min(poll, max(min(starts) + self._timeout, self._polled + FIRST_POLL))
        return poll

    def over(
        self, table: Mapping[KernelKey, VirtualServerState], now: float
    ) -> list[tuple[VirtualServerKey, RealServerKey]]:
        """The real servers that may be deleted: without connections, out of time, or not of TCP."""
        self._polled = now
        return [
            (key, real_server)
            for key, since in self._since.items()
            if key in table
            for real_server, start in since.items()
            if (state := table[key].real_servers.get(real_server)) is not None
            and (
                key.protocol != Protocol.TCP
                or state.active + state.inactive == 0
                or (self._timeout > 0 and now >= start + self._timeout)
            )
        ]
