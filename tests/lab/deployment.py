"""kroute on the nodes of the lab's cluster, with one source of objects."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.lab import objects
from tests.lab.cluster import Cluster, Node
from tests.lab.feed import Feed, feed_for
from tests.lab.hosts import OpenStream
from tests.lab.kroute_process import KrouteProcess
from tests.lab.patience import Looks

T = TypeVar("T")

SLOWNESS = 5 if "User Mode Linux" in Path("/proc/cpuinfo").read_text() else 1
"""Times in scenarios are those of a native kernel. In the lab's machine they may be five times as long."""
POLL = 0.05
EVENTS_ALONE = ("--resync-period", "1h")
"""Flags of kroute with which no resync comes during a test: whatever changes is noticed by an event, or not at all."""


async def eventually(check: Callable[[], T | Awaitable[T]], within: float = 10.0) -> T:
    """Return the result of `check` once it raises no AssertionError or OSError, within that many native seconds.

    The last check begins after them: one that began before may have looked long ago on a busy machine. They are
    counted as `Looks` counts them: neither stalls nor slow checks use them up.
    """
    looks = Looks(within * SLOWNESS, asyncio.get_running_loop().time)
    while True:
        is_last = looks.are_over()
        try:
            result = check()
            return await result if isinstance(result, Awaitable) else result
        except (AssertionError, OSError):
            if is_last:
                raise
            await asyncio.sleep(POLL)


async def goes_on(stream: OpenStream) -> None:
    """Wait until a byte that is sent after this call has come back."""
    echoed = stream.echoed

    def has_moved() -> None:
        assert stream.failure is None, stream.failure
        assert stream.echoed > echoed + 1

    await eventually(has_moved)


class Deployment:
    """A kroute process on each node. `apply` and `delete` change the objects that they serve.

    `source` are the flags that tell a kroute command where these objects are.
    """

    def __init__(self, cluster: Cluster, feed: Feed) -> None:
        self.cluster = cluster
        self.source = feed.flags
        self._feed = feed
        self.agents: dict[str, KrouteProcess] = {}
        self._touched: set[str] = set()
        self._applied: dict[tuple[str, str, str], objects.Object] = {}
        self.node_objects = [objects.node(node) for node in cluster.nodes.values()]
        self.apply(*self.node_objects)

    def apply(self, *items: objects.Object) -> list[objects.Object]:
        """Create or replace objects, one after the other. Returns them as agents see them."""
        seen = []
        for item in items:
            self._applied[objects.identity(item)] = item
            seen.append(self._feed.put(item))
        return seen

    def delete(self, *items: objects.Object) -> None:
        """Delete objects."""
        for item in items:
            self._feed.delete(item)
            del self._applied[objects.identity(item)]

    async def clear(self) -> None:
        """Delete every object except the Nodes, which are restored, and wait until no node serves any.

        Real servers may still drain.
        """
        nodes = {objects.identity(item): item for item in self.node_objects}
        self.delete(*[item for key, item in self._applied.items() if key not in nodes])
        self.apply(*(item for key, item in nodes.items() if self._applied[key] != item))
        for name in self.agents:
            await eventually(partial(_serves_nothing, self.cluster.node(name)), within=30)

    async def start(
        self,
        *flags: str,
        nodes: tuple[str, ...] = (),
        wait: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start kroute on the nodes (by default all). With `wait`, return when each has applied all objects.

        With an `environment`, that of another release for example, each agent is a new interpreter.
        """
        for name in nodes or tuple(self.cluster.nodes):
            self._touched.add(name)
            argv = ("run", *self.source, "--node-name", name, "--resync-period", "5s", *flags)
            is_usual = environment is None
            self.agents[name] = await self.cluster.node(name).kroute(*argv, environment=environment, fork=is_usual)
        for name in (nodes or tuple(self.cluster.nodes)) if wait else ():
            await self.agents[name].ready()

    async def stop(self) -> None:
        """Stop every agent in order. The data path stays."""
        ends = await asyncio.gather(*(agent.terminate() for agent in self.agents.values()))
        assert set(ends) <= {0}, dict(zip(self.agents, ends, strict=True))
        self.agents.clear()

    def give_up(self, node: str) -> None:
        """Leave a node that another proxy has taken over out of the cleanup."""
        self._touched.discard(node)

    async def cleanup(self) -> None:
        """Run `kroute cleanup` on every node that kroute ran on."""
        await self.stop()
        cleanups = [await self.cluster.node(name).kroute("cleanup") for name in self._touched]
        self._touched.clear()
        for cleanup in cleanups:
            assert await cleanup.wait() == 0, cleanup.log.read_text()


@contextmanager
def deployed(cluster: Cluster, directory: Path, *flags: str, nodes: tuple[str, ...] = ()) -> Iterator[Deployment]:
    """Start kroute on the nodes (by default all) for the tests of a module, and clean up behind them.

    `directory` is for the feed's files.
    """
    deployment = Deployment(cluster, feed_for(cluster, directory))
    asyncio.run(deployment.start(*flags, nodes=nodes))
    try:
        yield deployment
    finally:
        asyncio.run(deployment.cleanup())


def _serves_nothing(node: Node) -> None:
    """Assert that no virtual server takes new connections. With weights of 0 it only drains."""
    takes_new = {
        key for key, it in node.ipvs().items() if not it.real_servers or any(s.weight for s in it.real_servers.values())
    }
    assert not takes_new
