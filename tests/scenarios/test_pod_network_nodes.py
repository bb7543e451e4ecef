"""kroute connects pods on nodes as the field has them: other interfaces, other families, other addresses in time."""

from functools import partial
from pathlib import Path

import pytest

from kroute.kernel.pods.pod_routes import is_tunnel
from tests.lab import objects
from tests.lab.cluster import Cluster
from tests.lab.deployment import EVENTS_ALONE, eventually, goes_on
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.pod_network import FAR, GATEWAYS, Runtime
from tests.scenarios.conftest import FAMILIES
from tests.scenarios.test_pod_network import (
    CLUSTER_IPS,
    LARGE,
    NODE_PORT,
    PORT,
    all_reach_each_other,
    every_nodes_port_leads_to_each,
    forward_udp_alone,
    has_no_route_to,
    has_route_to,
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
async def test_nodes_with_a_vlan_and_with_addresses_on_loopback_are_connected(tmp_path: Path) -> None:
    async with network(tmp_path, prepare=as_in_the_field) as here:
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
        await every_nodes_port_leads_to_each(pods, here)


@pytest.mark.nftables
async def test_what_becomes_of_links_costs_no_connection_and_no_tunnel_that_is_right(tmp_path: Path) -> None:
    async with network(tmp_path, *EVENTS_ALONE) as here:
        node1 = here.cluster.node("node1")
        await here.start()
        near, *others = await here.pods()
        streams = [
            await near.open_stream(family.of(other), PORT, patience=60) for other in others for family in FAMILIES
        ]
        tunnels = tunnels_of(node1)

        async def all_go_on() -> None:
            for stream in streams:
                await goes_on(stream)

        for link in tunnels:
            node1.namespace.ip(f"link delete {link}\n")
        await all_go_on()
        for link in tunnels:
            node1.namespace.ip(f"link set {link} down\n")
        await all_go_on()
        made = tunnels_of(node1)
        node1.namespace.ip("link set eth0 down\nlink set eth0 name uplink\nlink set uplink up\n")
        node1.namespace.ip(
            f"address add {node1.ip6}/64 dev uplink nodad\n"
            f"route add default via {GATEWAYS[0]}\nroute add default via {GATEWAYS[2]}\n"
        )
        await all_go_on()
        assert tunnels_of(node1) == made
        node1.namespace.ip("link set uplink mtu 1400\n")
        await eventually(partial(has_mtu, here.runtimes["node1"], 1360))
        for other in others:
            for family in FAMILIES:  # the pods' interfaces have the greater MTU of before
                assert await near.http_status(family.of(other), PORT, path="/" + "x" * LARGE) == 200
        for stream in streams:
            await stream.close()


def tunnels_of(node: Host) -> dict[str, str]:
    """The tunnels of a node by name, each with its number: one that is made again has another."""
    found = (line.split(":")[:2] for line in node.run("ip", "-o", "link").splitlines())
    return {name: number for number, text in found if is_tunnel(name := text.strip().partition("@")[0])}


def has_mtu(runtime: Runtime, expected: int) -> None:
    assert runtime.configuration()["plugins"][0]["mtu"] == expected


@pytest.mark.nftables
async def test_a_node_may_get_another_address_or_be_made_again(tmp_path: Path) -> None:
    async with network(tmp_path) as here:
        node1, _, far = here.cluster.nodes.values()
        await here.start()
        near, other, distant = await here.pods()
        streams = [
            await near.open_stream(family.of(it), PORT, patience=60) for it in (other, distant) for family in FAMILIES
        ]
        far.namespace.ip(
            f"address delete {far.ip}/24 dev eth0\naddress delete {far.ip6}/64 dev eth0\n"
            f"address add 192.168.124.77/24 dev eth0\naddress add fd00:192:168:124::77/64 dev eth0 nodad\n"
            f"route replace default via {GATEWAYS[1]}\nroute replace default via {GATEWAYS[3]}\n"
        )
        far.ip, far.ip6 = "192.168.124.77", "fd00:192:168:124::77"
        here.deployment.apply(objects.node(far))
        for stream in streams:
            await goes_on(stream)
        await all_reach_each_other((near, other, distant))
        [before] = [it for it in here.deployment.node_objects if it["metadata"]["name"] == "node2"]
        here.deployment.delete(before)
        here.deployment.apply(before)
        for stream in streams:
            await goes_on(stream)
            await stream.close()
        here.deployment.delete(before)
        here.deployment.apply({**before, "spec": {"podCIDRs": ["172.20.77.0/24", "fd00:172:20:77::/64"]}})
        await eventually(partial(has_route_to, node1, "172.20.77.0/24"), within=30)
        await eventually(partial(has_no_route_to, far, "172.20.104.0/24"), within=30)
        await eventually(partial(has_range, here.runtimes["node2"], "172.20.77.0/24"), within=30)
        newer = await here.runtimes["node2"].pod("newer", http=PORT)
        assert newer.ip.startswith("172.20.77.")
        await all_reach_each_other((near, newer, distant))


def has_range(runtime: Runtime, expected: str) -> None:
    assert runtime.configuration()["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] == expected


def without_ipv4(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.namespace.ip(f"address delete {node.ip}/24 dev eth0\n")
        node.ip = ""


@pytest.mark.nftables
@pytest.mark.parametrize("encap", ["ipip", "fou"])
async def test_nodes_and_pods_without_ipv4_are_connected(tmp_path: Path, encap: str) -> None:
    async with network(tmp_path, "--overlay-encap", encap, prepare=without_ipv4) as here:
        for item in here.deployment.node_objects:
            addresses, cidrs = item["status"]["addresses"], item["spec"]["podCIDRs"]
            of_ipv6 = {**item, "spec": {"podCIDRs": cidrs[1:]}, "status": {"addresses": addresses[1:]}}
            here.deployment.apply(of_ipv6)
        if encap == "fou":
            forward_udp_alone(here.cluster)
        await here.start()
        pods = await here.pods()
        assert [pod.ip for pod in pods] == ["", "", ""]
        await all_reach_each_other(pods, FAMILIES[1:])
        router = await here.cluster.client.serve(http=9000)
        spec = service("web", CLUSTER_IPS[1], node_ports={"TCP": NODE_PORT})
        here.deployment.apply(spec, endpoint_slices("web", pods[2:])[1])
        for node, pod in zip(here.cluster.nodes.values(), pods, strict=True):
            assert (await pod.http(router.ip6, 9000)).peer == node.ip6
            for caller in (node, pod, router):
                await is_answered_by(pods[2], caller, node.ip6)


@pytest.mark.nftables
async def test_after_a_reboot_pods_are_started_before_kroute(tmp_path: Path) -> None:
    async with network(tmp_path) as here:
        node1 = here.cluster.node("node1")
        for item in here.deployment.node_objects:
            addresses, cidrs = item["status"]["addresses"], item["spec"]["podCIDRs"]
            ipv6_first = {"addresses": [addresses[1], addresses[0]]}
            here.deployment.apply({**item, "spec": {"podCIDRs": cidrs[::-1]}, "status": ipv6_first})
        await here.start()
        near, other, distant = await here.pods()
        await all_reach_each_other((near, other, distant))
        await here.deployment.agents.pop("node1").kill()
        node1.remove_pod(near)
        for link in (*tunnels_of(node1), "kroute-pods"):
            node1.namespace.ip(f"link delete {link}\n")
        node1.run("nft", "flush", "ruleset")
        again = await here.runtimes["node1"].pod("again", http=PORT)
        await here.start(nodes=["node1"])
        await all_reach_each_other((again, other, distant))
        router = await here.cluster.client.serve(http=9000)
        for family in FAMILIES:
            assert (await again.http(family.of(router), 9000)).peer == family.of(node1)
