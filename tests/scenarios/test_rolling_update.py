"""A rolling update of 30 pods under constant load: no request fails, and draining pods keep their connections.

The slices change as with the EndpointSlice controller: a new pod is ready when it serves, and only then an old pod
begins to terminate. It still answers for its grace period; then it leaves its slice and stops.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from tests.lab.cluster import Pod
from tests.lab.deployment import SLOWNESS, Deployment, eventually
from tests.lab.load import Way, constant_load
from tests.lab.objects import Endpoint, endpoint_slices, service
from tests.lab.topology import SERVICE_RANGE, SERVICE_RANGE6
from tests.lab.world import FAMILIES, World, routed

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
NODE_PORT = 30080
REPLICAS = 30
AT_ONCE = 10
"""How many pods are replaced at a time: the Deployment's maxSurge; its maxUnavailable is 0."""
GRACE = 5.0 * SLOWNESS
"""Seconds for which a terminating pod still answers. They set the pace of the rollout, and grow in a slow machine."""
FLAGS = ("--cluster-cidr", "172.20.0.0/16,fd00:172:20::/48")

READY = {"ready": True, "serving": True, "terminating": False}
NOT_READY = {"ready": False, "serving": False, "terminating": False}
TERMINATING = {"ready": False, "serving": True, "terminating": True}


class Rollout:
    """The pods of a Deployment with their conditions, and their slices."""

    def __init__(self, world: World, deployment: Deployment) -> None:
        self.pods: dict[Pod, dict[str, bool]] = {}
        self.stopped: set[str] = set()
        self._nodes = world.nodes
        self._deployment = deployment
        self._number = 0

    async def replace_all(self) -> None:
        """Replace every pod, `AT_ONCE` at a time, without waiting for those that terminate."""
        old = list(self.pods)
        async with asyncio.TaskGroup() as terminations:
            for start in range(0, len(old), AT_ONCE):
                await self.add(AT_ONCE)
                terminations.create_task(self.remove(old[start : start + AT_ONCE]))

    async def add(self, count: int) -> None:
        """Add pods: they are in the slices as soon as they exist, and ready when they serve."""
        new = []
        for _ in range(count):
            node = self._nodes[self._number % len(self._nodes)]
            self._number += 1
            new.append(await node.pod(f"r{self._number}"))
        self.write(new, NOT_READY)
        for pod in new:
            await pod.serve(http=8080)
        self.write(new, READY)

    async def remove(self, pods: list[Pod]) -> None:
        """Terminate pods: they answer for `GRACE` seconds, leave the slices, and stop."""
        self.write(pods, TERMINATING)
        await asyncio.sleep(GRACE)
        for pod in pods:
            del self.pods[pod]
        self.write([], {})
        for pod in pods:
            self.stopped.add(pod.name)
            await pod.stop_serving()
            pod.node.remove_pod(pod)

    def write(self, pods: list[Pod], conditions: dict[str, bool]) -> None:
        """Give the pods these conditions and publish every slice."""
        self.pods.update(dict.fromkeys(pods, conditions))
        endpoints = [Endpoint(pod, conditions) for pod, conditions in self.pods.items()]
        self._deployment.apply(*endpoint_slices("web", endpoints))

    def close(self) -> None:
        """Remove the pods."""
        for pod in self.pods:
            pod.node.remove_pod(pod)


async def ask_until_the_pod_stops(way: Way, stopped: set[str], pace: float = 0.5) -> None:
    """Send requests over one connection until its pod closes it; AssertionError if it ends earlier."""
    connection = await way.client.connect(way.address, way.port)
    pod = (await connection.ask()).host
    try:
        while True:
            assert (await connection.ask()).host == pod
            await asyncio.sleep(pace)
    except OSError as error:
        if pod not in stopped:
            raise AssertionError(f"the connection of {way} to {pod} ended before its pod did") from error
    finally:
        await connection.close()


@pytest.fixture
async def rollout(world: World, deployment: Deployment) -> AsyncIterator[Rollout]:
    """Thirty pods, ready, behind the Service `web`, with kroute on every node."""
    made = Rollout(world, deployment)
    try:
        deployment.apply(service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}))
        await made.add(REPLICAS)
        await deployment.start(*FLAGS)
        yield made
    finally:
        made.close()


@pytest.fixture
def ways(world: World) -> Iterator[list[Way]]:
    """From a pod, a node and outside, to the ClusterIP and to a node port, in each family."""
    with _routed_to_services(world):
        yield [
            Way(client, address, port)
            for family in FAMILIES
            for client, node in zip((world.visitor, world.nodes[1], world.cluster.client), world.nodes, strict=True)
            for address, port in ((family.service_ip, 8080), (family.of(node), NODE_PORT))
        ]


@contextmanager
def _routed_to_services(world: World) -> Iterator[None]:
    """Give the client outside a route to the ClusterIPs, as a site's router may."""
    client, node = world.cluster.client, world.nodes[1]
    with routed(client, SERVICE_RANGE, node.ip), routed(client, SERVICE_RANGE6, node.ip6):
        yield


async def test_nobody_notices_that_every_pod_is_replaced(rollout: Rollout, ways: list[Way]) -> None:
    """No request fails, every new pod gets some, and a long connection lasts until its pod closes it."""
    old = {pod.name for pod in rollout.pods}
    async with asyncio.TaskGroup() as tasks, constant_load(ways) as load:
        for way in ways:
            tasks.create_task(ask_until_the_pod_stops(way, rollout.stopped))
        await rollout.replace_all()
        new = {pod.name for pod in rollout.pods}

        def everybody_is_asked() -> None:
            assert load.answered.keys() >= new
            for way in ways:
                assert load.calls[way] > REPLICAS, f"{way} was hardly used: {load.calls}"

        await eventually(everybody_is_asked)
    assert not load.failures, load.failures
    assert rollout.stopped == old, "the rollout was not what it should be"
