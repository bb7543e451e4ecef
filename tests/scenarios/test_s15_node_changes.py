"""S15: the node changes while kroute runs: its addresses, its Node object, its zone, its families.

kroute runs on node3. "S1 holds" means: node3's own processes reach all three pods, and the remote pods see node3's
current address, which is the source of the VIPs' local routes.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest

from kroute.model.plan import AddressSet, SetEntry
from tests.lab.allocation import Addresses
from tests.lab.cluster import Node
from tests.lab.deployment import EVENTS_ALONE, Deployment, eventually, goes_on
from tests.lab.firewall_state import entries
from tests.lab.objects import Endpoint, Object, endpoint_slices, node, service
from tests.lab.topology import NODES
from tests.lab.world import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
OLD = Addresses(NODES["node3"].ip, NODES["node3"].ip6)
NEW = Addresses("192.168.123.239", "fd00:192:168:123::239")
NODE_PORT = 30080


class Cluster3(NamedTuple):
    """The cluster as seen from node3, where kroute runs, with the events of kroute's log."""

    node: Node
    world: World
    deployment: Deployment

    def events(self, name: str) -> list[Object]:
        """Return the log lines of this event."""
        lines = self.deployment.agents["node3"].log.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    async def has_s1(self, family: Family, address: str) -> None:
        """Wait until S1 holds with `address` as the node's own, and until the node port is served there."""
        assert self.node.local_routes()[family.service_ip] == address
        answers = [await self.node.http(family.service_ip, 8080, timeout=2.0) for _ in range(6)]
        assert {it.host for it in answers} == {"web-1", "web-2", "web-3"}
        assert {it.peer for it in answers if it.host != "web-3"} == {address}
        assert (await self.world.cluster.client.http(address, NODE_PORT, timeout=2.0)).host.startswith("web-")

    def readdress(self, family: Family, before: Addresses, after: Addresses) -> None:
        """Change the address as a DHCP client does, and the routes as a CNI plugin does."""
        old, new, is_ipv6 = family.of(before), family.of(after), family.name == "IPv6"
        length, nodad = (64, " nodad") if is_ipv6 else (24, "")
        others = [name for name in NODES if name != "node3"]
        self.node.namespace.ip(
            f"address del {old}/{length} dev eth0\naddress add {new}/{length} dev eth0{nodad}\n"
            + "".join(
                f"route replace {NODES[name].pod_networks[is_ipv6]} via {(NODES[name].ip, NODES[name].ip6)[is_ipv6]}\n"
                for name in others
            )
        )
        for name in others:
            other, pods = self.world.cluster.node(name), NODES["node3"].pod_networks[is_ipv6]
            other.run("ip", "route", "replace", pods, "via", new)

    def tell(self, zone: str | None, addresses: tuple[str, ...] = OLD) -> None:
        """Publish a Node object with this zone and these addresses."""
        item = node(self.node, zone)
        item["status"]["addresses"] = [{"type": "InternalIP", "address": it} for it in addresses]
        self.deployment.apply(item)

    async def knows(self, *, within: float = 10.0, **facts: object) -> None:
        """Wait until kroute's last log line about its node has these fields."""

        def has_said_so() -> None:
            said = self.events("node.known")[-1]
            assert {name: said[name] for name in facts} == facts

        await eventually(has_said_so, within)


def readdressed(family: Family) -> tuple[str, ...]:
    """Return node3's addresses after the change in one family."""
    return tuple(family.of(NEW) if address == family.of(OLD) else address for address in OLD)


@pytest.fixture
async def cluster3(world: World, deployment: Deployment) -> AsyncIterator[Cluster3]:
    """A Service with a node port and a pod on each node; the addresses are restored afterwards."""
    deployment.apply(service("web", *CLUSTER_IPS, node_ports={"TCP": NODE_PORT}), *endpoint_slices("web", world.web))
    cluster3 = Cluster3(world.cluster.node("node3"), world, deployment)
    yield cluster3
    present = set(cluster3.node.addresses("eth0"))
    for family, length in zip(FAMILIES, (24, 64), strict=True):
        if f"{family.of(NEW)}/{length}" in present:
            cluster3.readdress(family, NEW, OLD)


async def test_s15_an_address_that_leaves_and_comes_back_is_the_source_again_at_once(
    cluster3: Cluster3, family: Family
) -> None:
    """Linux 6.6 and later remove an IPv6 source from the routes when it leaves the node, and send no event."""
    await cluster3.deployment.start(*EVENTS_ALONE, nodes=("node3",))
    await cluster3.has_s1(family, family.of(OLD))
    cluster3.readdress(family, OLD, OLD)
    await eventually(lambda: cluster3.has_s1(family, family.of(OLD)))


