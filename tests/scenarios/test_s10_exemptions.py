"""S10: a VM that is bridged behind a node, and whose answers take another path back, is exempt from masquerading.

With br_netfilter the VM's frames pass through the node's rules. If they were masqueraded there, they would leave with
the node's IP address and the VM's MAC address. The answer would go to the node, which has no such connection.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.deployment import Deployment, eventually
from tests.lab.firewall import NFTABLES, backend
from tests.lab.firewall_state import rules
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.topology import Place
from tests.lab.world import FAMILIES, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
BALANCED = "192.168.123.201"
NODE_PORT = 30080
VM = "192.168.130.23"
VM_NETWORK = "192.168.130.0/24"
EXEMPTION = f"{VM_NETWORK}:192.168.0.0/16"
LOST_AFTER = 1.5
"""Seconds without an answer after which a call is taken to be lost; an answer comes within milliseconds."""


@dataclass(frozen=True)
class Annex:
    """The VM, and the router of its network."""

    vm: Host
    router: Host


@pytest.fixture(scope="module")
def annex(world: World) -> Iterator[Annex]:
    """A separate network: VM and router on a bridge of node1; node1 has no address in it."""
    cluster, node1 = world.cluster, world.cluster.node("node1")
    router, vm = cluster.host("router", Place(1)), Host("vm", cluster.namespace("vm"), cluster.traffic, VM, "")
    node1.namespace.ip(
        "link add br130 type bridge mcast_snooping 0\nlink set br130 up\n"
        f"link add vm130 type veth peer name eth0 netns {vm.namespace.name}\nlink set vm130 master br130 up\n"
        f"link add rt130 type veth peer name eth1 netns {router.namespace.name}\nlink set rt130 master br130 up\n"
    )
    node1.sysctl("net.bridge.bridge-nf-call-iptables", 1)
    vm.namespace.ip(f"address add {VM}/24 dev eth0\nlink set eth0 up\nroute add default via 192.168.130.1\n")
    router.namespace.ip(
        "address add 192.168.130.1/24 dev eth1\nlink set eth1 up\n"
        f"route add {BALANCED}/32 via {cluster.node('node2').ip}\n"
    )
    router.sysctl("net.ipv4.ip_forward", 1)
    for node in world.nodes:
        node.run("ip", "route", "add", VM_NETWORK, "via", router.ip)
    yield Annex(vm, router)
    for node in world.nodes:
        node.run("ip", "route", "del", VM_NETWORK)
    node1.namespace.ip("link del br130\nlink del vm130\nlink del rt130\n")
    vm.close()
    cluster.remove_host(router)


def addressed(world: World) -> dict[str, tuple[str, int]]:
    return {"load balancer": (BALANCED, 80), "node port": (world.cluster.node("node2").ip, NODE_PORT)}


async def start(world: World, deployment: Deployment, *flags: str) -> None:
    """Start kroute; the Service's only endpoint is on node2, to which the router leads."""
    web = service("web", *CLUSTER_IPS, ports={"TCP": 80}, node_ports={"TCP": NODE_PORT}, ingress=[BALANCED])
    deployment.apply(web, *endpoint_slices("web", world.web[1:2]))
    await deployment.start(*flags)


@pytest.mark.parametrize("way", ["load balancer", "node port"])
async def test_s10_an_exempt_client_is_seen_as_itself_and_answered(
    world: World, deployment: Deployment, annex: Annex, way: str
) -> None:
    await start(world, deployment, "--masquerade-exempt", EXEMPTION)
    answer = await annex.vm.http(*addressed(world)[way])
    assert (answer.host, answer.peer) == ("web-2", VM)
    others = await world.cluster.client.http(*addressed(world)["node port"])
    assert others.peer != world.cluster.client.ip, "only the exempt network is exempt"


async def test_without_the_exemption_the_answer_is_lost(world: World, deployment: Deployment, annex: Annex) -> None:
    await start(world, deployment)
    with pytest.raises(TimeoutError):
        await annex.vm.http(*addressed(world)["load balancer"], timeout=LOST_AFTER)


LEGACY_BREAKAGES = {
    "the rule is deleted": "iptables-legacy -t nat -D KROUTE-SERVICES 2",
    "the chain is flushed": "iptables-legacy -t nat -F KROUTE-SERVICES",
    "the table is flushed": "iptables-legacy -t nat -F",
}
NFT_BREAKAGES = {
    "the rule is deleted": (
        "nft -a list chain ip kroute mark-masquerade"
        " | sed -n '/exempt from/s/.*# /delete rule ip kroute mark-masquerade /p' | nft -f -"
    ),
    "the chain is flushed": "nft flush chain ip kroute mark-masquerade",
    "the table is flushed": "nft flush table ip kroute",
}
BREAKAGES = NFT_BREAKAGES if backend() == NFTABLES else LEGACY_BREAKAGES


@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=list(BREAKAGES))
async def test_s10_the_exemption_comes_back(world: World, deployment: Deployment, annex: Annex, breakage: str) -> None:
    await start(world, deployment, "--masquerade-exempt", EXEMPTION)
    for node in world.nodes:
        before = rules(node, "IPv4")
        log = deployment.agents[node.name].log
        assert '"repair"' not in log.read_text()
        node.run("sh", "-c", breakage)
        await eventually(lambda node=node, log=log, before=before: is_back(node, log, before), within=15)
    answer = await annex.vm.http(*addressed(world)["load balancer"])
    assert answer.peer == VM


def is_back(node: Host, log: Path, before: dict[str, list[str]]) -> None:
    assert '"repair"' in log.read_text(), "the damage has not been noticed"
    assert rules(node, "IPv4") == before
