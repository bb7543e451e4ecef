"""`kroute plan` predicts an agent's changes correctly, and changes nothing."""

import pytest

from tests.lab.answers import ask_json
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment
from tests.lab.objects import endpoint_slices, service
from tests.lab.world import FAMILIES, World
from tests.scenarios.test_s16_drift import (
    Damage,
    address_deleted,
    destination_deleted,
    link_deleted,
    route_deleted,
    rules_flushed,
    sets_flushed,
    virtual_server_deleted,
)

CLUSTER_IPS = tuple(family.service_ip for family in FAMILIES)


def weight_changed(node: Node, _: object) -> None:
    real_server = next(iter(node.ipvs()[f"TCP {CLUSTER_IPS[0]}:8080"].real_servers))
    node.run("ipvsadm", "-e", "-t", f"{CLUSTER_IPS[0]}:8080", "-r", real_server, "-m", "-w", "7")


def sysctl_changed(node: Node, _: object) -> None:
    node.sysctl("net.ipv4.vs.expire_nodest_conn", 0)


async def planned(node: Node, source: tuple[str, ...]) -> tuple[int, list[tuple[str, str, str]]]:
    """Return the exit code of `kroute plan`, and service, kind and action of each change. No object is foreign."""
    before = node.snapshot()
    code, said = await ask_json(node, "plan", *source, "--node-name", node.name)
    changed = before.diff(node.snapshot())
    assert not changed, changed
    return code, [(it["service"], it["kind"], it["action"]) for it in said["items"]]


async def test_on_a_node_that_is_right_nothing_changes_with_or_without_an_agent(
    world: World, deployment: Deployment
) -> None:
    node1 = world.cluster.node("node1")
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    assert await planned(node1, deployment.source) == (0, [])
    await deployment.stop()
    assert await planned(node1, deployment.source) == (0, [])


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("damage", "change"),
    [
        (address_deleted, ("default/web", "address", "add")),
        (route_deleted, ("default/web", "route", "edit")),
        (destination_deleted, ("default/web", "real server", "add")),
        (weight_changed, ("default/web", "real server", "edit")),
        (virtual_server_deleted, ("default/web", "virtual server", "add")),
        (sets_flushed, ("default/web", "set entry", "add")),
        (rules_flushed, ("", "rules", "edit")),
        (sysctl_changed, ("", "sysctl", "edit")),
        (link_deleted, ("", "link", "add")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_drift_is_planned_to_be_repaired_and_then_is(
    damage: Damage, change: tuple[str, str, str], world: World, deployment: Deployment
) -> None:
    node1 = world.cluster.node("node1")
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    await deployment.stop()
    damage(node1, FAMILIES[0])
    code, changes = await planned(node1, deployment.source)
    assert code == 5
    assert change in changes
    await deployment.start(nodes=("node1",))
    assert await planned(node1, deployment.source) == (0, [])


async def test_a_change_of_the_manifests_and_of_a_setting_is_planned(world: World, deployment: Deployment) -> None:
    node1 = world.cluster.node("node1")
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    await deployment.start(nodes=("node1",))
    code, said = await ask_json(node1, "plan", "--scheduler", "wlc")
    assert code == 5
    assert {it["what"] for it in said["items"]} == {
        f"edit virtual server TCP {CLUSTER_IPS[0]}:8080 (scheduler wlc)",
        f"edit virtual server TCP [{CLUSTER_IPS[1]}]:8080 (scheduler wlc)",
    }
    await deployment.stop()
    deployment.apply(*endpoint_slices("web", world.web[1:]))
    _, changes = await planned(node1, deployment.source)
    assert set(changes) == {
        ("default/web", "real server", "edit"),  # it drains
        ("", "set entry", "delete"),
    }


async def test_on_a_node_without_kroute_everything_would_be_made(world: World, deployment: Deployment) -> None:
    deployment.apply(service("web", *CLUSTER_IPS), *endpoint_slices("web", world.web))
    code, changes = await planned(world.cluster.node("node2"), deployment.source)
    assert code == 5
    assert {action for _, kind, action in changes if kind not in {"rules", "sysctl", "route"}} == {"add"}
    assert ("", "link", "add") in changes
