"""The tables of network policies on a real kernel: written by changes, read back after a restart, and repaired."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kroute.firewall.nftables.names import POLICY_TABLES
from kroute.firewall.nftables.policy_rules import MAPS, Group
from kroute.firewall.nftables.policy_tables import MANY, PolicyTables
from kroute.kernel.nftables.client import Nftables
from kroute.kernel.nftables.objects import AddElements, DeleteElements, NftChange, Table
from kroute.model.addresses import Family
from kroute.model.policy_plan import Direction, PolicyChange
from kroute.reconcile.cleanup_report import CleanupReport
from tests.kernel.nodes import RealNode, run
from tests.unit.planning.policies.cluster import (
    Cluster,
    block,
    egress,
    ingress,
    namespace,
    pod,
    pods_with,
    policy,
    port,
)

pytestmark = pytest.mark.nftables

T4 = POLICY_TABLES[Family.IPV4]
WEB = pod("web", "10.244.1.5", "fd00:244:1::5", ports=[port("http", 8080)], app="web")
CLIENT = pod("client", "10.244.2.7", "fd00:244:2::7", on="node2", app="client")
OTHER = pod("other", "10.244.2.8", "fd00:244:2::8", on="node2", app="client")
SHOP = namespace("shop")
DENY = policy("deny", policyTypes=["Ingress", "Egress"])
RANGE = [{"port": 8000, "endPort": 8100}, {"protocol": "UDP", "port": 53}]
STORY = [
    (DENY,),
    (ingress(pods_with(app="client"), ports=[{"port": "http"}], name="clients"), CLIENT),
    (OTHER,),
    (ingress(block("10.0.0.0/8", "10.244.2.0/24"), block("fd00::/16"), ports=RANGE, name="blocks"),),
    (egress(pods_with(app="client"), block("0.0.0.0/0"), name="out"),),
    (ingress(block("10.0.0.0/8"), name="blocks"),),
]
"""What is applied, one after another."""


class Recorder(Nftables):
    """Keeps what was written in transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[NftChange] = []

    async def transact(self, table: Table, changes: Sequence[NftChange], *, generation: int = 0) -> list[Any]:
        self.changes += changes
        return await super().transact(table, changes, generation=generation)


async def write(tables: PolicyTables, change: PolicyChange | None) -> None:
    if change is not None:
        await tables.write(change)


async def is_right(cluster: Cluster, client: Nftables) -> None:
    """A restart finds nothing wrong, and writes nothing."""
    async with Nftables() as other:
        before = await other.foreign_generation()
        assert await PolicyTables(client).restore(cluster.catalog.groups(), cluster.catalog.pods) == []
        assert await other.foreign_generation() == before


async def test_what_changes_have_written_is_what_a_restart_would_write(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB)
    tables = PolicyTables(node.nftables)
    for items in STORY:
        await write(tables, cluster.after(*items))
        await is_right(cluster, node.nftables)
    for items in [(), *STORY[:0:-1]]:
        cluster.delete(*items)
        await write(tables, cluster.plan())
        await is_right(cluster, node.nftables)
    cluster.delete(DENY)
    await write(tables, cluster.plan())
    assert await node.nftables.tables() == []


async def test_a_new_peer_is_one_element_and_a_pod_that_leaves_is_one(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB, CLIENT, *STORY[1])
    async with Recorder() as recorder:
        tables = PolicyTables(recorder)
        await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
        recorder.changes.clear()
        await write(tables, cluster.after(OTHER))
        assert [one.elements for one in recorder.changes if isinstance(one, AddElements)] == [
            (("10.244.2.8", 6, 8080),),
            (("fd00:244:2::8", 6, 8080),),
        ]
        cluster.delete(OTHER)
        await write(tables, cluster.plan())
        assert [type(one) for one in recorder.changes] == [AddElements, AddElements, DeleteElements, DeleteElements]


