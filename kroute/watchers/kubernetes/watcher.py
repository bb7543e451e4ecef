"""Follow a cluster by its API."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from kroute.model.kinds import WATCHED, WatchedKind
from kroute.model.objects import Change
from kroute.watchers import Room, Sink, always_room
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.reflector import Reflector
from kroute.watchers.kubernetes.timing import Timing


class KubernetesWatcher:
    """One reflector for each kind. All pass on changes to the same sink."""

    def __init__(
        self,
        api: Api,
        sink: Sink,
        timing: Timing | None = None,
        kinds: Iterable[WatchedKind] = WATCHED,
        room: Room = always_room,
    ) -> None:
        self._api = api
        self.reflectors = {kind.name: Reflector(api, kind, sink, timing, room) for kind in kinds}

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind, reflector in self.reflectors.items():
                group.create_task(reflector.run(), name=f"watch {kind}")
            group.create_task(self._api.stay_reachable(), name="API servers")


KEPT = 64
"""Changes that are kept before the reflectors wait; each may add a batch. The catalog needs far less memory for an
object. The holes that the others leave cannot be returned: with 1,000 Services of 10 endpoints they are 4 MiB."""


class FollowedCluster:
    """A cluster that is followed already. `pass_on` takes what has come before it was called, and what comes then.

    Until then the first changes are kept, and the others wait undecoded, as bytes.
    """

    def __init__(self, api: Api, kinds: Iterable[WatchedKind]) -> None:
        self.api = api
        self._kept: deque[Sequence[Change]] = deque()
        self._sink: Sink = self._kept.append
        self._is_taken = asyncio.Event()
        self.watcher = KubernetesWatcher(api, self._take, kinds=kinds, room=self._room)

    async def pass_on(self, sink: Sink) -> None:
        """Pass on every change, in the order in which they came, until cancelled. To be called once."""
        while self._kept:
            sink(self._kept.popleft())
            await asyncio.sleep(0)
        self._sink = sink
        self._is_taken.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._sink = lambda _changes: None  # nobody follows any more

    def _take(self, changes: Sequence[Change]) -> None:
        self._sink(changes)

    async def _room(self) -> None:
        await asyncio.sleep(0)
        if sum(map(len, self._kept)) >= KEPT:
            await self._is_taken.wait()


@asynccontextmanager
async def followed(api: Api, kinds: Iterable[WatchedKind]) -> AsyncIterator[FollowedCluster]:
    """Follow a cluster inside of the block, from its beginning on. In the end `api` is closed."""
    async with api, asyncio.TaskGroup() as group:
        cluster = FollowedCluster(api, kinds)
        watching = group.create_task(cluster.watcher.run(), name="watch")
        try:
            yield cluster
        finally:
            watching.cancel()
