"""Policies of the cluster, with packets: before those of namespaces, after them, and alone."""

import asyncio

import pytest

from tests.lab.deployment import Deployment
from tests.lab.objects import Object
from tests.lab.topology import WIRE, WIRE6
from tests.lab.world import FAMILIES, World
from tests.scenarios.test_network_policies import DENY_INGRESS, Policies, at, hangs, policies, reaches, served
from tests.unit.planning.policies.cluster import cluster_policy, every

__all__ = ["policies"]
pytestmark = [pytest.mark.each_firewall, pytest.mark.feed_in_turn(1)]

VISITOR, WEB = every(app="visitor"), every(app="web-1")
SINGLE: Object = {"tcp": {"destinationPort": {"number": 8080}}}
RANGE: Object = {"udp": {"destinationPort": {"range": {"start": 5000, "end": 5400}}}}


def admin(action: str, *peers: Object) -> Object:
    """A policy of the tier Admin about what enters web-1 from these."""
    return cluster_policy("admin", subject=WEB, ingress=[{"action": action, "from": list(peers)}])


BASELINE = cluster_policy(
    "baseline", tier="Baseline", subject=WEB, ingress=[{"action": "Deny", "from": [{"namespaces": {}}]}]
)


async def test_tiers_decide_in_their_order_by_address_and_by_service(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, other, _ = world.web
    addresses = served(deployment, 20, web)
    node1 = world.cluster.node("node1")
    await policies.start()
    steps: list[tuple[list[Object], bool, bool]] = [
        ([admin("Deny", VISITOR)], False, True),
        ([admin("Accept", VISITOR), DENY_INGRESS], True, False),
        ([admin("Pass", VISITOR)], False, False),
    ]
    for items, visitor_may, other_may in steps:
        await policies.apply(*items)
        for family in FAMILIES:
            for place in (family.of(web), at(addresses, family)):
                await asyncio.gather(
                    (reaches if visitor_may else hangs)(world.visitor, place),
                    (reaches if other_may else hangs)(other, place),
                )
            await reaches(node1, family.of(web))
    await policies.delete(DENY_INGRESS)
    for family in FAMILIES:
        await reaches(world.visitor, family.of(web))
    await policies.apply(BASELINE)
    for family in FAMILIES:
        await asyncio.gather(hangs(world.visitor, family.of(web)), hangs(other, at(addresses, family)))
        await reaches(node1, family.of(web))
    await policies.apply(admin("Accept", VISITOR))
    for family in FAMILIES:
        await asyncio.gather(reaches(world.visitor, family.of(web)), hangs(other, family.of(web)))


async def test_a_pod_that_calls_itself_by_its_service_is_judged_by_policies_of_the_cluster_alone(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    web, _, _ = world.web
    addresses = served(deployment, 20, web)
    await policies.start()
    await policies.apply(DENY_INGRESS, admin("Pass", WEB))
    for family in FAMILIES:
        await reaches(web, at(addresses, family))
    await policies.apply(admin("Deny", WEB))
    for family in FAMILIES:
        await hangs(web, at(addresses, family))


async def test_a_pod_calls_the_pods_and_ports_that_the_first_rule_about_them_accepts(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    """A pod within a network that another rule denies, and the other way round."""
    web, other, _ = world.web
    far = served(deployment, 21, other)
    await policies.start()
    everywhere: Object = {"networks": ["0.0.0.0/0", "::/0"]}
    to_other = [
        {"action": "Deny", "to": [every(app="web-2")], "protocols": [RANGE]},
        {"action": "Accept", "to": [every(app="web-2")]},
        {"action": "Deny", "to": [everywhere]},
    ]
    await policies.apply(cluster_policy("out", subject=VISITOR, egress=to_other))
    for family in FAMILIES:
        await asyncio.gather(
            *(hangs(world.visitor, place, 5353, "udp") for place in (family.of(other), at(far, family))),
            *(reaches(world.visitor, place) for place in (family.of(other), at(far, family))),
            hangs(world.visitor, family.of(web)),
        )
    of_wire: Object = {"networks": [WIRE, WIRE6]}
    but_other = [
        {"action": "Accept", "to": [of_wire]},
        {"action": "Deny", "to": [every(app="web-2")], "protocols": [SINGLE]},
        {"action": "Accept", "to": [everywhere]},
    ]
    await policies.apply(cluster_policy("out", subject=VISITOR, egress=but_other))
    for family in FAMILIES:
        await asyncio.gather(
            *(hangs(world.visitor, place) for place in (family.of(other), at(far, family))),
            reaches(world.visitor, family.of(other), 5353, "udp"),
            reaches(world.visitor, family.of(web)),
        )