async def test_s15_routes_and_node_ports_follow_the_address_and_the_node_object_follows_later(
    cluster3: Cluster3, family: Family
) -> None:
    """A proxy that trusts the Node object keeps a deleted source: nothing that node3 sends to a Service arrives."""
    await cluster3.deployment.start(*EVENTS_ALONE, nodes=("node3",))
    await cluster3.has_s1(family, family.of(OLD))
    cluster3.readdress(family, OLD, NEW)
    await eventually(lambda: cluster3.has_s1(family, family.of(NEW)))
    assert f"TCP {family.at(family.of(OLD), NODE_PORT)}" not in cluster3.node.ipvs()
    cluster3.tell("a", readdressed(family))
    await cluster3.knows(zone="a", within=30)  # a watch not yet answered when its address left stalls for 120 s
    await cluster3.has_s1(family, family.of(NEW))


async def test_s15_a_node_object_that_is_early_is_not_believed_before_the_address_is_there(
    cluster3: Cluster3, family: Family
) -> None:
    """The kernel refuses a source that the node does not have: the routes would be lost, or would not change."""
    await cluster3.deployment.start(*EVENTS_ALONE, nodes=("node3",))
    cluster3.tell("a", readdressed(family))
    await cluster3.knows(zone="a")
    await cluster3.has_s1(family, family.of(OLD))
    cluster3.readdress(family, OLD, NEW)
    await eventually(lambda: cluster3.has_s1(family, family.of(NEW)))


async def test_s15_an_open_connection_to_a_pod_of_the_node_goes_on(cluster3: Cluster3, family: Family) -> None:
    """Every Service is planned again. A virtual server that were created again would lose its connections."""
    visitor, service_ip = cluster3.world.web[2], family.service_ip
    await cluster3.deployment.start(*EVENTS_ALONE, nodes=("node3",))
    stream = await visitor.open_stream(service_ip, 8080, patience=20)
    cluster3.readdress(family, OLD, NEW)
    await eventually(lambda: cluster3.has_s1(family, family.of(NEW)))
    await goes_on(stream)
    await stream.close()


async def test_s15_without_its_node_object_kroute_says_so_and_serves(cluster3: Cluster3, family: Family) -> None:
    """A proxy that waits for the Node serves nothing; one that reads it once never learns its zone and pods."""
    deployment, [node3] = cluster3.deployment, [it for it in cluster3.deployment.node_objects if _is_node3(it)]
    hinted = [Endpoint(pod, {}, for_zones=(zone,)) for pod, zone in zip(cluster3.world.web, "abc", strict=True)]
    deployment.delete(node3)
    deployment.apply(*endpoint_slices("web", hinted))
    await deployment.start("--detect-local-mode=NodeCIDR", nodes=("node3",))
    await cluster3.has_s1(family, family.of(OLD))
    [problem] = [it for it in cluster3.events("node.problem") if it["reason"] == "NodeNotFound"]
    assert "Node node3 does not exist yet" in problem["message"]
    pods = NODES["node3"].pod_networks[family.name == "IPv6"]
    network = SetEntry(AddressSet.POD_NETWORK, (pods,))
    assert network not in entries(cluster3.node)
    cluster3.tell("b")

    async def its_facts_count() -> None:
        assert network in entries(cluster3.node)
        assert set(await cluster3.node.spread(family.service_ip, 8080, 3)) == {"web-2"}

    await eventually(its_facts_count)


async def test_s15_another_zone_moves_the_traffic_of_hinted_endpoints(cluster3: Cluster3, family: Family) -> None:
    """If the label were read only at the start, the first zone's endpoint would still answer."""
    hinted = [Endpoint(pod, {}, for_zones=(zone,)) for pod, zone in zip(cluster3.world.web, "abc", strict=True)]
    cluster3.deployment.apply(*endpoint_slices("web", hinted))
    cluster3.tell("a")
    await cluster3.deployment.start(*EVENTS_ALONE, nodes=("node3",))

    def answers_only(name: str) -> Callable[[], object]:
        async def check() -> None:
            assert set(await cluster3.node.spread(family.service_ip, 8080, 3)) == {name}

        return check

    await answers_only("web-1")()
    cluster3.tell("b")
    await eventually(answers_only("web-2"))
    cluster3.tell("a")
    await eventually(answers_only("web-1"))


async def test_s15_a_node_with_one_family_serves_that_one_and_says_so(cluster3: Cluster3, family: Family) -> None:
    """A VIP of the other family would answer here, although no backend can be reached."""
    cluster3.tell(None, (family.of(OLD),))
    await cluster3.deployment.start(*EVENTS_ALONE, nodes=("node3",))
    await cluster3.knows(serves=f"{family.name} only")
    await cluster3.has_s1(family, family.of(OLD))
    assert {("[" in key) for key in cluster3.node.ipvs()} == {family.name == "IPv6"}
    bound = {it.partition("/")[0] for it in cluster3.node.addresses("kube-ipvs0")}
    assert bound & set(CLUSTER_IPS) == {family.service_ip}


def _is_node3(item: Object) -> bool:
    return item["metadata"]["name"] == "node3"
