"""kroute runs on every node during these tests; each test applies its own objects and deletes them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from tests.lab.cluster import Node, Pod
from tests.lab.deployment import Deployment, deployed
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import World

FLAGS = ("--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}")
"""The flags of kroute, unless a row needs others."""

AddPod = Callable[..., Awaitable[Pod]]
Serve = Callable[..., Awaitable[Node]]


@pytest.fixture(scope="package")
def running(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """kroute on every node, for all tests. A test requests `kroute` instead."""
    with deployed(world.cluster, tmp_path_factory.mktemp("feed"), *FLAGS) as running:
        yield running


@pytest.fixture
async def kroute(running: Deployment) -> AsyncIterator[Deployment]:
    """kroute on every node, with no Service yet; the test's objects are deleted after it."""
    yield running
    await running.clear()


@pytest.fixture
async def add_pod(world: World) -> AsyncIterator[AddPod]:
    """`await add_pod("node2", "name", http=8080)` adds a pod for the length of the test."""
    added: list[Pod] = []

    async def add(node: str, name: str, **ports: int) -> Pod:
        added.append(await world.cluster.node(node).pod(name, **ports))
        return added[-1]

    yield add
    for pod in added:
        if pod in pod.node.pods:
            pod.node.remove_pod(pod)


@pytest.fixture
async def host_network(world: World) -> AsyncIterator[Serve]:
    """`await host_network("node2", http=9080)` is a pod in the node's own network: servers on the node."""
    serving: list[Node] = []

    async def serve(node: str, **ports: int) -> Node:
        serving.append(world.cluster.node(node))
        return await serving[-1].serve(**ports)  # type: ignore[arg-type]

    yield serve
    for node in serving:
        await node.stop_serving()
