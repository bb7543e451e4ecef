"""A rolling update of 30 pods under constant load: no request fails, and draining pods keep their connections.

The slices change as with the EndpointSlice controller: a new pod is ready when it serves, and only then an old pod
begins to terminate. It still answers for its grace period; then it leaves its slice and stops.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.lab.cluster import Pod
from tests.lab.deployment import SLOWNESS, Deployment, eventually
from tests.lab.hosts import OpenConnection
from tests.lab.load import Load, Way, constant_load
from tests.lab.objects import Endpoint, endpoint_slices, service
from tests.lab.topology import SERVICE_RANGE, SERVICE_RANGE6
from tests.lab.world import FAMILIES, World, routed
from tests.scenarios.test_port_reuse import nobody_new_for

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
NODE_PORT = 30080
REPLICAS = 30
AT_ONCE = 10
"""How many pods are replaced at a time: the Deployment's maxSurge; its maxUnavailable is 0."""
GRACE = 5.0 * SLOWNESS
"""Seconds for which a terminating pod still answers at least. They set the pace of the rollout."""
LAST_CALLS = 5
"""So many calls on each way after a pod got its last one, it has answered that one."""
FLAGS = ("--cluster-cidr", "172.20.0.0/16,fd00:172:20::/48")

READY = {"ready": True, "serving": True, "terminating": False}
NOT_READY = {"ready": False, "serving": False, "terminating": False}
TERMINATING = {"ready": False, "serving": True, "terminating": True}


class Rollout:
    """The pods of a Deployment with their conditions, and their slices."""

    def __init__(self, world: World, deployment: Deployment) -> None:
        self.pods: dict[Pod, dict[str, bool]] = {}
        self.stopped: set[str] = set()
        self.load = Load()
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
        """Terminate pods: they answer for `GRACE` seconds, leave the slices, and stop.

        A node that is still slower than a grace period is waited for: nobody promises that such a pod gets no call.
        """
        self.write(pods, TERMINATING)
        await asyncio.sleep(GRACE)
        await self.get_no_new_calls(pods)
        for pod in pods:
            del self.pods[pod]
        self.write([], {})
        for pod in pods:
            self.stopped.add(pod.name)
            await pod.stop_serving()
            pod.node.remove_pod(pod)

    async def get_no_new_calls(self, pods: list[Pod]) -> None:
        """Wait until no node sends new calls to these pods, and the last ones are answered."""
        for node in self._nodes:
            await eventually(partial(nobody_new_for, node, pods), within=60)
        calls = {way: made + LAST_CALLS for way, made in self.load.calls.items()}

        def made() -> None:
            assert all(self.load.calls[way] >= count for way, count in calls.items()), self.load.calls

        await eventually(made, within=60)

    def write(self, pods: list[Pod], conditions: dict[str, bool]) -> None:
        """Give the pods these conditions and publish every slice."""
        self.pods.update(dict.fromkeys(pods, conditions))
        endpoints = [Endpoint(pod, conditions) for pod, conditions in self.pods.items()]
        self._deployment.apply(*endpoint_slices("web", endpoints))

    def close(self) -> None:
        """Remove the pods."""
        for pod in self.pods:
            pod.node.remove_pod(pod)


async def ask_until_the_pod_stops(way: Way, connection: OpenConnection, stopped: set[str], pace: float = 0.5) -> None:
    """Send requests over a connection until its pod closes it; AssertionError if it ends earlier."""
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
    connections = [(way, await way.client.connect(way.address, way.port)) for way in ways]
    async with asyncio.TaskGroup() as tasks, constant_load(ways) as load:
        rollout.load = load
        for way, connection in connections:
            tasks.create_task(ask_until_the_pod_stops(way, connection, rollout.stopped))
        await rollout.replace_all()
        new = {pod.name for pod in rollout.pods}

        def everybody_is_asked() -> None:
            assert load.answered.keys() >= new
            for way in ways:
                assert load.calls[way] > REPLICAS, f"{way} was hardly used: {load.calls}"

        await eventually(everybody_is_asked, within=60)
    assert not load.failures, load.failures
    assert rollout.stopped == old, "the rollout was not what it should be"
