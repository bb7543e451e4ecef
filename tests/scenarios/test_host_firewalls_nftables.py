"""With nf_tables, kroute cannot accept what another table drops: `kroute check` says so, and what to do about it."""

import re
from collections.abc import Iterator
from functools import partial

import pytest

from tests.lab.answers import ask_json
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.host_firewalls import docker
from tests.lab.world import Family, World, routed
from tests.scenarios.test_host_firewalls import INGRESS, apply_web, is_not_forwarded, ways

pytestmark = pytest.mark.nftables
NFTABLES = "--firewall=nftables"


@pytest.fixture
def node1(world: World, family: Family) -> Iterator[Node]:
    """The node with docker's rules. Request it before `deployment`, so that they are removed last."""
    node = world.cluster.node("node1")
    with routed(world.cluster.client, family.of(INGRESS), family.of(node)), docker(node, "nft"):
        yield node


async def advice(node: Node, deployment: Deployment) -> list[str]:
    """Return the commands that the check of the firewall gives, for both families."""
    _, report = await ask_json(node, "check", *deployment.source, "--node-name", node.name, NFTABLES)
    found = [it for it in report["items"] if it["check"] == "firewall" and it["level"] == "WARNING"]
    assert all("FORWARD" in it["message"] and "policy DROP" in it["message"] for it in found)
    return [command for it in found for command in re.findall(r"`(.*?)`", it["nextStep"])]


async def test_what_a_firewall_does_not_forward_is_named_and_the_advice_lets_the_answers_pass(
    world: World, node1: Node, deployment: Deployment, family: Family
) -> None:
    apply_web(deployment, world.web[2])
    await deployment.start(NFTABLES, nodes=("node1",))
    for way in ways(world, family).values():
        await way.is_dropped()
    commands = await advice(node1, deployment)
    assert len(commands) == 2
    for command in commands:
        node1.run(*command.split())
    assert await advice(node1, deployment) == []
    for way in ways(world, family).values():
        await eventually(partial(way.is_served_by, {"web-3"}))
    await is_not_forwarded(world, family)
