"""With nf_tables, kroute cannot accept what another table drops: `kroute check` and the page say what to do."""

import re
from collections.abc import Iterator
from functools import partial

import pytest

from tests.lab.answers import ask_json
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.host_firewalls import docker, firewalld
from tests.lab.topology import POD_RANGE, POD_RANGE6
from tests.lab.world import FAMILIES, World, routed
from tests.scenarios.test_host_firewalls import (
    INGRESS,
    LOST,
    Way,
    all_are_dropped,
    all_are_served_by,
    apply_web,
    is_not_forwarded,
    ways,
)
from tests.unit.documented_commands import ROOT, commands_of_page

pytestmark = pytest.mark.nftables
NFTABLES = "--firewall=nftables"


@pytest.fixture
def node1(world: World) -> Iterator[Node]:
    """The node with docker's rules. Request it before `deployment`, so that they are removed last."""
    node = world.cluster.node("node1")
    with routed(world.cluster.client, INGRESS, node), docker(node, "nft"):
        yield node


async def advice(node: Node, deployment: Deployment) -> list[str]:
    """Return the commands that the check of the firewall gives, for both families."""
    _, report = await ask_json(node, "check", *deployment.source, "--node-name", node.name, NFTABLES)
    found = [it for it in report["items"] if it["check"] == "firewall" and it["level"] == "WARNING"]
    assert all("FORWARD" in it["message"] and "policy DROP" in it["message"] for it in found)
    return [command for it in found for command in re.findall(r"`(.*?)`", it["nextStep"])]


async def test_what_a_firewall_does_not_forward_is_named_and_the_advice_lets_the_answers_pass(
    world: World, node1: Node, deployment: Deployment
) -> None:
    apply_web(deployment, world.web[2])
    await deployment.start(NFTABLES, nodes=("node1",))
    await all_are_dropped(ways(world))
    commands = await advice(node1, deployment)
    assert len(commands) == 2
    for command in commands:
        node1.run(*command.split())
    assert await advice(node1, deployment) == []
    await eventually(partial(all_are_served_by, ways(world), {"web-3"}))
    await is_not_forwarded(world)


def commands_for_firewalld(world: World) -> list[tuple[str, ...]]:
    """The calls of firewall-cmd on the page, with the lab's addresses of both families in place of the examples."""
    nodes = [address for node in world.nodes for address in (node.ip, node.ip6)]
    values = {
        "=10.244.0.0/16": [f"={POD_RANGE}", f"={POD_RANGE6}"],
        "=192.168.123.0/24": [f"={address}" for address in nodes],
        'ipv4" destination address="203.0.113.0/24"': [
            f'ipv{6 if ":" in address else 4}" destination address="{address}"' for address in INGRESS
        ],
    }
    commands = []
    for command in commands_of_page(ROOT / "docs/troubleshooting.md"):
        if command.words[0] == "firewall-cmd" and command.is_whole:
            [*examples] = [example for example in values if example in " ".join(command.words)]
            for example in examples:
                commands += [tuple(word.replace(example, value) for word in command.words) for value in values[example]]
            commands += [] if examples else [command.words]
    assert len(commands) > len(values)
    return commands


async def test_firewalld_rejects_services_until_it_is_told_what_the_page_says(
    world: World, deployment: Deployment
) -> None:
    """node2 masquerades the last way of each family, and node1 forwards it to its pod."""
    node1, node2 = world.nodes[:2]
    apply_web(deployment, world.web[0])
    by_node2 = [Way(world.cluster.client, family.of(node2), is_node_port=True) for family in FAMILIES]
    every_way = [*ways(world), *by_node2]
    with routed(world.cluster.client, INGRESS, node1), firewalld(node1, []):
        await deployment.start(NFTABLES, nodes=("node1", "node2"))
        for way in every_way:
            with pytest.raises(OSError):
                await way.caller.http(way.address, 30080 if way.is_node_port else 80, timeout=LOST)
    with routed(world.cluster.client, INGRESS, node1):
        with firewalld(node1, commands_for_firewalld(world)):
            await all_are_served_by(every_way, {"web-1"})
        without_nodes = [words for words in commands_for_firewalld(world) if not is_of_a_node(words, world)]
        with firewalld(node1, without_nodes):
            for way in by_node2:
                with pytest.raises(OSError):
                    await way.caller.http(way.address, 30080, timeout=LOST)


def is_of_a_node(words: tuple[str, ...], world: World) -> bool:
    return words[-1].partition("=")[2] in {address for node in world.nodes for address in (node.ip, node.ip6)}
