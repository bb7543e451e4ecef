"""ClusterIP Services of every protocol, in both families, with several ports, while their objects come and go."""

import pytest

from tests.lab.deployment import Deployment, eventually
from tests.lab.objects import endpoint_slices, service
from tests.scenarios.conftest import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
PORTS = {"TCP": 80, "UDP": 53, "SCTP": 90}
TARGET_PORTS = {"TCP": 8080, "UDP": 5353, "SCTP": 9090}


@pytest.mark.parametrize(("protocol", "port"), [("http", 80), ("udp", 53), ("sctp", 90)])
async def test_every_pod_answers_over_every_protocol(
    protocol: str, port: int, world: World, deployment: Deployment, family: Family
) -> None:
    deployment.apply(service("web", *CLUSTER_IPS, ports=PORTS), *endpoint_slices("web", world.web, TARGET_PORTS))
    await deployment.start(nodes=("node1",))
    answered = await world.visitor.spread(family.service_ip, port, 6, protocol)
    assert set(answered) == {"web-1", "web-2", "web-3"}


async def test_an_endpoint_that_comes_or_goes_is_followed(world: World, deployment: Deployment, family: Family) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web[:2]))
    await deployment.start(nodes=("node1",))

    async def answers_come_from(names: set[str]) -> None:
        assert set(await world.visitor.spread(family.service_ip, 8080, 6)) == names

    await answers_come_from({"web-1", "web-2"})
    deployment.apply(*endpoint_slices("web", world.web))
    await eventually(lambda: answers_come_from({"web-1", "web-2", "web-3"}))
    deployment.apply(*endpoint_slices("web", world.web[1:]))
    await eventually(lambda: answers_come_from({"web-2", "web-3"}))


async def test_a_deleted_service_is_gone_and_others_stay(world: World, deployment: Deployment, family: Family) -> None:
    other_ips = tuple(each.other_service_ip for each in FAMILIES)
    web, other = service("web", *CLUSTER_IPS), service("other", *other_ips)
    deployment.apply(web, other, *endpoint_slices("web", world.web), *endpoint_slices("other", world.web))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    deployment.delete(web)

    def is_gone() -> None:
        assert not any(family.service_ip in key for key in node1.ipvs())
        assert family.service_ip not in node1.local_routes()

    await eventually(is_gone)
    assert len(await world.visitor.spread(family.other_service_ip, 8080, 6)) == 3
