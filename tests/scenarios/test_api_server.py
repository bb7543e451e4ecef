"""kroute with an API server: what it writes to the API, and what it does when the API server is away."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.lab import objects
from tests.lab.api_server import EVENTS, ApiServer
from tests.lab.deployment import eventually
from tests.lab.kroute_process import KrouteProcess
from tests.lab.objects import Object
from tests.scenarios.conftest import FAMILIES, World
from tests.scenarios.expected_state import assert_right

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)
AWAY, IN_TIME = 10.0, 2.0
"""Seconds that the API server is away, and from its return to the end of a change."""
WRITES = ("vip.", "route.", "virtual_server.", "real_server.added", "repair", "rules.", "sysctl.")
"""What the log says of objects that are as they should be, once they are written again."""


def initial_objects(world: World) -> list[Object]:
    return [
        *(objects.node(node) for node in world.nodes),
        objects.service("web", *CLUSTER_IPS),
        *objects.endpoint_slices("web", world.web),
    ]


@pytest.fixture
def api(world: World, tmp_path: Path) -> Iterator[ApiServer]:
    """The API server on node1; kroute runs on node2."""
    server = ApiServer(world.cluster.node("node1"), tmp_path, initial_objects(world))
    server.start()
    try:
        yield server
    finally:
        server.stop()


async def started(world: World, api: ApiServer) -> KrouteProcess:
    node2 = world.cluster.node("node2")
    return await node2.kroute(
        "run", "--kubeconfig", str(api.kubeconfig), "--node-name", "node2", "--resync-period", "5s"
    )


@pytest.fixture
async def agent(world: World, api: ApiServer) -> AsyncIterator[KrouteProcess]:
    """kroute on node2, ready; the node is cleaned up afterwards."""
    process = await started(world, api)
    await process.ready()
    yield process
    for running in world.cluster.node("node2").processes:
        await running.terminate()
    cleanup = await world.cluster.node("node2").kroute("cleanup")
    assert await cleanup.wait() == 0


async def test_what_the_api_has_is_served_and_changes_follow(
    world: World, api: ApiServer, agent: KrouteProcess
) -> None:
    node2 = world.cluster.node("node2")
    assert_right(node2, initial_objects(world))
    changed = objects.service("web", *CLUSTER_IPS, annotations={"kroute.io/scheduler": "lc"})
    api.apply(changed)
    fewer = objects.endpoint_slices("web", world.web[:1])
    for piece in fewer:
        api.apply(piece)
    items = [*initial_objects(world)[:3], changed, *fewer]
    await eventually(lambda: assert_right(node2, items))


async def test_a_bad_annotation_becomes_one_warning_event(world: World, api: ApiServer, agent: KrouteProcess) -> None:
    for scheduler in ("fastest", "lc", "fastest"):
        api.apply(objects.service("web", *CLUSTER_IPS, annotations={"kroute.io/scheduler": scheduler}))
        await eventually(lambda wanted=scheduler: _uses(world, {"lc": "lc"}.get(wanted, "rr")))

    def is_told_of() -> Object:
        events = [event for event in api.list(EVENTS) if event["regarding"]["kind"] == "Service"]
        assert len(events) == 1
        return events[0]

    event = await eventually(is_told_of)
    assert event["type"] == "Warning"
    assert event["reason"] == "InvalidAnnotation"
    assert event["regarding"]["name"] == "web"
    assert "kroute.io/scheduler=fastest" in event["note"]
    assert "rr, wrr, lc" in event["note"]
    assert event["reportingInstance"] == "node2"


async def test_without_an_api_server_the_data_path_stays_also_over_a_restart(
    world: World, api: ApiServer, agent: KrouteProcess
) -> None:
    node2 = world.cluster.node("node2")
    before = node2.snapshot()
    api.stop()
    assert len(await node2.spread(CLUSTER_IPS[0], 8080, 6)) == 3
    assert await agent.kill() == -9
    again = await started(world, api)
    await eventually(lambda: _complains(again))
    assert not before.diff(node2.snapshot())
    assert len(await node2.spread(CLUSTER_IPS[0], 8080, 6)) == 3
    api.start()
    await again.ready()
    assert not before.diff(node2.snapshot())


async def test_s21_a_change_in_the_moment_of_the_servers_return_is_in_the_kernel_two_seconds_later(
    world: World, api: ApiServer, agent: KrouteProcess
) -> None:
    """What was right is not written again, and nobody takes the first refusals of a server for lost privileges."""
    node2 = world.cluster.node("node2")
    told = len(agent.log.read_text())
    before = node2.snapshot()
    api.stop()
    await asyncio.sleep(AWAY)
    assert not before.diff(node2.snapshot())
    api.start()
    fewer = objects.endpoint_slices("web", world.web[:1])
    for piece in fewer:
        api.apply(piece)
    known = [*initial_objects(world)[:4], *fewer]
    await eventually(lambda: assert_right(node2, known), IN_TIME)
    log = agent.log.read_text()[told:]
    assert '"api.away"' in log
    assert '"api.back"' in log
    assert not [written for written in WRITES if f'"event": "{written}' in log]
    assert "Privilege" not in log
    assert not [event for event in api.list(EVENTS) if "Privilege" in event["reason"]]


async def test_trouble_at_the_start_is_got_over(world: World, api: ApiServer, agent: KrouteProcess) -> None:
    node2 = world.cluster.node("node2")
    before = node2.snapshot()
    await agent.terminate()
    for fault in (
        {"kind": "answer", "status": 500, "times": 2},
        {"kind": "answer", "status": 429, "retry_after": 1},
        {"kind": "drop"},
        {"kind": "truncate", "times": 2},
        {"kind": "expire", "where": "watch"},
    ):
        api.fault(**fault)
    again = await started(world, api)
    await again.ready()
    assert not before.diff(node2.snapshot())
    assert "real_server." not in again.log.read_text(), "a restart has changed what was right"


async def test_a_service_of_the_greatest_depth_disturbs_no_other(
    world: World, api: ApiServer, agent: KrouteProcess
) -> None:
    """Everybody who may write a Service can nest its `managedFields` as deep as the API server permits.

    kroute refuses the Service, and names it.
    """
    node2 = world.cluster.node("node2")
    attacker = objects.service("attacker", "10.96.99.99")
    victim, *slices = initial_objects(world)[3:]
    served = [*initial_objects(world)[:3], victim]
    api.store_deep(attacker, 9_990)
    fewer = objects.endpoint_slices("web", world.web[:1])
    for piece in fewer:
        api.apply(piece)
    await eventually(lambda: assert_right(node2, [*served, *fewer]))
    assert "default/attacker" in agent.log.read_text()
    assert await agent.kill() == -9
    again = await started(world, api)  # the initial list of a new agent contains it
    await again.ready()
    api.store_deep({**attacker, "metadata": {**attacker["metadata"], "annotations": {"changed": "yes"}}}, 9_990)
    for piece in slices:
        api.apply(piece)
    await eventually(lambda: assert_right(node2, [*served, *slices]))
    assert again.running


def _complains(agent: KrouteProcess) -> None:
    assert "does not answer" in agent.log.read_text()


def _uses(world: World, scheduler: str) -> None:
    table = world.cluster.node("node2").ipvs()
    assert {server.scheduler for server in table.values()} == {scheduler}
