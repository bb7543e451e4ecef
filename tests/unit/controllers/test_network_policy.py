"""The controller of network policies: what it writes when, on a fake kernel that refuses what the real one does."""

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from structlog.testing import capture_logs

from kroute.controllers.network_policy import NetworkPolicyController, Policies
from kroute.firewall.nftables.names import POLICY_TABLES
from kroute.firewall.nftables.policy_rules import FROM_UNKNOWN, TO_UNKNOWN
from kroute.firewall.nftables.policy_tables import PolicyTables
from kroute.kernel.conntrack import DeleteConnection, Flow
from kroute.kernel.errors import KernelError
from kroute.kernel.nftables.objects import AddElements, DeleteTable
from kroute.model.addresses import Family
from kroute.model.kinds import POLICY_KINDS
from kroute.model.node_facts import NodeFacts, NodeInterfaces
from kroute.model.objects import Applied, Deleted, Listed, NetworkPolicy, ObjectKey, Pod
from kroute.model.plan import NodePlan, Problem
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.controller import Shared
from kroute.settings import Settings
from tests.fakes.conntrack import FakeConntrack
from tests.fakes.kernel import FakeKernel, Operation
from tests.fakes.nftables import FakeNftables
from tests.unit.fake_node import Clock, FakeNode
from tests.unit.planning.policies.cluster import (
    KINDS,
    NODE,
    Object,
    block,
    cluster_policy,
    egress,
    every,
    ingress,
    namespace,
    pod,
    pods_with,
    policy,
)
from tests.unit.watching import running

WEB = pod("web", "10.244.1.5", "fd00:244:1::5", app="web")
CLIENT = pod("client", "10.244.2.7", on="node2", app="client")
POLICY = ingress(pods_with(app="client"))
T4 = POLICY_TABLES[Family.IPV4]


class Node:
    """The controller on a fake kernel, whose nf_tables another program may write, too."""

    def __init__(self, **settings: object) -> None:
        self.settings = Settings(NODE, **settings)  # type: ignore[arg-type]
        self.kernel = FakeKernel()
        self.nftables, self.other = FakeNftables(self.kernel), FakeNftables(self.kernel)
        self.clock = Clock()
        self.broadcaster = Broadcaster()
        self.reported: list[tuple[str, str, list[str]]] = []
        shared = Shared(self.settings, self.broadcaster, lambda *_: None, self.clock)
        self.conntrack = FakeConntrack(self.kernel)
        self.controller = NetworkPolicyController(shared, self.policies(), PolicyTables(self.nftables), self.conntrack)

    def policies(self) -> Policies:
        return Policies(PolicyCatalog(NODE, all_pods=self.settings.policy_default_deny), self.report)

    def report(self, key: ObjectKey, uid: str, problems: Sequence[Problem]) -> None:
        self.reported.append((str(key), uid, [problem.reason for problem in problems]))

    def apply(self, *items: Object) -> None:
        texts = [(KINDS[item["kind"]], msgspec.json.encode(item)) for item in items]
        self.controller.take_changes([Applied(msgspec.json.decode(text, type=kind)) for kind, text in texts])

    def list(self) -> None:
        self.controller.take_changes([Listed(kind.type) for kind in POLICY_KINDS])

    async def delete_table(self) -> None:
        assert await self.other.transact(T4, [DeleteTable()]) == []

    def elements(self, name: str) -> set[object]:
        """The first part of each element of this set, of both families."""
        tables = [self.kernel.nft.tables[table] for table in POLICY_TABLES.values()]
        return {element[0] for table in tables for element in table.sets[name].elements}

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
    again.controller = NetworkPolicyController(shared, again.policies(), PolicyTables(node.other), node.conntrack)
    async with running(again.controller.run()):
        again.broadcaster.publish([])
        again.apply(namespace("shop"), WEB)
        await settle()
        assert T4 in node.kernel.nft.tables
        again.list()
        await settle()
        assert T4 not in node.kernel.nft.tables


async def test_the_nodes_plan_does_not_wait_for_objects_that_cannot_be_listed(node: Node) -> None:
    """As without the right to list them: a plan that waits for long makes the node unhealthy."""
    node.broadcaster.publish([NodePlan(NodeFacts(NODE))])
    async with running(node.controller.run()):
        await settle()
        assert [queue.depth for queue in node.broadcaster.statistics()] == [0]
        assert node.controller.statistics().resyncs == 0


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


