"""The controller of network policies: what it writes when, on a fake kernel that refuses what the real one does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from kroute.controllers.network_policy import NetworkPolicyController, Policies
from kroute.firewall.nftables.names import POLICY_TABLES
from kroute.firewall.nftables.policy_tables import PolicyTables
from kroute.kernel.nftables.objects import AddElements, DeleteTable
from kroute.model.addresses import Family
from kroute.model.kinds import POLICY_KINDS
from kroute.model.objects import Applied, Deleted, Listed, NetworkPolicy, ObjectKey
from kroute.model.plan import Problem
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.controller import Shared
from kroute.settings import Settings
from tests.fakes.kernel import FakeKernel
from tests.fakes.nftables import FakeNftables
from tests.unit.fake_node import Clock, FakeNode
from tests.unit.planning.policies.cluster import KINDS, NODE, Object, ingress, namespace, pod, pods_with
from tests.unit.watching import running

WEB = pod("web", "10.244.1.5", "fd00:244:1::5", app="web")
CLIENT = pod("client", "10.244.2.7", on="node2", app="client")
POLICY = ingress(pods_with(app="client"))
T4 = POLICY_TABLES[Family.IPV4]


class Node:
    """The controller on a fake kernel, whose nf_tables another program may write, too."""

    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.nftables, self.other = FakeNftables(self.kernel), FakeNftables(self.kernel)
        self.clock = Clock()
        self.broadcaster = Broadcaster()
        self.reported: list[tuple[str, str, list[str]]] = []
        shared = Shared(Settings(NODE), self.broadcaster, lambda *_: None, self.clock)
        self.controller = NetworkPolicyController(shared, self.policies(), PolicyTables(self.nftables))

    def policies(self) -> Policies:
        return Policies(PolicyCatalog(NODE), self.report)

    def report(self, key: ObjectKey, uid: str, problems: Sequence[Problem]) -> None:
        self.reported.append((str(key), uid, [problem.reason for problem in problems]))

    def apply(self, *items: Object) -> None:
        self.controller.take_changes([Applied(msgspec.convert(item, KINDS[item["kind"]])) for item in items])

    def list(self) -> None:
        self.controller.take_changes([Listed(kind.type) for kind in POLICY_KINDS])

    async def delete_table(self) -> None:
        assert await self.other.transact(T4, [DeleteTable()]) == []

    @property
    def peers(self) -> set[object]:
        """The networks of the only group, and None if there is no table."""
        table = self.kernel.nft.tables.get(T4)
        if table is None:
            return {None}
        return {one for name, found in table.sets.items() if name.endswith("-networks") for (one,) in found.elements}


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    async with made.nftables, made.other:
        yield made


async def adopted(node: Node) -> Node:
    node.apply(namespace("shop"), WEB, POLICY)
    node.list()
    await node.controller.step()
    return node


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.005)


async def test_nothing_is_written_before_all_objects_are_known(node: Node) -> None:
    await adopted(node)
    again = Node()
    again.nftables = node.other
    shared = Shared(Settings(NODE), again.broadcaster, lambda *_: None, again.clock)
    again.controller = NetworkPolicyController(shared, again.policies(), PolicyTables(node.other))
    async with running(again.controller.run()):
        again.broadcaster.publish([])
        again.apply(namespace("shop"), WEB)
        await settle()
        assert T4 in node.kernel.nft.tables
        again.list()
        await settle()
        assert T4 not in node.kernel.nft.tables


async def test_a_change_is_written_in_the_next_pass(node: Node) -> None:
    await adopted(node)
    node.apply(CLIENT)
    await node.controller.step()
    assert node.peers == {"10.244.2.7/32"}
    assert node.controller.statistics().repairs == 0


async def test_a_change_that_is_refused_is_made_by_the_next_pass_which_reads_everything(node: Node) -> None:
    await adopted(node)
    await node.delete_table()
    node.apply(CLIENT)
    await node.controller.step()
    assert node.controller.statistics().failures == 1
    assert node.peers == {None}
    node.clock.now += 60
    await node.controller.step()
    assert node.peers == {"10.244.2.7/32"}


async def test_what_others_change_is_found_by_a_look_and_put_right(node: Node) -> None:
    await adopted(node)
    node.clock.now += 60
    await node.controller.step()
    assert node.controller.statistics().looks == 1
    await node.delete_table()
    node.clock.now += 60
    await node.controller.step()
    assert node.peers == set()
    assert node.controller.statistics().repairs == 1


async def test_what_others_change_is_put_right_at_once_where_the_kernel_says_so(node: Node) -> None:
    node.broadcaster.publish([])
    node.apply(namespace("shop"), WEB, POLICY)
    node.list()
    async with running(node.controller.run()):
        await settle()
        await node.delete_table()
        await settle()
        assert T4 in node.kernel.nft.tables


async def test_a_kernel_without_ipv6_isolates_over_ipv4(node: Node) -> None:
    node.kernel.nft.lacking.add("ip6")
    await adopted(node)
    node.apply(CLIENT)
    await node.controller.step()
    assert node.peers == {"10.244.2.7/32"}
    assert node.controller.statistics().failures == 0


async def test_a_kernel_that_cannot_log_isolates_all_the_same(node: Node) -> None:
    node.kernel.nft.lacking.add("log")
    node.controller.firewall = PolicyTables(node.nftables, 10247)
    with capture_logs() as logs:
        await adopted(node)
        assert node.peers == {None}
        node.clock.now += 60
        await node.controller.step()
    assert node.peers == set()
    [said] = [it for it in logs if it["event"] == "policy_log.unsupported"]
    assert "nft_log" in said["next_step"]


async def test_an_element_that_is_refused_keeps_no_other_group_waiting(node: Node) -> None:
    second = pod("db", "10.244.1.6", app="db")
    of_web, of_db = {"matchLabels": {"app": "web"}}, {"matchLabels": {"app": "db"}}
    node.apply(second, ingress(pods_with(app="client"), selector=of_db, name="db"))
    node.apply(namespace("shop"), WEB, ingress(pods_with(app="client"), selector=of_web))
    node.list()
    await node.controller.step()
    sets = node.kernel.nft.tables[T4].sets
    first, other = (found for name, found in sets.items() if name.endswith("-networks"))
    overlapping = AddElements(first.definition, (("10.244.2.0/24",),))
    assert await node.other.transact(T4, [overlapping]) == []
    node.apply(CLIENT)
    await node.controller.step()
    sets = node.kernel.nft.tables[T4].sets
    assert sets[first.definition.name].elements == {("10.244.2.0/24",)}
    assert sets[other.definition.name].elements == {("10.244.2.7/32",)}
    assert "10.244.2.7/32" in node.controller.statistics().last_error
    node.clock.now += 60
    await node.controller.step()
    assert node.kernel.nft.tables[T4].sets[first.definition.name].elements == {("10.244.2.7/32",)}


async def test_the_problems_of_a_policy_are_reported_when_they_change(node: Node) -> None:
    await adopted(node)
    assert node.reported == []
    wrong = ingress({"ipBlock": {"cidr": "everywhere"}})
    wrong["metadata"]["uid"] = "u1"
    for _ in range(2):
        node.apply(wrong)
        await node.controller.step()
    node.controller.take_changes([Deleted(NetworkPolicy, ObjectKey("shop", "policy"))])
    await node.controller.step()
    assert node.reported == [("shop/policy", "u1", ["InvalidNetworkPolicy"]), ("shop/policy", "", [])]


async def test_cleanup_removes_the_tables_also_where_the_setting_is_off_now(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, firewall="nftables", network_policies=True)
    controller = node.wiring.network_policy
    assert controller is not None
    items = pod("web", "10.244.1.5", on="node3"), POLICY
    controller.take_changes([Applied(msgspec.convert(item, KINDS[item["kind"]])) for item in items])
    controller.take_changes([Listed(kind.type) for kind in POLICY_KINDS])
    await node.start()
    assert T4 in node.kernel.nft.tables
    again = node.restarted(firewall="nftables")
    await again.open()
    assert again.wiring.network_policy is None
    report = await again.cleanup()
    assert (report.failed, node.kernel.nft.tables) == ([], {})
    assert f"delete table {T4}" in report.undone
