"""Everybody who may write a Service may name any address in it. None of them takes over a node, a pod or a Service."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.lab import objects
from tests.lab.api_server import EVENTS, ApiServer
from tests.lab.deployment import eventually
from tests.lab.hosts import PINGS_END_WITHIN, Host
from tests.lab.objects import Object
from tests.lab.topology import POD_RANGE, POD_RANGE6, SERVICE_RANGE, SERVICE_RANGE6
from tests.lab.world import FAMILIES, Family, World

VICTIM_IPS = ("10.254.9.9", "fd00:10:254::9:9")
SSH = 22
PORTS = (SSH, 6443, 10250, 80)
NOWHERE = (
    *("0.0.0.0", "0.1.2.3", "127.0.0.1", "127.8.9.10", "169.254.169.254", "224.0.0.1", "239.255.255.255"),
    *("240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "ff02::1", "::ffff:192.168.123.248", "::192.168.123.248"),
    *("fd00:10:254::77", "10.254.77.77", "10.254.0.0", "10.254.255.255"),
    *("192.168.123.300", "0300.0250.0173.0370", "192.168.123.0/24", "fe80::1%eth0", "node2"),
)


def hostile_addresses(world: World) -> list[str]:
    """Addresses of the nodes, of pods, of another Service, and addresses that may not leave a machine."""
    hosts: list[Host] = [*world.nodes, *world.web]
    bridges = [address for node in world.nodes for address in (node.pods[0].ip, node.pods[0].ip6)]
    gateways = [
        address.rpartition(separator)[0] + f"{separator}1" for address, separator in zip(bridges, ".:" * 3, strict=True)
    ]
    return [*(it for host in hosts for it in (host.ip, host.ip6)), *gateways, *VICTIM_IPS, *NOWHERE]


def attack(world: World) -> list[Object]:
    """Return two Services for each address: one has it as an external IP, the other from its load balancer."""
    items: list[Object] = []
    for number, address in enumerate(hostile_addresses(world)):
        for kind, fields in (("external", {"externalIPs": [address]}), ("balanced", {"ingress": [address]})):
            name = f"{kind}-{number}"
            ip = f"10.254.{4 if kind == 'external' else 5}.{number + 1}"
            ports = [objects.port(f"p{port}", port) for port in PORTS]
            targets = [objects.port(f"p{port}", 8080) for port in PORTS]
            items += [
                objects.service(name, ip, f"fd00:10:254::{ip.replace('.', ':')[-3:]}", ports=ports, **fields),
                *objects.endpoint_slices(name, world.web, targets),
            ]
    return items


@pytest.fixture
def api(world: World, tmp_path: Path) -> Iterator[ApiServer]:
    """The API server on node1. The attack names its address and port too."""
    server = ApiServer(
        world.cluster.node("node1"),
        tmp_path,
        [
            *(objects.node(node) for node in world.nodes),
            objects.service("victim", *VICTIM_IPS),
            *objects.endpoint_slices("victim", world.web[:1]),
        ],
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def attacked(world: World, api: ApiServer) -> AsyncIterator[list[Object]]:
    """kroute on every node, and all the hostile Services."""
    for node in world.nodes:
        await node.serve(http=SSH)
        await node.kroute(
            *("run", "--kubeconfig", str(api.kubeconfig), "--node-name", node.name, "--resync-period", "5s"),
            *("--service-cidr", f"{SERVICE_RANGE},{SERVICE_RANGE6}", "--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}"),
        )
    for node in world.nodes:
        await node.processes[-1].ready()
    items = attack(world)
    for item in items:
        api.create(item)
    yield items
    for node in world.nodes:
        await node.processes[-1].terminate()
        cleanup = await node.kroute("cleanup")
        assert await cleanup.wait() == 0
        await node.stop_serving()


async def test_every_node_pod_and_service_is_still_reached_and_each_refusal_is_reported(
    world: World, api: ApiServer, attacked: list[Object]
) -> None:
    names = {item["metadata"]["name"] for item in attacked if item["kind"] == "Service"}
    assert len(names) >= 2 * 40
    await eventually(lambda: _are_told_of(api, names), within=60)
    for family in FAMILIES:
        for caller in (*world.nodes, world.visitor, world.cluster.client):
            for node in world.nodes:
                await _is_reached(caller, node, family)
        for node in world.nodes:
            for pod in world.web:
                assert (await node.http(family.of(pod), 8080)).host == pod.name
            assert (await node.http(VICTIM_IPS[family.name == "IPv6"], 8080)).host == "web-1"
    for node in world.nodes:
        assert api.answers(node), f"{node} has lost the API server"
        bound = {address.partition("/")[0] for address in node.addresses("kube-ipvs0")}
        assert not bound & set(hostile_addresses(world)) - set(VICTIM_IPS)


def _are_told_of(api: ApiServer, names: set[str]) -> None:
    told = {event["regarding"]["name"] for event in api.list(EVENTS)}
    assert not names - told, f"no Event about {sorted(names - told)}"


async def _is_reached(caller: Host, node: Host, family: Family) -> None:
    """Expect an answer from the node's own server, not from a pod behind a Service, and an answer to a ping."""
    assert (await caller.http(family.of(node), SSH)).host == node.name
    caller.run(
        "busybox", "ping6" if family.name == "IPv6" else "ping", "-c", "1", "-W", PINGS_END_WITHIN, family.of(node)
    )
