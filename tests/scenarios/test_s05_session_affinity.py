"""S5: session affinity becomes persistence, edited in place on a live virtual server."""

from tests.lab.deployment import Deployment, eventually
from tests.lab.objects import Object, endpoint_slices, service
from tests.scenarios.conftest import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)


def sticky(seconds: int) -> Object:
    config = {"clientIP": {"timeoutSeconds": seconds}}
    return service("web", *CLUSTER_IPS, sessionAffinity="ClientIP", sessionAffinityConfig=config)


async def test_s5_the_timeout_is_edited_in_place(world: World, deployment: Deployment, family: Family) -> None:
    deployment.apply(sticky(10800), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    key = f"TCP {family.at(family.service_ip, 8080)}"

    def persistence_is(flags: str) -> None:
        assert node1.ipvs()[key].flags.startswith(flags) if flags else not node1.ipvs()[key].flags

    persistence_is("persistent 10800")
    stream = await world.visitor.open_stream(family.service_ip, 8080)
    deployment.apply(sticky(600))
    await eventually(lambda: persistence_is("persistent 600"))
    deployment.apply(service("web", *CLUSTER_IPS))
    await eventually(lambda: persistence_is(""))
    await stream.close()


async def test_s5_one_client_sticks_and_others_spread(world: World, deployment: Deployment, family: Family) -> None:
    deployment.apply(sticky(10800), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    clients = (world.visitor, node1, world.web[0])
    chosen = []
    for client in clients:
        pods = await client.spread(family.service_ip, 8080, 5)
        assert len(pods) == 1, f"{client} reached {pods}"
        chosen += pods
    assert len(set(chosen)) > 1, f"every client reached {chosen}"


async def test_s5_without_affinity_clients_spread_again(world: World, deployment: Deployment, family: Family) -> None:
    deployment.apply(sticky(10800), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    assert len(await world.visitor.spread(family.service_ip, 8080, 5)) == 1
    deployment.apply(service("web", *CLUSTER_IPS))

    async def spreads() -> None:
        assert len(await world.visitor.spread(family.service_ip, 8080, 6)) == 3

    await eventually(spreads)
