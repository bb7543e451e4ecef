"""From kube-proxy and from kube-router to kroute and back, with 100 open connections that live through it all."""

import json
import re
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import OpenStream
from tests.lab.kernel_state import Snapshot
from tests.lab.load import Way, constant_load
from tests.lab.objects import endpoint_slices, service
from tests.lab.other_proxies import (
    KUBE_ROUTER_SYSCTLS,
    Served,
    kube_proxy_leavings,
    kube_router_leavings,
    unbuild,
)
from tests.lab.other_proxy_rules import NEIGHBOUR_CHAINS
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.scenarios.conftest import FAMILIES, World
from tests.scenarios.test_s17_only_what_is_ours import foreign_things

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
NODE_PORT = 31080
STREAMS = 100
FLAGS = {
    "kube-proxy": ("--cluster-cidr", f"{POD_RANGE},{POD_RANGE6}", "--strict-arp", "off"),
    "kube-router": ("--run-router=false", "--nodeport-bindon-all-ip=false"),
}

_NUMBERS = re.compile(r"^\d+: |link/ether [0-9a-f:]+ |link/none ")
"""What is another one when a link is made again."""

Build = Callable[[Node, Iterable[Served]], None]


@pytest.fixture
def node1(world: World) -> Iterator[Node]:
    """A node with somebody else's things on it, the kubelet's too, and with the sysctls of a node that had a proxy."""
    node = world.cluster.node("node1")
    before = {name: node.sysctl(name) for name in KUBE_ROUTER_SYSCTLS}
    with foreign_things(node):
        node.run("iptables-legacy-restore", "--noflush", stdin=NEIGHBOUR_CHAINS)
        try:
            yield node
        finally:
            unbuild(node)
            _restore_foreign_rules(node)
    for name, value in before.items():
        node.sysctl(name, value)


def _restore_foreign_rules(node: Node) -> None:
    """What `foreign_things` is going to take away itself."""
    for command in (
        "ipvsadm -A -t 203.0.113.7:80", "ipset create FOREIGN hash:ip", "iptables-legacy -t nat -N FOREIGN",
        "iptables-legacy -t nat -I PREROUTING -j FOREIGN",
        "ip6tables-legacy -t nat -A POSTROUTING -s 2001:db8::1 -j ACCEPT",
    ):  # fmt: skip
        node.run(*command.split())


def services_of(world: World) -> list[Served]:
    """The Service `web` as another proxy has it: in both families, with a node port."""
    return [
        Served(family.service_ip, 8080, [(family.of(pod), 8080) for pod in world.web], NODE_PORT) for family in FAMILIES
    ]


def apply_web(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}), *endpoint_slices("web", world.web))


def ways_to(world: World, node: Node) -> list[Way]:
    """Everybody who may call: a pod and the node itself by ClusterIP, a client outside by node port."""
    ipv4, ipv6 = CLUSTER_IPS
    return [
        Way(world.visitor, ipv4, 8080),
        Way(world.visitor, ipv6, 8080),
        Way(world.cluster.client, node.ip, NODE_PORT),
        Way(world.cluster.client, node.ip6, NODE_PORT),
        Way(node, ipv4, 8080),
        Way(world.web[0], ipv4, 8080),
    ]


async def open_streams(ways: list[Way]) -> list[OpenStream]:
    return [
        await way.client.open_stream(way.address, way.port, interval=1.0, patience=20)
        for way in (ways[number % len(ways)] for number in range(STREAMS))
    ]


async def go_on(streams: list[OpenStream]) -> None:
    """Every stream has moved since this was asked."""
    echoed = [stream.echoed for stream in streams]

    def all_moved() -> None:
        assert not [stream.failure for stream in streams if stream.failure]
        assert all(stream.echoed > before + 1 for stream, before in zip(streams, echoed, strict=True))

    await eventually(all_moved, within=20)


async def migrate(node: Node, *arguments: str, expect: int = 0) -> str:
    process = await node.kroute("migrate", *arguments)
    code = await process.wait()
    text = process.log.read_text()
    assert code == expect, text
    return text


def alike(snapshot: Snapshot) -> Snapshot:
    """The snapshot without the numbers that a link gets, and without the order of what is hashed."""
    parts = {name: [_NUMBERS.sub("", line) for line in lines] for name, lines in snapshot.parts.items()}
    return Snapshot(parts | {name: sorted(parts[name]) for name in ("ipset save", "ipvsadm -Sn")})


@pytest.mark.parametrize(
    ("proxy", "build"),
    [("kube-proxy", kube_proxy_leavings), ("kube-router", kube_router_leavings)],
    ids=["kube-proxy", "kube-router"],
)
async def test_connections_live_through_the_take_over_and_back(
    world: World, deployment: Deployment, node1: Node, proxy: str, build: Build
) -> None:
    apply_web(world, deployment)
    build(node1, services_of(world))
    theirs = alike(node1.snapshot())
    ways = ways_to(world, node1)
    streams = await open_streams(ways)
    async with constant_load(ways) as load:
        found = json.loads(await migrate(node1, "--from", proxy, "-o", "json"))
        assert len(found["to_adopt"]) == len(node1.ipvs()) - 1
        assert found["others"] == ["TCP 203.0.113.7:80"]
        await migrate(node1, "--from", proxy, "--take-over")
        await deployment.start(*FLAGS[proxy], nodes=("node1",))
        await migrate(node1, "--from", proxy, "--take-over")
        await go_on(streams)
        assert "nothing of" in await migrate(node1, "--from", proxy)
        await deployment.stop()
        build(node1, services_of(world))
        await migrate(node1, "--to", proxy, "--hand-over")
        await go_on(streams)
    assert not load.failures
    assert all(load.calls[way] for way in ways)
    assert not theirs.diff(alike(node1.snapshot()))
    for stream in streams:
        await stream.close()
