"""Follow a cluster by its API: Services, EndpointSlices and Nodes."""

import asyncio
from collections.abc import Mapping

from kroute.watchers.kubernetes.reflector import Reflector
from kroute.watchers.kubernetes.requests import Requests
from kroute.watchers.kubernetes.resources import WATCHED
from kroute.watchers.kubernetes.timing import Timing
from kroute.watchers.sink import Sink


class KubernetesWatcher:
    """One reflector for each resource; all pass on to the same sink."""

    def __init__(self, requests: Requests, sink: Sink, timing: Timing | None = None) -> None:
        self._reflectors = {resource.kind.__name__: Reflector(requests, resource, sink, timing) for resource in WATCHED}

    @property
    def reflectors(self) -> Mapping[str, Reflector]:
        """The reflectors by the kind that they follow, for their statistics."""
        return self._reflectors

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind, reflector in self._reflectors.items():
                group.create_task(reflector.run(), name=f"watch {kind}")
