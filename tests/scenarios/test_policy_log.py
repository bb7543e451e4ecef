"""Packets that network policies refuse are logged with names, and `kroute policy watch` shows them."""

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple

import pytest

from kroute.kernel.netlink.message import NFNETLINK_HEADER, attribute, message
from kroute.kernel.netlink.netlink_socket import NETLINK_NETFILTER
from kroute.kernel.packet_log import NFNL_SUBSYS_ULOG, NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND, NFULNL_MSG_CONFIG
from tests.lab import policy_state
from tests.lab.cluster import Node
from tests.lab.deployment import Deployment, eventually
from tests.lab.kroute_process import KrouteProcess
from tests.lab.objects import Object
from tests.lab.world import FAMILIES, World
from tests.scenarios.test_network_policies import DENY_INGRESS, SETTINGS, Policies, hangs, policies, reaches
from tests.unit.planning.policies.cluster import egress, ingress, pods_with

__all__ = ["policies"]
pytestmark = pytest.mark.each_firewall

LOG = ("--policy-log",)
GROUP = 10247
"""The default of `--policy-log-group`."""
MANY = 10_000
TO_WEB: Object = {"selector": {"matchLabels": {"app": "web-1"}}}
OF_VISITOR: Object = {"selector": {"matchLabels": {"app": "visitor"}}}
POLICIES = [
    ingress(pods_with(app="visitor"), ports=[{"port": "web"}], name="visitors", **TO_WEB),
    egress(pods_with(app="web-1"), name="only-web-1", **OF_VISITOR),
]


class Refused(NamedTuple):
    """What is told of a packet."""

    direction: str
    protocol: str
    source: str
    source_pod: str
    destination: str
    destination_port: int
    destination_pod: str
    policies: tuple[str, ...]


def lines(process: KrouteProcess) -> Iterator[Object]:
    """The complete lines that a process has written in JSON."""
    whole, _, _ = process.log.read_text().rpartition("\n")
    return (json.loads(line) for line in whole.splitlines() if line.startswith("{"))


def logged(agent: KrouteProcess, event: str) -> list[Object]:
    return [line for line in lines(agent) if line.get("event") == event]


def told_by_log(agent: KrouteProcess) -> set[Refused]:
    return {told(line) for line in logged(agent, "policy.refused")}


def told_by_watch(watch: KrouteProcess) -> set[Refused]:
    names = {"source_pod": "sourcePod", "destination_port": "destinationPort", "destination_pod": "destinationPod"}
    items = (item for document in lines(watch) for item in document["items"])
    return {told({**item, **{ours: item[name] for ours, name in names.items()}}) for item in items}


def told(packet: Object) -> Refused:
    found = {name: packet.get(name) for name in Refused._fields}
    return Refused(**{**found, "policies": tuple(packet["policies"])})


async def logging_agent(deployment: Deployment, policies: Policies) -> KrouteProcess:
    """Start an agent on node1; returns it when it reads what the kernel logs."""
    await policies.start("node1", more=LOG)
    agent = deployment.agents["node1"]
    await eventually(partial(has_said, agent, "policy_log.opened"), within=30)
    return agent


