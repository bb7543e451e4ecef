"""Whose calls to a ClusterIP are masqueraded, in each of the ways to tell this node's pods from other clients."""

import pytest

from tests.lab.deployment import Deployment
from tests.lab.objects import endpoint_slices, service
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import routed
from tests.scenarios.conftest import FAMILIES, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
MODES = {
    "ClusterCIDR": ("--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}"),
    "NodeCIDR": (),
    "BridgeInterface": ("--pod-bridge-interface", "cbr0"),
    "InterfaceNamePrefix": ("--pod-interface-name-prefix", "cbr"),
}


@pytest.mark.parametrize("mode", MODES)
async def test_a_pod_of_the_node_keeps_its_address_and_others_are_masqueraded(
    mode: str, world: World, deployment: Deployment
) -> None:
    """A pod of another node whose calls come to this one is local by ClusterCIDR only."""
    node1, client, elsewhere = world.cluster.node("node1"), world.cluster.client, world.web[1]
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[:1]))
    await deployment.start("--detect-local-mode", mode, *MODES[mode], nodes=("node1",))
    for family in FAMILIES:
        vip = family.service_ip
        assert (await world.visitor.http(vip, 8080)).peer == family.of(world.visitor)
        with routed(client, vip, family.of(node1)):
            assert (await client.http(vip, 8080)).peer != family.of(client)
        with routed(elsewhere.node, vip, family.of(node1)):
            seen = (await elsewhere.http(vip, 8080)).peer
        assert (seen == family.of(elsewhere)) is (mode == "ClusterCIDR")