async def test_what_is_planned_for_a_reading_that_is_interrupted_is_not_forgotten(node: Node) -> None:
    await adopted(node)
    [foreign] = [one for one in node.kernel.nft.tables[T4].sets.values() if one.definition.name == "own"]
    assert await node.other.transact(T4, [AddElements(foreign.definition, (("10.9.9.9", "10.9.9.9"),))]) == []
    node.apply(CLIENT)
    node.controller.resync_soon()
    with patch.object(node.nftables, "read", side_effect=KernelError("it changes too fast", errno=errno.EINTR)):
        await node.controller.step()
    assert not node.controller.is_applied_state_known
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


async def test_pods_are_closed_until_they_are_known_once_the_nodes_networks_are() -> None:
    node, networks = Node(policy_default_deny=True), ("10.244.1.0/24", "fd00:244:1::/64")
    async with node.nftables, node.other:
        node.broadcaster.publish([NodePlan(NodeFacts(NODE))])
        node.apply(namespace("shop"), WEB)
        node.list()
        await node.controller.step()
        assert "pod-networks" not in node.kernel.nft.tables[T4].sets
        node.broadcaster.publish([NodePlan(NodeFacts(NODE, pod_cidrs=(*networks, "everywhere")))])
        await node.controller.step()
        assert node.elements("pod-networks") == {*networks}
        assert node.elements("known") == {"10.244.1.5", "fd00:244:1::5"}
        comments = [rule.comment for _, rule in node.kernel.nft.tables[T4].rules["postrouting"]]
        assert comments[-3:] == [FROM_UNKNOWN, TO_UNKNOWN, "to an isolated pod"]
        node.apply(pod("db", "10.244.1.6"), CLIENT)
        await node.controller.step()
        assert node.elements("known") == {"10.244.1.5", "fd00:244:1::5", "10.244.1.6"}
        node.controller.take_changes([Deleted(Pod, ObjectKey("shop", name)) for name in ("db", "web")])
        await node.controller.step()
        assert node.elements("known") == set()
        assert node.elements("pod-networks") == {*networks}
        assert node.controller.statistics().repairs == 0


