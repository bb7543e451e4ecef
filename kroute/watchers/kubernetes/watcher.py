"""Follow a cluster by its API."""

import asyncio
from collections.abc import Iterable, Mapping

from kroute.model.kinds import WATCHED, WatchedKind
from kroute.watchers.kubernetes.reflector import Reflector
from kroute.watchers.kubernetes.requests import Requests
from kroute.watchers.kubernetes.timing import Timing
from kroute.watchers.sink import Sink


class KubernetesWatcher:
    """One reflector for each kind. All pass on changes to the same sink."""

    def __init__(
        self, requests: Requests, sink: Sink, timing: Timing | None = None, kinds: Iterable[WatchedKind] = WATCHED
    ) -> None:
        self._reflectors = {kind.name: Reflector(requests, kind, sink, timing) for kind in kinds}

    @property
    def reflectors(self) -> Mapping[str, Reflector]:
        """The reflectors by the name of their kind, for their statistics."""
        return self._reflectors

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind, reflector in self._reflectors.items():
                group.create_task(reflector.run(), name=f"watch {kind}")
