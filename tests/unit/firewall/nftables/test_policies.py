"""Groups of policies of the cluster in nf_tables: their rules, their elements, and the writes, on a fake kernel."""

from collections.abc import Callable
from typing import Any

import pytest

from kroute.firewall.nftables import policy_tables
from kroute.firewall.nftables.policy_rules import (
    LOGGED,
    MAPS,
    NEXT_MAPS,
    NEXT_OWN,
    OWN,
    Group,
    GroupSets,
    group_rules,
    pod_elements,
)
from kroute.firewall.nftables.policy_tables import PolicyTables
from kroute.kernel.nftables.expressions import chain_named_by
from kroute.kernel.nftables.objects import AddChain, AddElements
from kroute.model.addresses import Family
from kroute.model.objects import ObjectKey
from kroute.model.policy_plan import Action, Direction, GroupKey, Part, PodGroups, Tier
from tests.fakes.kernel import FakeKernel
from tests.fakes.nftables import FakeNftables
from tests.unit.planning.policies.cluster import Cluster, ingress, namespace, pod, pods_with, policy, port, tiers

IN, OUT = Direction.INGRESS, Direction.EGRESS
INGRESS, EGRESS = GroupKey(IN, (ObjectKey("shop", "clients"),)), GroupKey(OUT, (ObjectKey("shop", "out"),))
OF_PODS = Part(of_pods=True, action=Action.ACCEPT), Part(of_pods=True, action=Action.DENY)
OF_NETWORKS = (Part(of_pods=False, action=Action.PASS),)
ADMIN = GroupKey(OUT, (ObjectKey("", "first"),), (), Tier.ADMIN, (*OF_PODS, *OF_NETWORKS))
BASELINE = GroupKey(IN, (ObjectKey("", "last"),), (), Tier.BASELINE, OF_PODS)
WEB = pod("web", "10.244.1.5", "fd00:244:1::5", ports=[port("http", 8080)], app="web")
CLIENT = pod("client", "10.244.2.7", "fd00:244:2::7", on="node2", app="client")
ADDRESS = "10.244.1.5"


def test_parts_of_pods_are_asked_before_those_of_networks_and_single_ports_before_all_ports() -> None:
    rules = group_rules(Family.IPV4, Group.of(ADMIN))
    accept, deny, leave = "Accept: pods", "denied by the tier Admin: first", "Pass: networks"
    assert [rule.comment for rule in rules] == [
        *(accept, accept, deny, deny, accept, deny),
        *(leave, leave, leave, "not decided by this tier"),
    ]
    led = [[target for it in rule.expressions if (target := chain_named_by(it))] for rule in rules]
    assert led == [[]] * 6 + [["egress-next"]] * 4
    assert [rule.comment for rule in group_rules(Family.IPV4, Group.of(BASELINE))] == [
        *("Accept: pods", "Accept: pods", *["denied by the tier Baseline: last"] * 2),
        *("Accept: pods", "denied by the tier Baseline: last"),
    ]


def test_what_is_denied_is_logged_at_first() -> None:
    comments = [rule.comment for rule in group_rules(Family.IPV4, Group.of(ADMIN), 10247)]
    denied = "denied by the tier Admin: first"
    assert [comments[at - 1 : at + 1] for at, one in enumerate(comments) if one == denied] == [[LOGGED, denied]] * 3
    assert comments.count(LOGGED) == 3


def test_each_part_has_sets_of_its_own_and_a_group_of_networkpolicies_those_that_it_had() -> None:
    sets = [one.name for key in ADMIN.of_parts() for one in GroupSets.of(key).all]
    assert len({*sets}) == 9
    chain = Group.of(INGRESS).chain
    assert [one.name for one in GroupSets.of(INGRESS).all] == [
        f"{chain}-{what}" for what in ("networks", "ports", "ranges")
    ]


def test_an_address_is_led_to_its_first_group_and_from_there_to_the_next_one() -> None:
    def led(groups: PodGroups | None) -> dict[object, object]:
        return dict(pod_elements(ADDRESS, groups))

    chains = {key: Group.of(key).chain for key in (INGRESS, EGRESS, ADMIN, BASELINE)}
    assert led(None) == {}
    assert led(PodGroups(INGRESS, None)) == {OWN: (ADDRESS, ADDRESS), MAPS[IN]: (ADDRESS, chains[INGRESS])}
    assert led(PodGroups(None, EGRESS, admin_egress=ADMIN)) == {
        MAPS[OUT]: (ADDRESS, chains[ADMIN]),
        NEXT_MAPS[OUT]: (ADDRESS, chains[EGRESS]),
        NEXT_OWN[OUT]: (ADDRESS, ADDRESS),
    }
    assert led(PodGroups(INGRESS, None, admin_egress=ADMIN)) == {
        MAPS[IN]: (ADDRESS, "ingress-next"),
        NEXT_MAPS[IN]: (ADDRESS, chains[INGRESS]),
        NEXT_OWN[IN]: (ADDRESS, ADDRESS),
        MAPS[OUT]: (ADDRESS, chains[ADMIN]),
    }
    assert led(PodGroups(BASELINE, None)) == {
        MAPS[IN]: (ADDRESS, "ingress-next"),
        NEXT_MAPS[IN]: (ADDRESS, chains[BASELINE]),
    }


async def test_what_changes_write_is_what_a_restart_would_write() -> None:
    made = Cluster(namespace("shop"), WEB, CLIENT)
    async with FakeNftables(FakeKernel()) as nftables:
        tables = PolicyTables(nftables)
        await tables.restore(made.catalog.groups(), made.catalog.pods)
        for step in (policy("deny"), *tiers(), ingress(pods_with(app="client"), name="clients"), *tiers()):
            await tables.write(made.after(step))
            assert await PolicyTables(nftables).restore(made.catalog.groups(), made.catalog.pods) == []
        made.delete(*tiers())
        change = made.plan()
        assert change is not None
        await tables.write(change)
        assert await PolicyTables(nftables).restore(made.catalog.groups(), made.catalog.pods) == []


async def test_sets_of_new_groups_are_filled_some_after_others_before_any_pod_is_led_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy_tables, "AT_ONCE", 1)
    other = pod("other", "10.244.1.6", app="other")
    rules = [{"ports": [{"port": number}], "from": [pods_with(app="client")]} for number in (80, 90)]
    ours, second = (policy(app, selector={"matchLabels": {"app": app}}, ingress=rules) for app in ("web", "other"))
    made = Cluster(namespace("shop"), WEB, other, CLIENT, ours, second)
    async with FakeNftables(kernel := FakeKernel()) as nftables:
        await PolicyTables(nftables).restore(made.catalog.groups(), made.catalog.pods)
        assert await PolicyTables(nftables).restore(made.catalog.groups(), made.catalog.pods) == []

    def at(kind: type, of: Callable[[Any], bool]) -> list[int]:
        return [number for number, one in enumerate(kernel.writes) if isinstance(one, kind) and of(one)]

    made_at, filled_at = (
        at(AddChain, lambda one: "-" in one.chain.name),
        at(AddElements, lambda one: one.set.parts[-1] == "port"),
    )
    led_at = at(AddElements, lambda one: one.set in MAPS.values())
    assert len(filled_at) == 8
    assert filled_at[0] < made_at[-1]
    assert max(made_at + filled_at) < min(led_at)