def ready_pod(name: str, address: str) -> Object:
    """A pod whose network was ready an hour ago."""
    found, before = pod(name, address), datetime.now(UTC) - timedelta(hours=1)
    condition = {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": before.isoformat()}
    found["status"]["conditions"] = [condition]
    return found


async def test_the_lag_of_pods_that_come_is_counted_when_they_have_their_rules(node: Node) -> None:
    node.apply(ready_pod("before", "10.244.1.8"))
    await adopted(node)
    lag = node.controller.lag
    assert lag.count == 0
    node.apply(ready_pod("first", "10.244.1.9"))
    await node.controller.step()
    assert (lag.counts[-1], lag.count) == (1, 1)
    assert lag.sum >= 3600
    await node.delete_table()
    node.apply(ready_pod("second", "10.244.1.10"))
    await node.controller.step()
    assert lag.count == 1
    node.clock.now += 60
    await node.controller.step()
    assert lag.count == 2


TCP, UDP = 6, 17
NODE_ADDRESS, CLUSTER_IP = "192.168.123.1", "10.96.0.10"
WEB_ADDRESS, CLIENT_ADDRESS, OUTSIDE = "10.244.1.5", "10.244.2.7", "192.0.2.1"


def connection(source: str, port: int, destination: str, answering: str = WEB_ADDRESS, at: int = 80) -> Flow:
    """An entry of a connection from this port of a client."""
    return Flow(source, port, destination, 80, answering, at, source, port)


THROUGH_A_SERVICE = connection(CLIENT_ADDRESS, 1001, CLUSTER_IP, at=8080)
MASQUERADED = connection(OUTSIDE, 1002, NODE_ADDRESS, at=8080)._replace(reply_destination=NODE_ADDRESS)
OF_THE_NODE = connection(NODE_ADDRESS, 1003, WEB_ADDRESS, at=8080)
OUTWARD = connection(WEB_ADDRESS, 1004, OUTSIDE, OUTSIDE, 443)._replace(reply_destination=NODE_ADDRESS)
OF_OTHERS = connection(OUTSIDE, 1005, CLIENT_ADDRESS, CLIENT_ADDRESS)
ITS_OWN = connection(WEB_ADDRESS, 1006, CLUSTER_IP, at=8080)
CONNECTIONS = THROUGH_A_SERVICE, MASQUERADED, OF_THE_NODE, OUTWARD, OF_OTHERS, ITS_OWN


@pytest.fixture
async def cutting() -> AsyncIterator[Node]:
    """A node that cuts connections, of which each of CONNECTIONS is open, and which isolates no pod yet."""
    made = Node(policy_cuts_connections=True)
    async with made.nftables, made.other, made.conntrack:
        made.broadcaster.publish([NodePlan(NodeFacts(NODE, interfaces=NodeInterfaces(frozenset({NODE_ADDRESS}))))])
        made.apply(namespace("shop"), WEB, CLIENT)
        made.list()
        await made.controller.step()
        made.conntrack.add_flows(*CONNECTIONS, protocol=TCP)
        yield made


def left(node: Node) -> set[int]:
    """The ports of the clients whose connections are open."""
    return {flow.source_port for _, flow in node.kernel.flows}


EVERY = {flow.source_port for flow in CONNECTIONS}


@pytest.mark.parametrize(
    ("policies", "cut"),
    [
        ([ingress(pods_with(app="client"), ports=[{"port": 8080}])], {MASQUERADED}),
        ([ingress(pods_with(app="client"), ports=[{"port": 80}])], {THROUGH_A_SERVICE, MASQUERADED}),
        ([ingress(block(f"{OUTSIDE}/32"))], {THROUGH_A_SERVICE}),
        ([egress(block("10.0.0.0/8"))], {OUTWARD}),
        ([egress(block(f"{OUTSIDE}/32"), ports=[{"port": 443}])], set()),
        ([policy(policyTypes=["Ingress", "Egress"])], {THROUGH_A_SERVICE, MASQUERADED, OUTWARD}),
    ],
    ids=["its port", "the Service's port", "before masquerading", "to others", "an allowed one", "all"],
)
async def test_what_is_not_allowed_any_more_is_cut_and_nothing_else(
    cutting: Node, policies: list[Object], cut: set[Flow]
) -> None:
    cutting.apply(*policies)
    await cutting.controller.step()
    assert left(cutting) == EVERY - {flow.source_port for flow in cut}
    assert cutting.controller.statistics().failures == 0


async def test_a_peer_that_leaves_is_cut_and_one_that_comes_is_no_reason_to_look(cutting: Node) -> None:
    cutting.apply(ingress(pods_with(app="client"), block(f"{OUTSIDE}/32")))
    await cutting.controller.step()
    assert left(cutting) == EVERY
    cutting.kernel.refuse(lambda change: isinstance(change, Operation), errno.EPERM)
    cutting.clock.now += 60
    cutting.apply(pod("second", "10.244.2.8", on="node2", app="client"))
    await cutting.controller.step()
    assert cutting.controller.statistics().failures == 0
    cutting.kernel.accept_all()
    cutting.apply(pod("client", CLIENT_ADDRESS, on="node2", app="other"))
    await cutting.controller.step()
    assert left(cutting) == EVERY - {THROUGH_A_SERVICE.source_port}


async def test_a_peer_is_cut_that_a_policy_of_the_cluster_comes_to_deny(cutting: Node) -> None:
    cutting.apply(cluster_policy(ingress=[{"action": "Deny", "from": [every(app="other")]}]))
    await cutting.controller.step()
    assert left(cutting) == EVERY
    cutting.clock.now += 60
    cutting.apply(pod("client", CLIENT_ADDRESS, on="node2", app="other"))
    await cutting.controller.step()
    assert left(cutting) == EVERY - {THROUGH_A_SERVICE.source_port}


@pytest.mark.parametrize("refused", [Operation, DeleteConnection], ids=["the listing", "the deletion"])
async def test_a_refused_cut_is_tried_again_and_policies_are_written(cutting: Node, refused: type[object]) -> None:
    cutting.kernel.refuse(lambda change: isinstance(change, refused), errno.EBUSY)
    cutting.apply(policy(policyTypes=["Ingress"]))
    await cutting.controller.step()
    assert WEB_ADDRESS in cutting.elements("ingress")
    assert cutting.controller.statistics().failures > 0
    assert cutting.controller.next_due() is not None
    cutting.kernel.accept_all()
    cutting.clock.now += 60
    await cutting.controller.step()
    assert left(cutting) == EVERY - {THROUGH_A_SERVICE.source_port, MASQUERADED.source_port}
    assert cutting.controller.next_due() is None


async def test_the_answering_end_of_a_cut_connection_cannot_begin_it_again(
    cutting: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor can it by the address of the Service that was called. Of many connections, the first ones are forgotten."""
    monkeypatch.setattr("kroute.controllers.policy_cuts.MOST_ANSWERS", 3)
    cutting.conntrack.add_flows(connection("10.9.0.1", 7, WEB_ADDRESS, at=8080), protocol=UDP)
    cutting.apply(ingress(block(f"{OUTSIDE}/32"), block("10.9.0.2/32")))
    await cutting.controller.step()
    through = {(WEB_ADDRESS, TCP, 8080, CLIENT_ADDRESS), (CLUSTER_IP, TCP, 80, CLIENT_ADDRESS)}
    assert cutting.kernel.nft.tables[T4].sets["cut"].elements == through
    cutting.conntrack.add_flows(connection("10.9.0.2", 8, WEB_ADDRESS, at=8080), protocol=TCP)
    cutting.clock.now += 60
    cutting.apply(ingress(block(f"{OUTSIDE}/32")))
    await cutting.controller.step()
    newest = {(WEB_ADDRESS, TCP, 8080, "10.9.0.2"), (WEB_ADDRESS, TCP, 80, "10.9.0.2")}
    assert newest < cutting.kernel.nft.tables[T4].sets["cut"].elements
    assert len(cutting.kernel.nft.tables[T4].sets["cut"].elements) == 3


async def test_many_connections_are_judged_in_several_looks(cutting: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kroute.controllers.policy_cuts.MOST_JUDGED", 3)
    many = [connection(f"10.9.0.{number}", 2000 + number, WEB_ADDRESS, at=8080) for number in range(20)]
    cutting.conntrack.add_flows(*many, protocol=TCP)
    cutting.apply(ingress(block("10.9.0.0/29")))
    for _ in range(20):
        await cutting.controller.step()
        cutting.clock.now += 60
    gone = {THROUGH_A_SERVICE, MASQUERADED, *many[8:]}
    assert left(cutting) == {flow.source_port for flow in (*CONNECTIONS, *many)} - {flow.source_port for flow in gone}
    assert cutting.controller.next_due() is None


async def test_looks_go_on_where_they_have_ended_while_other_pods_change(
    cutting: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kroute.controllers.policy_cuts.MOST_JUDGED", 3)
    many = [connection(f"10.9.0.{number}", 2000 + number, WEB_ADDRESS, at=8080) for number in range(20)]
    cutting.conntrack.add_flows(*many, protocol=TCP)
    cutting.apply(
        ingress(block("10.9.0.0/29"), selector={"matchLabels": {"app": "web"}}), pod("db", "10.244.1.6", app="db")
    )
    for number in range(20):
        cutting.apply(ingress(block(f"10.8.0.{number}/32"), name="db", selector={"matchLabels": {"app": "db"}}))
        await cutting.controller.step()
        cutting.clock.now += 60
    assert not left(cutting) & {flow.source_port for flow in many[8:]}


async def test_connections_go_on_unless_they_are_to_be_cut(node: Node) -> None:
    async with node.conntrack:
        node.conntrack.add_flows(*CONNECTIONS, protocol=TCP)
        await adopted(node)
        node.apply(policy(policyTypes=["Ingress", "Egress"]))
        await node.controller.step()
        assert left(node) == EVERY
    assert node.controller.next_due() is None


async def test_cleanup_removes_the_tables_also_where_the_setting_is_off_now(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, firewall="nftables", network_policies=True)
    controller = node.wiring.optional.network_policy
    assert controller is not None
    items = pod("web", "10.244.1.5", on="node3"), POLICY
    controller.take_changes([Applied(msgspec.convert(item, KINDS[item["kind"]])) for item in items])
    controller.take_changes([Listed(kind.type) for kind in POLICY_KINDS])
    await node.start()
    assert T4 in node.kernel.nft.tables
    again = node.restarted(firewall="nftables")
    await again.open()
    assert again.wiring.optional.network_policy is None
    report = await again.cleanup()
    assert (report.failed, node.kernel.nft.tables) == ([], {})
    assert f"delete table {T4}" in report.undone
