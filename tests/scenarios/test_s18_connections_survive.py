"""S18: open connections live through the drain of their pod, and a stop of kroute. test_restarts.py has restarts."""

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually, goes_on
from tests.lab.objects import endpoint_slices, service
from tests.lab.patience import patience
from tests.scenarios.conftest import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
STOPS_WITHIN = 30
"""Seconds that the kubelet gives a container to end by itself."""


async def test_s18_a_connection_to_a_draining_pod_lives(world: World, deployment: Deployment) -> None:
    """Until it ends; here with a reset, which IPVS forgets after 10 s, and an orderly end after 2 minutes only."""
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[1:2]))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    streams = [await world.visitor.open_stream(ip, 8080) for ip in CLUSTER_IPS]
    deployment.apply(*endpoint_slices("web", world.web[2:]))
    for family, stream in zip(FAMILIES, streams, strict=True):
        await eventually(lambda family=family: _weights_are(node1, family, {"web-2": 0, "web-3": 1}, world))
        assert set(await world.visitor.spread(family.service_ip, 8080, 4)) == {"web-3"}
        await goes_on(stream)
        await stream.close(reset=True)
    for family in FAMILIES:  # kroute looks whether a drain is over at growing intervals, of up to 30 s
        await eventually(lambda family=family: _weights_are(node1, family, {"web-3": 1}, world), within=30)


async def test_s18_a_pod_that_comes_back_while_draining_keeps_its_connection(
    world: World, deployment: Deployment, family: Family
) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[1:2]))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    stream = await world.visitor.open_stream(family.service_ip, 8080)
    deployment.apply(*endpoint_slices("web", world.web[2:]))
    await eventually(lambda: _weights_are(node1, family, {"web-2": 0, "web-3": 1}, world))
    assert await deployment.agents["node1"].kill() == -9
    await deployment.start(nodes=("node1",))
    _weights_are(node1, family, {"web-2": 0, "web-3": 1}, world)
    deployment.apply(*endpoint_slices("web", world.web[1:]))
    await eventually(lambda: _weights_are(node1, family, {"web-2": 1, "web-3": 1}, world))
    await goes_on(stream)
    await stream.close()


async def test_s18_the_drain_timeout_ends_a_connection_that_does_not_end(
    world: World, deployment: Deployment, family: Family
) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[1:2]))
    await deployment.start("--drain-timeout", "3s", nodes=("node1",))
    node1 = world.cluster.node("node1")
    stream = await world.visitor.open_stream(family.service_ip, 8080, patience=2)
    deployment.apply(*endpoint_slices("web", world.web[2:]))
    await eventually(lambda: _weights_are(node1, family, {"web-3": 1}, world), within=20)

    def has_broken() -> None:
        assert stream.failure is not None

    await eventually(has_broken)


async def test_kroute_ends_soon_after_sigterm_and_leaves_the_data_path(
    world: World, deployment: Deployment, family: Family
) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    async with patience(STOPS_WITHIN):
        await deployment.stop()
    assert len(await world.visitor.spread(family.service_ip, 8080, 6)) == 3


def _weights_are(node: Node, family: Family, expected: dict[str, int], world: World) -> None:
    pods = {family.at(family.of(pod), 8080): pod.name for pod in world.web}
    real_servers = node.ipvs()[f"TCP {family.at(family.service_ip, 8080)}"].real_servers
    assert {pods[address]: server.weight for address, server in real_servers.items()} == expected
