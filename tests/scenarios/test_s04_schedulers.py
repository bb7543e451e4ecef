"""S4: the scheduler of a live Service is changed by annotation; open connections stay."""

import pytest

from tests.lab.deployment import Deployment, eventually
from tests.lab.objects import endpoint_slices, service
from tests.scenarios.conftest import FAMILIES, Family, World

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)


@pytest.mark.parametrize(
    "name",
    ["kroute.io/scheduler", "kroute.io/service.scheduler", "kube-router.io/service.scheduler", "service.scheduler"],
)
async def test_s4_the_scheduler_changes_in_place(
    name: str, world: World, deployment: Deployment, family: Family
) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    node1 = world.cluster.node("node1")
    stream = await world.visitor.open_stream(family.service_ip, 8080)
    key = f"TCP {family.at(family.service_ip, 8080)}"
    assert node1.ipvs()[key].scheduler == "rr"
    implied = {"kroute.io/slow-start": "30s"}, "wrr"  # nothing chooses a scheduler
    for annotations, scheduler in (*(({name: it}, it) for it in ("lc", "sh", "dh", "rr")), implied, ({}, "rr")):
        deployment.apply(service("web", *CLUSTER_IPS, annotations=annotations))
        await eventually(lambda wanted=scheduler: _has_scheduler(node1.ipvs()[key].scheduler, wanted))
    echoed = stream.echoed
    await eventually(lambda: _more_than(stream.echoed, echoed))
    await stream.close()


async def test_s4_source_hashing_keeps_a_client_on_one_pod(
    world: World, deployment: Deployment, family: Family
) -> None:
    deployment.apply(
        service("web", *CLUSTER_IPS, annotations={"kroute.io/scheduler": "sh"}),
        *endpoint_slices("web", world.web),
    )
    await deployment.start(nodes=("node1",))
    assert len(await world.visitor.spread(family.service_ip, 8080, 6)) == 1


async def test_s4_a_bad_scheduler_leaves_the_default_and_blocks_nothing(world: World, deployment: Deployment) -> None:
    deployment.apply(
        service("web", "10.254.0.10", annotations={"kroute.io/scheduler": "fastest"}),
        *endpoint_slices("web", world.web),
    )
    await deployment.start(nodes=("node1",))
    assert world.cluster.node("node1").ipvs()["TCP 10.254.0.10:8080"].scheduler == "rr"
    assert len(await world.visitor.spread("10.254.0.10", 8080, 6)) == 3
    log = deployment.agents["node1"].log.read_text()
    assert "kroute.io/scheduler=fastest" in log
    assert "rr, wrr, lc" in log


def _has_scheduler(actual: str, wanted: str) -> None:
    assert actual == wanted


def _more_than(actual: int, bound: int) -> None:
    assert actual > bound
