"""What the agent answers about the ways to other nodes' pods."""

import errno
from pathlib import Path

from kroute.inspect.pod_routes import PodRouteView, networks_by_state, pod_routes_of
from kroute.kernel.pods.pod_routes import MakeTunnel
from tests.builders import node as a_node
from tests.unit.controllers.test_pod_routes import FAR_NODE, NEAR, NEAR6, NEAR_NODE, TUNNEL, TUNNEL6, new_node, started

LIAR = a_node(("InternalIP", "192.168.123.66"), name="node6", pod_cidrs=("10.0.0.0/8",))


async def test_each_network_is_shown_with_its_way_and_what_the_kernel_refuses(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    node.kernel.refuse(lambda change: isinstance(change, MakeTunnel) and change.tunnel == TUNNEL, errno.EEXIST)
    await started(node, NEAR_NODE, FAR_NODE, LIAR)
    found = pod_routes_of(node.pod_routes)
    assert found.items == [
        PodRouteView("10.244.1.0/24", "node1", "direct", NEAR, True),
        PodRouteView("fd00:244:0:1::/64", "node1", "direct", NEAR6, True),
        PodRouteView("10.244.2.0/24", "node2", "tunnel", TUNNEL.link, False),
        PodRouteView("fd00:244:0:2::/64", "node2", "tunnel", TUNNEL6.link, True),
    ]
    assert next(iter(found.names())) == "10.244.1.0/24"
    assert [sentence for sentence in found.problems if "10.0.0.0/8" in sentence and "--cluster-cidr" in sentence]
    assert [sentence for sentence in found.problems if TUNNEL.remote in sentence]
    assert networks_by_state(node.pod_routes) == {"direct": 2, "tunnel": 1, "missing": 1, "left_out": 1}
    node.kernel.accept_all()
    await node.wait(1.0)
    assert networks_by_state(node.pod_routes) == {"direct": 2, "tunnel": 2, "missing": 0, "left_out": 1}
