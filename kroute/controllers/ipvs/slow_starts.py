"""Slow starts: the weight of a new real server climbs to the one that is planned, in steps of equal length.

A real server is new if it joins others that serve. It begins with a tenth of its weight, as Envoy's slow start does by
default (`min_weight_percent`), and then has as much of it as of its time has passed. Where all real servers are new,
none has to be spared, and all have their whole weight.

Nothing is recorded for a restart: what a real server has of its weight in the kernel says how far it has climbed.
"""

from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from kroute.kernel.ipvs.objects import RealServerKey
from kroute.model.plan import SLOW_START_STEPS, RealServer, VirtualServer, VirtualServerKey

FIRST_STEP = SLOW_START_STEPS // 10
"""The step at which a new real server begins: a tenth of its weight."""


CLIMBS_A_PASS = 4000
"""Real servers that climb in one pass of the controller, about: a few milliseconds. The rest follow in the next one."""


class _Climb(NamedTuple):
    """A real server on its way: when it began, the step that it has reached, and the weight that is planned."""

    began: float
    step: int
    whole: int


class SlowStarts:
    """The real servers whose weights climb. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._climbs: dict[VirtualServerKey, dict[RealServerKey, _Climb]] = {}
        self._seconds: dict[VirtualServerKey, int] = {}
        """The length of each virtual server's slow starts; those without have none."""
        self._due: dict[VirtualServerKey, float] = {}
        """When a real server of each virtual server with climbs is to climb next."""
        self._in_order: list[tuple[float, VirtualServerKey]] = []
        """The same as a heap. An entry that `_due` contradicts is out of date."""

    def want(self, desired: VirtualServer) -> None:
        """Note for how long climbs take from now on, also those that have begun: a time alone is no reason to write."""
        if desired.slow_start and desired.key in self._seconds:
            self._seconds[desired.key] = desired.slow_start
            self._schedule(desired.key)

    def begin(
        self, applied: VirtualServer | None, desired: VirtualServer, draining: Collection[RealServerKey], now: float
    ) -> None:
        """Note which real servers of `desired` climb, before it is written.

        `applied` is what the kernel has, without those that are `draining`: one that comes back is not new.
        """
        key = desired.key
        if not desired.slow_start:
            self.forget(key)
            return
        before = {(address, port): weight for address, port, weight in applied.real_servers} if applied else {}
        known = self._climbs.get(key, {})
        is_first_look = key not in self._seconds
        self._seconds[key] = desired.slow_start
        climbs: dict[RealServerKey, _Climb] = {}
        weighty = [server for server in desired.real_servers if server.weight]
        for address, port, weight in weighty:
            server = (address, port)
            if server in known:
                climbs[server] = known[server]._replace(whole=weight)
            elif server not in before:
                if server not in draining:
                    climbs[server] = _Climb(now, FIRST_STEP, weight)
            elif is_first_look and (step := _step_of(before[server], weight)) < SLOW_START_STEPS:
                climbs[server] = _Climb(now - desired.slow_start * step / SLOW_START_STEPS, step, weight)
        if climbs and len(climbs) < len(weighty):
            self._climbs[key] = climbs
        else:
            self._climbs.pop(key, None)
        self._schedule(key)

    def join(self, desired: VirtualServer, server: RealServerKey, now: float) -> None:
        """Note that a real server comes back after it was ejected: it climbs like a new one."""
        whole = {(real.address, real.port): real.weight for real in desired.real_servers}.get(server)
        if desired.slow_start and whole:
            self._seconds[desired.key] = desired.slow_start
            self._climbs.setdefault(desired.key, {})[server] = _Climb(now, FIRST_STEP, whole)
            self._schedule(desired.key)

    def effective(self, desired: VirtualServer) -> VirtualServer:
        """The virtual server with the weights that its real servers should have now."""
        climbs = self._climbs.get(desired.key)
        if not climbs or not desired.slow_start:
            return desired
        return msgspec.structs.replace(desired, real_servers=tuple(_climbed(desired.real_servers, climbs)))

    def advance(self, now: float) -> list[VirtualServerKey]:
        """Let the real servers climb as far as they should be. Returns the virtual servers whose weights change."""
        due: list[VirtualServerKey] = []
        left = CLIMBS_A_PASS
        while left > 0 and (at := self.next_due()) is not None and at <= now:
            _, key = heappop(self._in_order)
            del self._due[key]
            due.append(key)
            left -= len(self._climbs[key])
        changed = []
        for key in due:
            climbs = self._climbs[key]
            reached = {server: _reached(climb, self._seconds[key], now) for server, climb in climbs.items()}
            if reached != climbs:
                changed.append(key)
                self._climbs[key] = {
                    server: climb for server, climb in reached.items() if climb.step < SLOW_START_STEPS
                }
                if not self._climbs[key]:
                    del self._climbs[key]
            self._schedule(key)
        return changed

    def next_due(self) -> float | None:
        """When the next real server is to climb; None if none does."""
        while self._in_order:
            due, key = self._in_order[0]
            if self._due.get(key) == due:
                return due
            heappop(self._in_order)
        return None

    def _schedule(self, key: VirtualServerKey) -> None:
        """Note when a real server of this virtual server is to climb next."""
        climbs = self._climbs.get(key)
        if not climbs:
            self._due.pop(key, None)
            return
        seconds = self._seconds[key]
        due = min(climb.began + seconds * (climb.step + 1) / SLOW_START_STEPS for climb in climbs.values())
        if self._due.get(key) == due:
            return
        self._due[key] = due
        heappush(self._in_order, (due, key))
        if len(self._in_order) > 2 * len(self._due) + 16:  # most are out of date
            self._in_order = [(at, key) for key, at in self._due.items()]
            heapify(self._in_order)

    def forget(self, key: VirtualServerKey) -> None:
        """Note that the virtual server was deleted, or has no slow start."""
        self._climbs.pop(key, None)
        self._seconds.pop(key, None)
        self._due.pop(key, None)


def _climbed(real_servers: Collection[RealServer], climbs: Mapping[RealServerKey, _Climb]) -> Iterator[RealServer]:
    """The real servers with their weights of now. One that has it already, as in the kernel, keeps it."""
    for server in real_servers:
        climb = climbs.get((server.address, server.port))
        if climb is None or server.weight in {0, _weight_at(climb.step, climb.whole)}:
            yield server
        else:
            yield server._replace(weight=_weight_at(climb.step, server.weight))


def _reached(climb: _Climb, seconds: int, now: float) -> _Climb:
    """The climb at the step that it should have reached; it never goes back."""
    step = int((now - climb.began) * SLOW_START_STEPS / seconds)
    return climb._replace(step=min(SLOW_START_STEPS, max(climb.step, step)))


def _weight_at(step: int, weight: int) -> int:
    return max(1, weight * step // SLOW_START_STEPS)


def _step_of(weight: int, whole: int) -> int:
    """The step at which a real server has this weight, of the whole that is planned."""
    return min(SLOW_START_STEPS, max(1, -(-weight * SLOW_START_STEPS // whole)))
