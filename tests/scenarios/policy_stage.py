"""The pods of `tests/lab/reachability.py` and agents that enforce policies; what the oracle says of the pods' calls."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.lab.cluster import Cluster
from tests.lab.deployment import Deployment, eventually
from tests.lab.feed import Feed, feed_for
from tests.lab.objects import Object, identity
from tests.lab.reachability import HOMES, PODS, Matrix, Way
from tests.scenarios.test_network_policies import SETTINGS, Policies
from tests.unit.planning.policies.oracle import World, ends

SHOWN = 30
"""Wrong ways that a failure names."""


class Stage:
    """What agents on all three nodes have made of the objects, which are Pods, Namespaces and NetworkPolicies."""

    def __init__(self, deployment: Deployment, matrix: Matrix) -> None:
        self.deployment = deployment
        self.matrix = matrix
        self.policies = Policies(deployment)
        self.objects: dict[tuple[str, str, str], Object] = {}

    async def start(self) -> None:
        self.deployment.apply(*self.matrix.services())
        await self.deployment.start(*SETTINGS)
        await self.policies.settled()

    async def shows(self, items: Iterable[Object]) -> None:
        """Make these all the objects that there are, and expect what the oracle says of every call among the pods.

        So it is when the first calls are made, but not after the end of a Pod or Namespace: nothing says when that is
        known.
        """
        before, self.objects = self.objects, {identity(item): item for item in items}
        gone = [item for key, item in before.items() if key not in self.objects]
        policies = [item for item in gone if item["kind"] == "NetworkPolicy"]
        others = [item for item in gone if item not in policies]
        self.deployment.delete(*others)
        await self.policies.apply(*(item for key, item in self.objects.items() if before.get(key) != item))
        if policies:
            await self.policies.delete(*policies)
        await (eventually(self.look, within=30) if others else self.look())

    def edit(self, before: Object | None, after: Object | None) -> World:
        """Change one object, without waiting for agents; returns what there is now, for the oracle."""
        if after is not None:
            self.deployment.apply(after)
            self.objects[identity(after)] = after
        elif before is not None:
            self.deployment.delete(before)
            del self.objects[identity(before)]
        return self.world()

    def world(self) -> World:
        """What there is, as all nodes together judge."""
        return World(self.objects.values(), None)

    async def look(self) -> None:
        """Make every call among the pods, and compare."""
        pods = [pod for pod in HOMES if ("Pod", *pod.split("/")) in self.objects]
        tried = self.matrix.ways(pods)
        expected = allowed(self.world(), tried)
        answered = await asyncio.to_thread(self.matrix.call, tried, expected, {*tried} - expected)
        assert not (wrong := expected ^ answered), f"{described(wrong, expected)}{self.written()}"

    def written(self) -> str:
        """The policies, for a failure."""
        return "".join(f"\n{item}" for key, item in self.objects.items() if key[0] == "NetworkPolicy")


def allowed(world: World, tried: Collection[Way]) -> set[Way]:
    """The ways on which policies let packets pass, says the oracle. What a Service leads to is judged as the pod."""
    packets = {way.packet for way in tried}
    passing = {packet for packet in packets if world.allows(*packet)}
    return {way for way in tried if way.packet in passing}


def refused_throughout(worlds: Sequence[World], way: Way) -> bool:
    """Whether one end of the call refuses it in all of these worlds."""
    source, destination, *port = way.packet
    return any(
        not any(world.permits(*end, *port) for world in worlds)  # type: ignore[arg-type]  # number and protocol
        for end in ends(source, destination)
    )


def described(wrong: Collection[Way], expected: Collection[Way]) -> str:
    lines = [f"{way}: {'no answer' if way in expected else 'an answer to what is refused'}" for way in sorted(wrong)]
    return "\n".join([f"{len(lines)} ways are wrong", *lines[:SHOWN]])


@contextmanager
def staged(directory: Path, feed: Callable[[Cluster, Path], Feed] = feed_for) -> Iterator[Stage]:
    """A cluster of its own for the tests of a module, whose pods reach each other: no policy exists.

    `directory` is for the feed's files.
    """
    lab = Cluster()
    try:
        matrix = asyncio.run(Matrix.build(lab))
        deployment = Deployment(lab, feed(lab, directory))
        stage = Stage(deployment, matrix)
        asyncio.run(_open(stage))
        yield stage
        asyncio.run(deployment.cleanup())
        matrix.close()
    finally:
        lab.close()


async def _open(stage: Stage) -> None:
    """Start the agents, and wait until every pod is reached. So the neighbours of all pods are known, too."""
    await stage.start()

    async def all_are_reached() -> None:
        tried = stage.matrix.ways(PODS)
        answered = await asyncio.to_thread(stage.matrix.call, tried, tried, ())
        assert not (wrong := {*tried} - answered), described(wrong, tried)

    await eventually(all_are_reached, within=30)
