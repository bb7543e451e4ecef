"""A node whose new links get no IPv6 serves IPv6 Services all the same, also after it has lost the link of the VIPs.

Hardening guides and images set `net.ipv6.conf.default.disable_ipv6` to 1, and switch IPv6 on for the node's own links.
"""

from collections.abc import Iterator

import pytest

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, World

OFF = "net.ipv6.conf.default.disable_ipv6"
CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
LINK = "kube-ipvs0"


@pytest.fixture
def node(world: World) -> Iterator[Node]:
    """node1, on which new links get no IPv6."""
    node1 = world.nodes[0]
    before = node1.sysctl(OFF)
    node1.sysctl(OFF, 1)
    yield node1
    node1.sysctl(OFF, before)


async def test_ipv6_services_are_served_where_new_links_get_no_ipv6(
    world: World, deployment: Deployment, node: Node
) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(nodes=(node.name,))

    async def all_answer() -> None:
        for caller in (world.visitor, node):
            for address in CLUSTER_IPS:
                assert len(await caller.spread(address, 8080, 6)) == 3

    await all_answer()
    assert "was changed" not in deployment.agents[node.name].log.read_text()
    node.run("ip", "link", "delete", LINK)
    await eventually(all_answer)
    assert node.sysctl(OFF) == "1"
