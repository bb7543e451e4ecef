"""S27: endpoints that are VIPs or node ports. No packet circulates, and other Services are served."""

import asyncio

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.world import FAMILIES, Family, World

WEB = tuple(family.service_ip for family in FAMILIES)
OWN, ONE, OTHER, RING, KUBELET = ((f"10.254.9.{number}", f"fd00:10:254:9::{number}") for number in (1, 2, 3, 4, 5))
RING_PORT, HOST_PORT = 30091, 10250
TTL = 64
CALLS = 3
SYNS = 4
"""How often a client sends its SYN at most; each may pass the ring once, and so may the answer."""


def slices(name: str, port: int, *addresses: tuple[str, str]) -> list[Object]:
    """Return slices with these endpoints, each in both families."""
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default",
                "name": f"{name}-{family.name.lower()}",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": family.name,
            "endpoints": [{"addresses": [pair[number]], "conditions": {"ready": True}} for pair in addresses],
            "ports": [{"name": "TCP", "port": port, "protocol": "TCP"}],
        }
        for number, family in enumerate(FAMILIES)
    ]


def attack(nodes: tuple[Node, ...]) -> list[Object]:
    ring = [(node.ip, node.ip6) for node in nodes[:2]]
    return [
        service("own", *OWN),
        *slices("own", 8080, OWN),
        service("one", *ONE),
        *slices("one", 8080, OTHER),
        service("other", *OTHER),
        *slices("other", 8080, ONE),
        service("ring", *RING, node_ports={"TCP": RING_PORT}),
        *slices("ring", RING_PORT, *ring),
        service("kubelet", *KUBELET),
        *slices("kubelet", HOST_PORT, WEB),
    ]


def packets(nodes: tuple[Node, ...]) -> int:
    """Return how many packets the nodes have received so far, over the wire and from themselves."""
    lines = (line.split() for node in nodes for line in node.run("cat", "/proc/net/dev").splitlines())
    return sum(int(words[2]) for words in lines if words[0] in {"eth0:", "lo:"})


async def outcome(host: Host, address: str, port: int) -> str:
    """Return who answers a call; "" if nobody does."""
    try:
        return (await host.http(address, port, timeout=2.5)).host
    except OSError:
        return ""


async def test_s27_endpoints_that_are_vips_or_node_ports_keep_nobody_busy(
    world: World, deployment: Deployment, family: Family
) -> None:
    nodes = world.nodes
    number = FAMILIES.index(family)
    web = [service("web", *WEB), *endpoint_slices("web", world.web)]
    deployment.apply(*web, *attack(nodes))
    await deployment.start()
    client, node = world.cluster.client, nodes[0]
    targets = {
        "own": (node, OWN[number], 8080),
        "one": (node, ONE[number], 8080),
        "ring": (client, family.of(node), RING_PORT),
        "ring's ClusterIP": (node, RING[number], 8080),
        "kubelet": (node, KUBELET[number], 8080),
    }
    await node.serve(http=HOST_PORT)
    said = {}
    try:
        for name, (host, address, port) in targets.items():
            before = packets(nodes)
            answers = {await outcome(host, address, port) for _ in range(CALLS)}
            said[name] = (answers, packets(nodes) - before)
        await asyncio.sleep(3)
        before = packets(nodes)
        await asyncio.sleep(2)
        idle = packets(nodes) - before
        victims = await node.spread(WEB[number], 8080, 9)
    finally:
        await node.stop_serving()
    for name, (answers, count) in said.items():
        assert answers == {""}, said
        assert count < CALLS * SYNS * TTL * 2, (name, said)
    assert idle < TTL, said
    assert sum(victims.values()) == 9
