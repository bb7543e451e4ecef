"""Shared by the watchers' tests: objects, a follower of changes, and a reflector with the stand-in API server."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kroute.model.kinds import SERVICES, WatchedKind
from kroute.model.objects import Applied, Change, Deleted, KubernetesObject, Listed, ObjectKey
from kroute.settings import Settings
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.reflector import Reflector
from kroute.watchers.kubernetes.timing import Timing
from tests.apiserver import ApiServer

os.environ["SSL_CERT_FILE"] = os.devnull
"""aiohttp sessions load the system's certificates, which takes 0.2 s; no certificate in the tests needs them."""

PATIENCE = 60.0
"""Seconds after which a test stops waiting and fails."""


def service(name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 80}], **spec},
    }


def labelled(item: dict[str, Any], **labels: str) -> dict[str, Any]:
    return {**item, "metadata": {**item["metadata"], "labels": labels}}


def node(name: str, zone: str = "z1") -> dict[str, Any]:
    return labelled(
        {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}}, **{"topology.kubernetes.io/zone": zone}
    )


def endpoint_slice(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    item = {"kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4", "endpoints": None}
    return labelled(item, **{"kubernetes.io/service-name": "web", **labels})


def key(name: str, namespace: str = "default") -> ObjectKey:
    return ObjectKey(namespace, name)


class Follower:
    """A sink that keeps the objects that result from the changes."""

    def __init__(self) -> None:
        self.items: dict[tuple[type, ObjectKey], KubernetesObject] = {}
        self.changes: list[Change] = []
        self.listed: list[type] = []
        self.batches: list[int] = []
        self._arrived = asyncio.Event()

    def __call__(self, changes: Sequence[Change]) -> None:
        self.changes += changes
        self.batches.append(len(changes))
        for change in changes:
            if isinstance(change, Applied):
                self.items[type(change.item), change.item.key] = change.item
            elif isinstance(change, Deleted):
                del self.items[change.kind, change.key]
            else:
                self.listed.append(change.kind)
        self._arrived.set()

    @property
    def names(self) -> set[str]:
        return {name.name for _, name in self.items}

    def take(self) -> list[str]:
        """Return the changes since the last call, in words."""
        changes, self.changes = self.changes, []
        return [words(change) for change in changes]

    async def until(self, condition: Callable[[], bool], within: float = PATIENCE) -> None:
        async with asyncio.timeout(within):
            while not condition():
                self._arrived.clear()
                await self._arrived.wait()

    async def until_listed(self) -> None:
        await self.until(lambda: bool(self.listed))


async def eventually(condition: Callable[[], bool]) -> None:
    """Poll a condition that sets no event."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # what it waits for has no event to set
            await asyncio.sleep(0.002)


def words(change: Change) -> str:
    match change:
        case Applied(item):
            return f"applied {item.metadata.name}"
        case Deleted(_, name):
            return f"deleted {name.name}"
        case Listed(kind):
            return f"listed {kind.__name__}"


class Pauses:
    """Replaces asyncio.sleep: records the requested seconds, and pauses only for 1 ms."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.arrived = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self.arrived.set()
        await asyncio.sleep(0.001)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.taken) < count:
                self.arrived.clear()
                await self.arrived.wait()


def quick(pauses: Pauses, **changes: Any) -> Timing:
    """Return a timing without jitter and pauses, with a stall timeout of a minute."""
    return replace(Timing(sleep=pauses, rng=NoJitter(), stall_timeout=60.0, short_watch=0.0), **changes)


class NoJitter(random.Random):
    def random(self) -> float:
        return 0.0


@asynccontextmanager
async def running(*coroutines: Any) -> AsyncIterator[None]:
    """Run these during the block, and cancel them at its end."""
    tasks: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as group:
        tasks += [group.create_task(coroutine) for coroutine in coroutines]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def reflecting(
    server: ApiServer, tmp_path: Path, follower: Follower, timing: Timing, kind: WatchedKind = SERVICES
) -> AsyncIterator[Reflector]:
    """Run a reflector with the stand-in API server, during the block."""
    settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"))
    async with await Api.open(settings) as api:
        reflector = Reflector(api, kind, follower, timing)
        async with running(reflector.run()):
            yield reflector
