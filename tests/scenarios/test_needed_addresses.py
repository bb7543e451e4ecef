"""A Service names what a node needs: its API server, its gateway, the broadcast and network addresses of its subnets.

The API server and the gateway are hosts but no nodes, so only the nodes' own protection of needed addresses helps them.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab import objects
from tests.lab.api_server import EVENTS, ApiServer
from tests.lab.cluster import Node
from tests.lab.deployment import eventually
from tests.lab.hosts import PINGS_END_WITHIN
from tests.lab.objects import Object
from tests.lab.world import FAMILIES, World, routed
from tests.scenarios.expected_state import assert_right

VICTIM_IPS = tuple(family.service_ip for family in FAMILIES)
GATEWAY = "192.168.123.77"
LATER = "198.51.100.255"
"""The broadcast address of a subnet that is added later."""
BEYOND, BEYOND6 = "203.0.113.0/24", "2001:db8:99::/64"
SUBNET = ("192.168.123.0", "192.168.123.255")
PORTS = (80, 6443)


def attack(world: World) -> list[Object]:
    """Return two Services for each address: one has it as an external IP, the other from its load balancer."""
    client = world.cluster.client
    bridges = [node.pods[0].ip.rpartition(".")[0] + ".255" for node in world.nodes]
    items: list[Object] = []
    for number, address in enumerate([client.ip, client.ip6, GATEWAY, *SUBNET, *bridges], 1):
        for third, fields in ((4, {"externalIPs": [address]}), (5, {"ingress": [address]})):
            ips = f"10.254.{third}.{number}", f"fd00:10:254::{third}:{number}"
            ports = [objects.port(f"p{port}", port) for port in PORTS]
            items.append(objects.service(f"attack-{third}-{number}", *ips, ports=ports, **fields))
    return items


@pytest.fixture
def gateway(world: World) -> Iterator[None]:
    """Give node1 and node2 a route through a gateway on the wire."""
    client = world.cluster.client
    client.run("ip", "address", "add", f"{GATEWAY}/32", "dev", "eth0")
    with ExitStack() as stack:
        for node in world.nodes[:2]:
            stack.enter_context(routed(node, BEYOND, GATEWAY))
            stack.enter_context(routed(node, BEYOND6, client.ip6))
        yield
    client.run("ip", "address", "del", f"{GATEWAY}/32", "dev", "eth0")


@pytest.fixture
def api(world: World, tmp_path: Path) -> Iterator[ApiServer]:
    """The API server, outside the cluster."""
    items = [
        *(objects.node(node) for node in world.nodes),
        objects.service("web", *VICTIM_IPS),
        *objects.endpoint_slices("web", world.web),
    ]
    server = ApiServer(world.cluster.client, tmp_path, items)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def nodes(world: World, api: ApiServer, gateway: None) -> AsyncIterator[list[Node]]:
    """Two nodes with kroute, which accept any external address."""
    nodes = world.nodes[:2]
    for node in nodes:
        arguments = ("--kubeconfig", str(api.kubeconfig), "--node-name", node.name, "--resync-period", "5s")
        await node.kroute("run", *arguments, "--external-ip-range", "0.0.0.0/0,::/0")
    for node in nodes:
        await node.processes[-1].ready()
    yield nodes
    for node in nodes:
        await node.processes[-1].terminate()
        cleanup = await node.kroute("cleanup")
        assert await cleanup.wait() == 0


async def test_the_node_keeps_what_it_needs_and_hears_that_the_attackers_services_are_deleted(
    world: World, api: ApiServer, nodes: list[Node]
) -> None:
    routes = {node.name: local_routes(node) for node in nodes}
    items = attack(world)
    for item in items:
        api.create(item)
    await eventually(lambda: all_are_told_of(api, items, nodes))
    for node in nodes:
        assert not {address.partition("/")[0] for address in node.addresses("kube-ipvs0")} & named(items)
        assert [route for route in routes[node.name] if route not in local_routes(node)] == []
        assert api.answers(node)
        node.run("busybox", "ping", "-c", "1", "-W", PINGS_END_WITHIN, GATEWAY)
        node.run("busybox", "ping6", "-c", "1", "-W", PINGS_END_WITHIN, world.cluster.client.ip6)
        assert len(await node.spread(VICTIM_IPS[0], 8080, 6)) == 3
    for item in items:
        api.delete(item)
    victim = [objects.service("web", *VICTIM_IPS), *objects.endpoint_slices("web", world.web[:1])]
    for piece in victim[1:]:
        api.apply(piece)
    known = [*(objects.node(node) for node in world.nodes), *victim]
    for node in nodes:
        await eventually(lambda node=node: assert_right(node, known))


async def test_an_address_that_becomes_needed_is_given_up_and_comes_back_when_it_is_free(
    api: ApiServer, nodes: list[Node]
) -> None:
    api.create(objects.service("early", "10.254.4.1", ports={"TCP": 80}, externalIPs=[LATER]))
    node = nodes[0]

    def is_bound(expected: bool) -> None:
        assert (f"{LATER}/32" in node.addresses("kube-ipvs0")) is expected

    await eventually(lambda: is_bound(True))
    node.run("ip", "address", "add", "198.51.100.1/24", "broadcast", "+", "dev", "cbr0")
    await eventually(lambda: is_bound(False))
    assert f"broadcast {LATER}" in node.run("ip", "route", "show", "table", "local")
    node.run("ip", "address", "del", "198.51.100.1/24", "dev", "cbr0")
    await eventually(lambda: is_bound(True))


def all_are_told_of(api: ApiServer, items: list[Object], nodes: list[Node]) -> None:
    told = {(event["regarding"]["name"], event["reportingInstance"]) for event in api.list(EVENTS)}
    wanted = {(item["metadata"]["name"], node.name) for item in items for node in nodes if not is_elsewhere(item, node)}
    assert not wanted - told, f"no Event about {sorted(wanted - told)}"


def is_elsewhere(item: Object, node: Node) -> bool:
    """Whether it is the broadcast address of another node's pod network."""
    [address] = named([item])
    return address.endswith(".255") and address != SUBNET[1] and address not in bridge_ends(node)


def bridge_ends(node: Node) -> set[str]:
    return {node.pods[0].ip.rpartition(".")[0] + ".255"}


def named(items: list[Object]) -> set[str]:
    """Return the external addresses that these Services name."""
    balanced = [it["ip"] for item in items for it in item.get("status", {}).get("loadBalancer", {}).get("ingress", ())]
    return {*balanced, *(it for item in items for it in item["spec"].get("externalIPs", ()))}


def local_routes(node: Node) -> list[str]:
    """Return the kernel's own routes to this node's subnets, broadcast ones included."""
    routes = node.run("ip", "route", "show", "table", "local").splitlines()
    return [route for route in routes if "kube-ipvs0" not in route]
