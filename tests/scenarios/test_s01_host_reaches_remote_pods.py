"""S1 and S2: a node's own processes reach Services whose pods are on other nodes, by both address families."""

import pytest

from tests.lab.allocation import Addresses
from tests.lab.deployment import EVENTS_ALONE, Deployment, eventually
from tests.lab.objects import endpoint_slices, service
from tests.lab.topology import NODES
from tests.scenarios.conftest import FAMILIES, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
API_CLUSTER_IPS = ("10.254.0.1", "fd00:10:254::1")


async def test_s1_all_pods_answer_a_host_and_see_its_own_address(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start()
    node3 = world.cluster.node("node3")
    for family in FAMILIES:
        answers = [await node3.http(family.service_ip, 8080) for _ in range(6)]
        assert {answer.host for answer in answers} == {"web-1", "web-2", "web-3"}
        remote = [answer.peer for answer in answers if answer.host != "web-3"]
        assert set(remote) == {family.of(node3)}


async def test_s1_the_local_route_of_each_vip_has_the_nodes_address_as_source(
    world: World, deployment: Deployment
) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start()
    for node in world.nodes:
        sources = node.local_routes()
        for family in FAMILIES:
            assert sources[family.service_ip] == family.of(node)


@pytest.mark.parametrize("metric", ["1024", "512"], ids=["with our metric", "with a lower one"])
async def test_s1_a_route_that_another_program_adds_with_another_source_goes_at_once(
    world: World, deployment: Deployment, metric: str
) -> None:
    """The metric is that of the IPv6 route. One of 1024 takes the place of ours, a lower one wins over it."""
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(*EVENTS_ALONE, nodes=("node3",))
    node3 = world.cluster.node("node3")
    bridge = Addresses(NODES["node3"].pod_ip(1), NODES["node3"].pod_ip6(1))
    for family, how in zip(FAMILIES, (["-4", "route", "prepend"], ["-6", "route", "replace"]), strict=True):
        to_vip = ["local", family.service_ip, "dev", "kube-ipvs0", "table", "local", "src", family.of(bridge)]
        node3.run("ip", *how, *to_vip, *(["metric", metric] if family.name == "IPv6" else []))

    def is_repaired() -> None:
        sources = node3.local_routes()
        for family in FAMILIES:
            assert sources[family.service_ip] == family.of(node3)

    await eventually(is_repaired)
    assert deployment.agents["node3"].log.read_text().count('"repair"') == len(FAMILIES)


async def test_s2_the_api_server_is_reached_from_every_node(world: World, deployment: Deployment) -> None:
    master = world.cluster.node("node1")
    await master.serve(http=6443)
    try:
        ports = {"TCP": 443}
        deployment.apply(
            service("kubernetes", *API_CLUSTER_IPS, ports=ports),
            *endpoint_slices("kubernetes", [master], {"TCP": 6443}),
        )
        await deployment.start()
        for node in world.nodes:
            for api in API_CLUSTER_IPS:
                assert (await node.http(api, 443)).host == "node1"
    finally:
        await master.stop_serving()