async def test_a_refused_call_is_told_with_the_names_of_pods_and_policies_and_an_allowed_one_is_not(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, other, _ = world.web
    visitor, node1 = world.visitor, world.cluster.node("node1")
    agent = await logging_agent(deployment, policies)
    await policies.apply(*POLICIES)
    watch = await node1.kroute("policy", "watch", "-o", "json")
    filtered = await node1.kroute("policy", "watch", "--filter", "only-web-1")
    expected: set[Refused] = set()
    for family in FAMILIES:
        to_web, to_other = (family.of(web), 8080, "shop/web-1"), (family.of(other), 8080, "shop/web-2")
        await reaches(visitor, family.of(web))
        await hangs(other, family.of(web))
        await hangs(visitor, family.of(web), 5353, "udp")
        await hangs(visitor, family.of(other))
        expected |= {
            Refused("Ingress", "TCP", family.of(other), "shop/web-2", *to_web, ("visitors",)),
            Refused(
                *("Ingress", "UDP", family.of(visitor), "shop/visitor"),
                *(family.of(web), 5353, "shop/web-1", ("visitors",)),
            ),
            Refused("Egress", "TCP", family.of(visitor), "shop/visitor", *to_other, ("only-web-1",)),
        }

    def all_is_told() -> None:
        assert told_by_log(agent) == expected
        assert told_by_watch(watch) == expected
        assert filtered.log.read_text().count("egress refused, isolated by shop: only-web-1") >= len(FAMILIES)

    await eventually(all_is_told, within=30)
    assert "visitors" not in filtered.log.read_text()
    watch.signal(signal.SIGINT)
    assert await watch.wait() == 0, watch.tail()
    await deployment.stop()
    assert await filtered.wait() == 6, "no agent answers any more"


async def test_ten_thousand_refused_packets_cost_a_bounded_number_of_lines_and_are_all_counted(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, node1 = world.web[0], world.cluster.node("node1")
    agent = await logging_agent(deployment, policies)
    await policies.apply(DENY_INGRESS)
    with closing(world.visitor.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
        while policy_state.dropped(node1, "IPv4") < MANY:
            for _ in range(500):
                with suppress(BlockingIOError):
                    sender.sendto(b"?", (web.ip, 5353))
            await asyncio.sleep(0)
    await eventually(partial(accounts_for_all, agent, node1), within=60)
    assert 0 < len(logged(agent, "policy.refused")) < MANY / 10


def accounts_for_all(agent: KrouteProcess, node: Node) -> None:
    """Wait until lines and counts are as many as the packets that the kernel has dropped."""
    others = sum(line["packets"] for line in logged(agent, "policy.more_refused"))
    dropped = sum(policy_state.dropped(node, family.name) for family in FAMILIES)
    assert len(logged(agent, "policy.refused")) + others == dropped


async def test_without_the_setting_nothing_is_logged_and_a_watch_says_so(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, node1 = world.web[0], world.cluster.node("node1")
    await logging_agent(deployment, policies)
    await policies.apply(DENY_INGRESS)
    assert str(GROUP) in policy_state.written(node1)
    await deployment.stop()
    await deployment.start(*SETTINGS, nodes=("node1",))
    await eventually(partial(logs_nothing, node1))
    await hangs(world.visitor, web.ip)
    watch = await node1.kroute("policy", "watch")
    assert await watch.wait() == 6
    assert watch.log.read_text().count("\n") == 1
    assert "--policy-log" in watch.log.read_text()
    assert logged(deployment.agents["node1"], "policy.refused") == []


def logs_nothing(node: Node) -> None:
    found = policy_state.written(node)
    assert "isolated by shop: deny" in found
    assert str(GROUP) not in found


async def test_a_group_that_another_program_reads_is_read_as_soon_as_that_ends(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, node1 = world.web[0], world.cluster.node("node1")
    with closing(node1.namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)) as other:
        read_group(other)
        await policies.start("node1", more=LOG)
        agent = deployment.agents["node1"]
        await policies.apply(DENY_INGRESS)
        await eventually(partial(has_said, agent, "policy_log.unavailable"))
    await eventually(partial(has_said, agent, "policy_log.opened"), within=30)
    await hangs(world.visitor, web.ip)
    await eventually(partial(has_said, agent, "policy.refused"))


def has_said(agent: KrouteProcess, event: str) -> None:
    assert logged(agent, event)


def read_group(netlink: socket.socket) -> None:
    """Ask the kernel for the group's packets, as another program does."""
    netlink.bind((0, 0))
    bind = attribute(NFULA_CFG_CMD, bytes([NFULNL_CFG_CMD_BIND]))
    netlink.send(message(NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG, 0, NFNETLINK_HEADER.pack(0, 0, GROUP) + bind))
