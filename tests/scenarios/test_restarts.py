"""S18: open connections live through twenty restarts of kroute. One kernel is enough: it has no part in a restart."""

from tests.lab.deployment import Deployment, goes_on
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
RESTARTS = 20


async def test_s18_twenty_restarts_lose_no_byte(world: World, deployment: Deployment) -> None:
    """Of any of the open connections, two of each family."""
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    streams = [await it.open_stream(ip, 8080) for it in (world.visitor, node1) for ip in CLUSTER_IPS]
    before = node1.snapshot()
    for restart in range(RESTARTS):
        agent = deployment.agents["node1"]
        assert await (agent.kill() if restart % 2 else agent.terminate()) in {0, -9}
        await deployment.start(nodes=("node1",))
        changed = before.diff(node1.snapshot())
        assert not changed, changed
    for stream in streams:
        await goes_on(stream)
        await stream.close()
