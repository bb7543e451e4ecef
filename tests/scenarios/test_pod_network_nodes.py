"""kroute connects pods on nodes as the field has them: other interfaces, other families, other addresses in time."""

from pathlib import Path

import pytest

from tests.lab.cluster import Cluster
from tests.lab.objects import endpoint_slices, service
from tests.lab.pod_network import FAR, GATEWAYS
from tests.scenarios.conftest import FAMILIES
from tests.scenarios.test_pod_network import (
    CLUSTER_IPS,
    NODE_PORT,
    PORT,
    all_reach_each_other,
    is_answered_by,
    network,
)

UPLINKS = {
    "node1": (127, "192.168.127.250", "fd00:192:168:127::250"),
    "node2": (126, "192.168.126.248", "fd00:192:168:126::248"),
}
"""The subnet of a node's default route, and the node's addresses there."""
MTUS = {"node1": 9000, "node2": 1500, FAR: 1400}


def as_in_the_field(cluster: Cluster) -> None:
    """Give node1 a VLAN for the cluster beside its uplink, node2 its addresses on loopback, and node3 a smaller MTU."""
    router = cluster.client
    for name, (subnet, ip, ip6) in UPLINKS.items():
        gateway, gateway6 = f"192.168.{subnet}.1", f"fd00:192:168:{subnet}::1"
        router.namespace.ip(f"address add {gateway}/24 dev eth0\naddress add {gateway6}/64 dev eth0 nodad\n")
        cluster.node(name).namespace.ip(
            f"route delete default via {GATEWAYS[2]}\naddress flush dev eth0 scope global\n"
            f"address add {ip}/24 dev eth0\naddress add {ip6}/64 dev eth0 nodad\n"
            f"route add default via {gateway}\nroute add default via {gateway6}\n"
        )
    node1, node2, far = cluster.nodes.values()
    node2.ip, node2.ip6 = "10.99.0.248", "fd00:10:99::248"
    subnets = "192.168.124.0/24", "192.168.126.0/24", "fd00:192:168:124::/64", "fd00:192:168:126::/64"
    cluster.wire.ip(
        f"link add trunk mtu 9000 type veth peer name eth1 mtu 9000 netns {node1.namespace.name}\n"
        "link set trunk up\nlink add link trunk name trunk.7 type vlan id 7\nlink set trunk.7 master wire up\n"
    )
    node1.namespace.ip(
        "link set eth1 up\nlink add link eth1 name eth1.7 type vlan id 7\nlink set eth1.7 up\n"
        f"address add {node1.ip}/24 dev eth1.7\naddress add {node1.ip6}/64 dev eth1.7 nodad\n"
        + "".join(f"route add {it} via {GATEWAYS[2 if ':' in it else 0]}\n" for it in (*subnets, node2.ip, node2.ip6))
    )
    node2.namespace.ip(f"address add {node2.ip}/32 dev lo\naddress add {node2.ip6}/128 dev lo\n")
    _, via, via6 = UPLINKS["node2"]
    router.namespace.ip(f"route add {node2.ip} via {via}\nroute add {node2.ip6} via {via6}\n")
    far.namespace.ip("link set eth0 mtu 1400\n")


@pytest.mark.each_firewall
@pytest.mark.parametrize("overlay", ["subnet", "full"])
async def test_nodes_with_a_vlan_and_with_addresses_on_loopback_are_connected(tmp_path: Path, overlay: str) -> None:
    async with network(tmp_path, "--overlay", overlay, prepare=as_in_the_field) as here:
        await here.start()
        pods = await here.pods()
        for name, runtime in here.runtimes.items():
            assert runtime.configuration()["plugins"][0]["mtu"] == MTUS[name] - 40
        await all_reach_each_other(pods)
        router = await here.cluster.client.serve(http=9000)
        for family in FAMILIES:
            for node, pod in zip(here.cluster.nodes.values(), pods, strict=True):
                for other in pods:
                    answer = await node.http(family.of(other), PORT)
                    if other is not pod:
                        assert answer.peer == family.of(node)
        assert (await pods[0].http("192.168.127.1", 9000)).peer == "192.168.127.250"
        assert (await pods[0].http(router.ip, 9000)).peer == here.cluster.node("node1").ip
        assert (await pods[1].http(router.ip, 9000)).peer == "192.168.126.248"
        spec = service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}, sessionAffinity="ClientIP")
        for called in pods:
            here.deployment.apply(spec, *endpoint_slices("web", [called]))
            for caller in (*pods, *here.cluster.nodes.values(), here.cluster.client):
                for node in here.cluster.nodes.values():
                    for family in FAMILIES:
                        await is_answered_by(called, caller, family.of(node))
