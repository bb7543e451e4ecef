"""S1 and S2: a node's own processes reach Services whose pods are on other nodes, by both address families."""

from tests.lab.deployment import Deployment
from tests.lab.objects import endpoint_slices, service
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