async def test_a_set_that_many_ranges_leave_is_made_anew_and_keeps_the_others(node: RealNode) -> None:
    """To delete them one by one took the kernel 47 s for 50,000."""
    peers = [pod(f"c{it}", f"10.244.3.{it}", on="node2", app="client") for it in range(1, 1 + MANY)]
    cluster = Cluster(SHOP, WEB, CLIENT, *peers, ingress(pods_with(app="client"), ports=RANGE))
    async with Recorder() as recorder:
        tables = PolicyTables(recorder)
        await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
        recorder.changes.clear()
        cluster.delete(*peers)
        await write(tables, cluster.after(OTHER))
        ranges = [str(one).split(" set ")[0] for one in recorder.changes if "-ranges" in str(one)]
        assert ranges == ["delete", "add", "add 2 elements to", "add fd00:244:2::8/128,TCP,8000,8100 to"]
        await is_right(cluster, node.nftables)


async def test_without_policies_nothing_is_made(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB)
    assert await PolicyTables(node.nftables).restore(cluster.catalog.groups(), cluster.catalog.pods) == []
    assert await node.nftables.tables() == []


GROUP = "$(nft list map ip kroute-policies ingress | grep -o 'ingress-[0-9a-f]*' | head -n 1)"
DAMAGES = {
    "all is gone": "nft flush ruleset",
    "one table is gone": "nft delete table ip6 kroute-policies",
    "no rules": "nft flush table ip kroute-policies",
    "a rule of a group is gone": "nft flush chain ip kroute-policies $g",
    "a rule is added": "nft insert rule ip kroute-policies postrouting accept",
    "a pod is gone": "nft flush map ip kroute-policies ingress",
    "a pod is added": "nft add element ip kroute-policies ingress { 10.9.9.9 : jump $g }",
    "a peer is gone": "nft flush set ip kroute-policies $g-ports",
    "a peer is added": "nft add element ip kroute-policies $g-networks { 10.9.9.9 }",
    "a chain is added": "nft add chain ip kroute-policies mine; nft add rule ip kroute-policies mine drop",
    "a set is added": "nft add set ip kroute-policies mine '{ type ipv4_addr; }'",
    "a group is gone": (
        "nft flush map ip kroute-policies ingress; nft flush chain ip kroute-policies $g;"
        " nft delete chain ip kroute-policies $g; nft delete set ip kroute-policies $g-ports"
    ),
    "it is dormant": "nft add table ip kroute-policies '{ flags dormant; }'",
    "a set is of another kind": (
        "nft flush chain ip kroute-policies $g; nft delete set ip kroute-policies $g-networks;"
        " nft add set ip kroute-policies $g-networks '{ type inet_service; }'"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
async def test_what_others_change_is_put_right(node: RealNode, damage: str) -> None:
    cluster = Cluster(SHOP, WEB, CLIENT, *(item for items in STORY[:-1] for item in items))
    tables = PolicyTables(node.nftables)
    await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
    run("sh -e", f"g={GROUP}\n{damage}")
    assert await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
    await is_right(cluster, node.nftables)


async def test_the_damage_of_a_change_is_found_and_the_next_restore_makes_the_change(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB, CLIENT, *STORY[1])
    tables = PolicyTables(node.nftables)
    await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
    run("nft delete table ip kroute-policies")
    with pytest.raises(Exception, match="No such file"):
        await write(tables, cluster.after(OTHER))
    await tables.restore(cluster.catalog.groups(), cluster.catalog.pods)
    await is_right(cluster, node.nftables)


async def test_names_are_those_of_the_groups_and_comments_name_the_policies(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB, DENY)
    await PolicyTables(node.nftables).restore(cluster.catalog.groups(), cluster.catalog.pods)
    groups = cluster.catalog.pods["10.244.1.5"]
    assert groups.ingress is not None
    chain = Group.of(groups.ingress).chain
    led = [element async for part in node.nftables.elements(T4, MAPS[Direction.INGRESS]) for element in part]
    assert led == [("10.244.1.5", chain)]
    listed = json.loads(run(f"nft -j list chain ip kroute-policies {chain}"))["nftables"]
    assert listed[-1]["rule"]["comment"] == "isolated by shop: deny"


async def test_a_cleanup_removes_the_tables_alone(node: RealNode) -> None:
    cluster = Cluster(SHOP, WEB, DENY)
    run("nft add table ip kroute")
    await PolicyTables(node.nftables).restore(cluster.catalog.groups(), cluster.catalog.pods)
    report = CleanupReport()
    await PolicyTables(node.nftables).remove(report)
    assert (report.undone, report.failed) == (
        ["delete table ip kroute-policies", "delete table ip6 kroute-policies"],
        [],
    )
    assert await node.nftables.tables() == [("ip", "kroute")]
