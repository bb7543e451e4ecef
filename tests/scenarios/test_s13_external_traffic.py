"""S13: a client outside calls one node and the pod is on another, with policy Cluster and with policy Local.

The only endpoint is on node3. Two clients are on node1 itself: the visitor's pod, and the node's own processes. Each
deployment is tested by both address families.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import pytest

from tests.lab.allocation import Addresses
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.hosts import Host
from tests.lab.objects import Object, endpoint_slices, service
from tests.lab.topology import NODES
from tests.lab.world import FAMILIES, Family, World, routed
from tests.scenarios.refusals import is_refused, unlimited_errors

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
EXTERNAL = Addresses("203.0.113.10", "2001:db8::10")
LINK = {"node1": Addresses("198.51.100.1", "2001:db8:7::1"), "node3": Addresses("198.51.100.3", "2001:db8:7::3")}
"""A second network, with node1 and node3 only."""
PORTS = {"TCP": 80, "UDP": 53}
TARGET_PORTS = {"TCP": 8080, "UDP": 5353}


class Entrance(NamedTuple):
    """What a client outside calls: a node port of a node, or an external IP that is routed to the node."""

    tcp: int
    udp: int
    external: bool

    def address(self, node: Node, family: Family) -> str:
        """Return the address to call in order to reach `node`."""
        return family.of(EXTERNAL) if self.external else family.of(node)

    @contextmanager
    def leads_to(self, node: Node, family: Family, client: Host) -> Iterator[str]:
        """Route the client's packets to `node`, and yield the address to call."""
        if not self.external:
            yield family.of(node)
            return
        with routed(client, family.of(EXTERNAL), family.of(node)):
            yield family.of(EXTERNAL)


NODE_PORT = Entrance(30080, 30053, external=False)
EXTERNAL_IP = Entrance(80, 53, external=True)
by_entrance = pytest.mark.parametrize("entrance", [NODE_PORT, EXTERNAL_IP], ids=["node port", "external IP"])


def web(policy: str, annotations: Mapping[str, str] | None = None) -> Object:
    return service(
        "web",
        *CLUSTER_IPS,
        ports=PORTS,
        node_ports={"TCP": NODE_PORT.tcp, "UDP": NODE_PORT.udp},
        externalIPs=list(EXTERNAL),
        externalTrafficPolicy=policy,
        annotations=annotations,
    )


@pytest.fixture(autouse=True)
def quick_errors(world: World) -> Iterator[None]:
    with unlimited_errors(world.nodes):
        yield


async def seen_as(caller: Host, address: str, entrance: Entrance) -> set[str]:
    """Return the source addresses that web-3 has seen for the caller, over TCP and UDP."""
    answers = [await caller.http(address, entrance.tcp), await caller.udp(address, entrance.udp)]
    assert {answer.host for answer in answers} == {"web-3"}
    return {answer.peer for answer in answers}


@by_entrance
async def test_s13_cluster_any_node_serves_and_the_pod_sees_that_node(
    entrance: Entrance, world: World, deployment: Deployment
) -> None:
    """Without masquerading the pod would answer the client directly, which has no such connection."""
    deployment.apply(web("Cluster"), *endpoint_slices("web", world.web[2:], TARGET_PORTS))
    await deployment.start(nodes=("node1", "node3"))
    for family, name in itertools.product(FAMILIES, ("node1", "node3")):
        node, client = world.cluster.node(name), world.cluster.client
        with entrance.leads_to(node, family, client) as address:
            [seen] = await seen_as(client, address, entrance)
        # On the pod's own node the kernel takes the bridge's address, because the route to the pod leaves there.
        bridge = Addresses(NODES[name].pod_ip(1), NODES[name].pod_ip6(1))
        assert seen == family.of(world.masquerade_of(node) if name == "node1" else bridge)


LOCAL = {
    "by policy": web("Local"),
    "by kube-router's annotation": web("Cluster", {"kube-router.io/service.local": "true"}),
}


@pytest.mark.parametrize("local", LOCAL.values(), ids=list(LOCAL))
@by_entrance
async def test_s13_local_the_client_is_seen_as_itself_where_a_pod_is_and_refused_elsewhere(
    local: Object, entrance: Entrance, world: World, deployment: Deployment
) -> None:
    """With policy Cluster node1 would answer, and the pod would see a node's address. A dropped call would time out."""
    deployment.apply(local, *endpoint_slices("web", world.web[2:], TARGET_PORTS))
    await deployment.start(nodes=("node1", "node3"))
    node1, node3, client = world.cluster.node("node1"), world.cluster.node("node3"), world.cluster.client
    # Another node counts as outside, and so does that node's pod when it calls this node. The refusal of an external IP
    # has that as its source, and does not pass a tunnel that checks sources.
    passes = not (entrance.external and world.overlay is not None and world.overlay.checks_sources)
    for family in FAMILIES:
        with entrance.leads_to(node3, family, client) as address:
            assert await seen_as(client, address, entrance) == {family.of(client)}
        with entrance.leads_to(node1, family, client) as address:
            await is_refused(client, address, entrance.tcp, entrance.udp)
        for caller in (world.cluster.node("node2"), *([world.web[1]] if passes else [])):
            gateway = caller if isinstance(caller, Node) else caller.node
            with entrance.leads_to(node1, family, gateway) as address:
                await is_refused(caller, address, entrance.tcp, entrance.udp)


