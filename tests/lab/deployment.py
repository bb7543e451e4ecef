"""kroute on the nodes of the lab's cluster, which read one directory of manifests."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.lab import objects
from tests.lab.cluster import Cluster, Node
from tests.lab.kroute_process import KrouteProcess

T = TypeVar("T")

SLOWNESS = 5 if "User Mode Linux" in Path("/proc/cpuinfo").read_text() else 1
"""Times in scenarios are those of a native kernel. In the lab's machine they may be five times as long."""
POLL = 0.05


async def eventually(check: Callable[[], T | Awaitable[T]], within: float = 10.0) -> T:
    """Return the result of `check` once it raises no AssertionError or OSError, within that many native seconds."""
    deadline = asyncio.get_running_loop().time() + within * SLOWNESS
    while True:
        try:
            result = check()
            return await result if isinstance(result, Awaitable) else result
        except (AssertionError, OSError):
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(POLL)


class Deployment:
    """A kroute process on each node. `apply` and `delete` change the objects that they serve."""

    def __init__(self, cluster: Cluster, manifests: Path) -> None:
        self.cluster = cluster
        self.manifests = manifests
        self.agents: dict[str, KrouteProcess] = {}
        self._touched: set[str] = set()
        self._applied: dict[Path, objects.Object] = {}
        self.node_objects = [objects.node(node) for node in cluster.nodes.values()]
        self.apply(*self.node_objects)

    def apply(self, *items: objects.Object) -> None:
        """Create or replace objects, each in its own file, each file in one step."""
        for item in items:
            path = self._path(item)
            self._applied[path] = item
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(item))
            unfinished.replace(path)

    def delete(self, *items: objects.Object) -> None:
        """Delete objects."""
        for item in items:
            path = self._path(item)
            path.unlink()
            del self._applied[path]

    async def clear(self) -> None:
        """Delete every object except the Nodes, which are restored, and wait until no node serves any.

        Real servers may still drain.
        """
        nodes = {self._path(item): item for item in self.node_objects}
        self.delete(*(item for path, item in self._applied.items() if path not in nodes))
        self.apply(*(item for path, item in nodes.items() if self._applied[path] != item))
        for name in self.agents:
            await eventually(partial(_serves_nothing, self.cluster.node(name)), within=30)

    async def start(self, *flags: str, nodes: tuple[str, ...] = (), wait: bool = True) -> None:
        """Start kroute on the nodes (by default all). With `wait`, return when each has applied all objects."""
        for name in nodes or tuple(self.cluster.nodes):
            self._touched.add(name)
            self.agents[name] = await self.cluster.node(name).kroute(
                "run", "--manifests", str(self.manifests), "--node-name", name, "--resync-period", "5s", *flags
            )
        for name in (nodes or tuple(self.cluster.nodes)) if wait else ():
            await self.agents[name].ready()

    async def stop(self) -> None:
        """Stop every agent in order. The data path stays."""
        for agent in self.agents.values():
            assert await agent.terminate() == 0
        self.agents.clear()

    def give_up(self, node: str) -> None:
        """Leave a node that another proxy has taken over out of the cleanup."""
        self._touched.discard(node)

    async def cleanup(self) -> None:
        """Run `kroute cleanup` on every node that kroute ran on."""
        await self.stop()
        while self._touched:
            cleanup = await self.cluster.node(self._touched.pop()).kroute("cleanup")
            assert await cleanup.wait() == 0, cleanup.log.read_text()

    def _path(self, item: objects.Object) -> Path:
        return self.manifests / ("_".join(objects.identity(item)).lower() + ".json")


def _serves_nothing(node: Node) -> None:
    """Assert that no virtual server takes new connections. With weights of 0 it only drains."""
    takes_new = {
        key for key, it in node.ipvs().items() if not it.real_servers or any(s.weight for s in it.real_servers.values())
    }
    assert not takes_new
