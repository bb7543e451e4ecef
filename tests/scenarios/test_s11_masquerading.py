"""S11 and S12: which source address a pod sees, by both address families."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.deployment import Deployment
from tests.lab.hosts import Host
from tests.lab.objects import endpoint_slices, service
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.scenarios.conftest import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
CLUSTER_CIDRS = f"{POD_RANGE},{POD_RANGE6}"


@contextmanager
def routed(client: Host, family: Family, gateway: Host) -> Iterator[None]:
    """Give a client outside the cluster a route to the Service range."""
    prefix = {"IPv4": "10.254.0.0/16", "IPv6": "fd00:10:254::/112"}[family.name]
    client.run("ip", "route", "add", prefix, "via", family.of(gateway))
    try:
        yield
    finally:
        client.run("ip", "route", "del", prefix)


async def test_s11_masquerade_all_shows_the_node_for_every_connection(world: World, deployment: Deployment) -> None:
    remote = world.web[1:]
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", remote))
    await deployment.start("--masquerade-all")
    node1 = world.cluster.node("node1")
    for family in FAMILIES:
        for client in (world.visitor, node1):
            for _ in remote:
                assert (await client.http(family.service_ip, 8080)).peer == family.of(world.masquerade_of(node1))


async def test_s12_a_pod_sees_the_pod_that_called(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[1:2]))
    await deployment.start()
    for family in FAMILIES:
        answer = await world.visitor.http(family.service_ip, 8080)
        assert (answer.host, answer.peer) == ("web-2", family.of(world.visitor))


async def test_only_calls_from_outside_the_cluster_networks_are_masqueraded(
    world: World, deployment: Deployment
) -> None:
    node1, client = world.cluster.node("node1"), world.cluster.client
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[1:2]))
    await deployment.start("--cluster-cidr", CLUSTER_CIDRS)
    for family in FAMILIES:
        assert (await world.visitor.http(family.service_ip, 8080)).peer == family.of(world.visitor)
        with routed(client, family, node1):
            assert (await client.http(family.service_ip, 8080)).peer == family.of(world.masquerade_of(node1))


async def test_exempt_sources_are_not_masqueraded(world: World, deployment: Deployment) -> None:
    exempt = "172.20.0.0/16:10.254.0.0/16,fd00:172:20::/48:fd00:10:254::/112"
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[1:2]))
    await deployment.start("--masquerade-all", "--masquerade-exempt", exempt)
    node1 = world.cluster.node("node1")
    for family in FAMILIES:
        assert (await world.visitor.http(family.service_ip, 8080)).peer == family.of(world.visitor)
        assert (await node1.http(family.service_ip, 8080)).peer == family.of(world.masquerade_of(node1))


async def test_a_pod_that_is_sent_to_itself_gets_an_answer(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[:1]))
    await deployment.start()
    for family in FAMILIES:
        answer = await world.web[0].http(family.service_ip, 8080)
        assert answer.host == "web-1"
        assert answer.peer != family.of(world.web[0])
