"""networking.go's tests of the service proxy: its URLs, as a pod in the node's network reads them."""

from functools import partial

from tests.conformance.expect import WITHIN
from tests.conformance.table import row
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.world import World


@row("networking 132")
async def test_networking_132_check_kube_proxy_urls(world: World, kroute: Deployment) -> None:
    for node in world.nodes:
        await eventually(partial(_answers, node), WITHIN)


async def _answers(node: Node) -> None:
    assert await node.http_status("127.0.0.1", 10256, "/healthz") == 200
    assert await node.http_status("127.0.0.1", 10249, "/proxyMode") == 200
