"""`kroute explain` says what network policies do to a packet, and `kroute show policies` what they have refused."""

from typing import Any, NamedTuple

import pytest

from tests.lab.answers import ask_json
from tests.lab.deployment import Deployment
from tests.lab.hosts import Host
from tests.lab.objects import Object
from tests.lab.world import FAMILIES, Family, World
from tests.scenarios.test_network_policies import Policies, at, hangs, policies, reaches, served
from tests.scenarios.test_observation import scraped
from tests.unit.planning.policies.cluster import egress, ingress, pods_with, policy

__all__ = ["policies"]
pytestmark = pytest.mark.each_firewall

TO_WEB: Object = {"selector": {"matchLabels": {"app": "web-1"}}}
OF_VISITOR: Object = {"selector": {"matchLabels": {"app": "visitor"}}}
POLICIES = [
    policy("deny", policyTypes=["Ingress"], **TO_WEB),
    ingress(pods_with(app="visitor"), ports=[{"port": "web"}], name="visitors", **TO_WEB),
    egress(pods_with(app="web-1"), name="only-web-1", **OF_VISITOR),
]
DENIED, VISITORS, ONLY_WEB = "shop/deny", "shop/visitors ingress[0]", "shop/only-web-1 egress[0]"


class Case(NamedTuple):
    """A call, as node1 judges it. `said` has for each end that is a pod the first rule that allows it, the first policy
    that refuses it, what exempts it, or the node that decides.
    """

    caller: Host
    address: str
    port: int
    by: str
    passes: bool
    said: list[str]


def cases(world: World, near: tuple[str, str], far: tuple[str, str], family: Family) -> list[Case]:
    web, other, _ = world.web
    node1, visitor = world.cluster.node("node1"), world.visitor
    itself, nobody = "a pod reaches itself", "nobody"
    return [
        Case(visitor, family.of(web), 8080, "http", True, [ONLY_WEB, VISITORS]),
        Case(visitor, at(near, family), 8080, "http", True, [ONLY_WEB, VISITORS]),
        Case(visitor, family.of(web), 5353, "udp", False, [ONLY_WEB, DENIED]),
        Case(visitor, at(near, family), 5353, "udp", False, [ONLY_WEB, DENIED]),
        Case(visitor, family.of(other), 8080, "http", False, ["shop/only-web-1", "node2"]),
        Case(visitor, at(far, family), 8080, "http", False, ["shop/only-web-1", "node2"]),
        Case(other, family.of(web), 8080, "http", False, ["node2", DENIED]),
        Case(node1, family.of(web), 8080, "http", True, ["the node reaches its own pods"]),
        Case(node1, at(near, family), 8080, "http", True, ["the node reaches its own pods"]),
        Case(web, at(near, family), 8080, "http", True, [itself, itself]),
        Case(web, family.of(other), 8080, "http", True, [nobody, "node2"]),
    ]


async def test_what_explain_says_of_policies_is_what_becomes_of_a_real_call(
    world: World, deployment: Deployment, policies: Policies
) -> None:
    node1 = world.cluster.node("node1")
    near, far = served(deployment, 20, world.web[0]), served(deployment, 21, world.web[1])
    await policies.start()
    await policies.apply(*POLICIES)
    for family in FAMILIES:
        for case in cases(world, near, far, family):
            before = await refused(world)
            await (reaches if case.passes else hangs)(case.caller, case.address, case.port, case.by)
            assert case.passes or await refused(world) > before, case
            host = f"[{case.address}]" if ":" in case.address else case.address
            protocol = {"http": "tcp", "udp": "udp"}[case.by]
            source = family.of(case.caller) if case.caller is node1 else f"pod/shop/{case.caller.name}"
            code, found = await ask_json(node1, "explain", f"{host}:{case.port}/{protocol}", "--from", source)
            [verdict] = found["items"][0]["verdicts"]
            assert (code == 0, verdict["fate"] == "dropped") == (case.passes, not case.passes), (case, found)
            [judgement] = verdict["judgements"]
            assert [said(ruling) for ruling in judgement["rulings"]] == case.said, (case, found)
    counted = scraped(node1)
    assert counted["kroute_policy_isolated_pods",] == len({"web-1", "visitor", "the watchman"})
    for labels in (("Ingress", "shop", "deny,visitors"), ("Egress", "shop", "only-web-1")):
        assert counted["kroute_policy_refused_packets_total", *labels] > 0


def said(ruling: dict[str, Any]) -> str:
    if not ruling["isHere"]:
        return str(ruling["node"])
    return str(ruling["exempt"] or next(iter([*ruling["allowedBy"], *ruling["isolatedBy"]]), "nobody"))


async def refused(world: World) -> int:
    """The packets that node1 has refused so far."""
    code, found = await ask_json(world.cluster.node("node1"), "show", "policies")
    assert code == 0
    assert {pod["pod"] for group in found["items"] for pod in group["pods"]} >= {"shop/web-1", "shop/visitor"}
    return sum(group["refusedPackets"] for group in found["items"])


async def test_pods_are_explained_by_their_names(world: World, policies: Policies) -> None:
    node1 = world.cluster.node("node1")
    await policies.start("node1")
    await policies.apply(*POLICIES)
    code, found = await ask_json(node1, "explain", "pod/shop/web-1:8080", "--from", "shop/visitor")
    assert code == 0
    assert {item["address"] for item in found["items"]} == {world.web[0].ip, world.web[0].ip6}
    assert (await ask_json(node1, "explain", "pod/shop/web-1:8081", "--from", "shop/visitor"))[0] == 3
    assert (await ask_json(node1, "explain", "pod/shop/nobody:8080"))[0] == 4