@by_entrance
async def test_s13_local_pods_and_processes_of_a_node_without_an_endpoint_are_served_by_the_clusters(
    entrance: Entrance, world: World, deployment: Deployment
) -> None:
    """With the node's own endpoints alone there would be none, and both would be refused."""
    deployment.apply(web("Local"), *endpoint_slices("web", world.web[2:], TARGET_PORTS))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    for family in FAMILIES:
        address = entrance.address(node1, family)
        assert await seen_as(world.visitor, address, entrance) == {family.of(world.visitor)}
        assert await seen_as(node1, address, entrance) == {family.of(node1)}


@by_entrance
async def test_s13_the_policy_changes_while_clients_call(
    entrance: Entrance, world: World, deployment: Deployment
) -> None:
    """If a set entry were left over, the pod would still see the node, or node1 would still refuse."""
    node1, client = world.cluster.node("node1"), world.cluster.client
    deployment.apply(web("Cluster"), *endpoint_slices("web", world.web[2:], TARGET_PORTS))
    await deployment.start(nodes=("node1",))

    async def is_masqueraded(family: Family, address: str) -> None:
        assert await seen_as(client, address, entrance) == {family.of(world.masquerade_of(node1))}

    async def is_seen_as_itself(family: Family, address: str) -> None:
        assert await seen_as(world.visitor, address, entrance) == {family.of(world.visitor)}

    async def follows(policy: str, family: Family, address: str) -> None:
        if policy == "Cluster":
            await eventually(lambda: is_masqueraded(family, address))
            return
        await eventually(lambda: is_refused(client, address, entrance.tcp, entrance.udp))
        await eventually(lambda: is_seen_as_itself(family, address))

    with contextlib.ExitStack() as routes:
        called = {family: routes.enter_context(entrance.leads_to(node1, family, client)) for family in FAMILIES}
        for family, address in called.items():
            await is_masqueraded(family, address)
        for policy in ("Local", "Cluster", "Local", "Cluster"):
            deployment.apply(web(policy))
            for family, address in called.items():
                await follows(policy, family, address)


async def test_s13_local_follows_the_pod_to_the_node(world: World, deployment: Deployment) -> None:
    """A plan that looked for local endpoints only once would still refuse."""
    node1, client = world.cluster.node("node1"), world.cluster.client
    deployment.apply(web("Local"), *endpoint_slices("web", world.web[2:], TARGET_PORTS))
    await deployment.start(nodes=("node1",))

    async def is_refused_here(family: Family) -> None:
        await is_refused(client, family.of(node1), NODE_PORT.tcp, NODE_PORT.udp)

    async def is_served_here(family: Family) -> None:
        answer = await client.http(family.of(node1), NODE_PORT.tcp)
        assert (answer.host, answer.peer) == ("web-1", family.of(client))

    for family in FAMILIES:
        await is_refused_here(family)
    for pods, expected in ((world.web, is_served_here), (world.web[1:], is_refused_here)):
        deployment.apply(*endpoint_slices("web", pods, TARGET_PORTS))
        for family in FAMILIES:
            await eventually(partial(expected, family))


@contextmanager
def second_network(here: Node, there: Node, family: Family, pods: str) -> Iterator[None]:
    """Join two nodes by a separate network, over which the first reaches the other's pods."""
    flag, length = ("-6", "64") if family.name == "IPv6" else ("-4", "24")
    (_, address), (_, gateway) = LINK.items()
    here.namespace.ip(f"link add eth1 type veth peer name eth1 netns {there.namespace.name}\n")
    for node, own in ((here, address), (there, gateway)):
        nodad = " nodad" if family.name == "IPv6" else ""
        node.namespace.ip(f"link set eth1 up\naddress add {family.of(own)}/{length} dev eth1{nodad}\n")
    here.run("ip", flag, "route", "replace", pods, "via", family.of(gateway), "dev", "eth1")
    try:
        yield
    finally:
        here.run("ip", flag, "route", "replace", pods, "via", family.of(there), "dev", "eth0")
        here.run("ip", "link", "del", "eth1")


@pytest.mark.parametrize("source", ["masquerade", "node-ip"])
async def test_s13_with_two_interfaces_snat_source_chooses_the_address(
    source: str, world: World, deployment: Deployment, family: Family
) -> None:
    """Masquerading takes the interface's address; if the flag were ignored, both cases would see the same one."""
    node1, node3, client = world.cluster.node("node1"), world.cluster.node("node3"), world.cluster.client
    pods = NODES["node3"].pod_networks[family.name == "IPv6"]
    deployment.apply(web("Cluster"), *endpoint_slices("web", world.web[2:], TARGET_PORTS))
    with second_network(node1, node3, family, pods):
        await deployment.start(f"--snat-source={source}", nodes=("node1",))
        expected = {"masquerade": LINK["node1"], "node-ip": node1}[source]
        assert await seen_as(client, family.of(node1), NODE_PORT) == {family.of(expected)}
        await deployment.cleanup()
