"""Another backend's rules and sets go once the chosen one does its work, and stay until then."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from kroute.firewall import backend, succession
from kroute.firewall.nftables.names import POLICY_TABLES
from kroute.kernel.errors import KernelError
from kroute.kernel.nftables.objects import AddTable
from kroute.model.addresses import Family
from kroute.model.node_facts import NodeFacts
from kroute.settings import Settings
from tests.fakes.kernel import FakeKernel
from tests.fakes.node_kernel import FakeNodeKernel, open_fake_kernel
from tests.unit.fake_node import node_plan
from tests.unit.planning.policies.cluster import Cluster, namespace, pod, policy

NODE = node_plan().node
T4 = POLICY_TABLES[Family.IPV4]
PAIRS = [("iptables", "nftables"), ("nftables", "iptables")]


class Filling:
    """What the controller says of itself."""

    def __init__(self, node: NodeFacts | None = NODE, refused: int = 0) -> None:
        self.node = node
        self.refused = refused


class Node:
    """A kernel in memory on which backends write; the pauses of a succession end when the test says so."""

    def __init__(self) -> None:
        self.kernel = FakeKernel()

    @asynccontextmanager
    async def open(self, *_: object, only: Collection[str] = ()) -> AsyncIterator[FakeNodeKernel]:
        async with open_fake_kernel(self.kernel) as clients:
            yield clients

    async def write(self, name: str, *, rules: bool = True) -> None:
        """Let a backend make its sets, and its rules."""
        async with self.open() as clients:
            firewall = backend.firewall_of(named(name), clients)
            await firewall.ensure_sets()
            if rules:
                await firewall.ensure_rules(NODE)

    async def write_policies(self) -> None:
        async with self.open() as clients:
            assert await clients.nftables.transact(T4, [AddTable()]) == []

    async def present(self) -> list[str]:
        return await backend.present(Settings("node1"))


def named(name: str) -> Settings:
    return Settings("node1", firewall=name)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    for module in (backend, succession):
        monkeypatch.setattr(module, "open_kernel", made.open)
    return made


@pytest.mark.parametrize(("old", "new"), PAIRS)
async def test_what_the_other_has_left_goes_when_the_chosen_one_stands(node: Node, old: str, new: str) -> None:
    await node.write(old)
    await node.write(new)
    with capture_logs() as logs:
        await succession.replace_others(named(new), Filling())
    assert await node.present() == [new]
    assert [(it["event"], it["by"], it["backends"]) for it in logs if "by" in it] == [("firewall.replaced", new, [old])]


async def test_without_another_backend_nothing_is_said_or_read(node: Node) -> None:
    await node.write("nftables")
    with capture_logs() as logs:
        await succession.replace_others(named("nftables"), Filling(None))
    assert logs == []


@pytest.mark.parametrize(("old", "new"), PAIRS)
@pytest.mark.parametrize("hindrance", ["no plan", "refused entries", "no rules", "no tool", "an error"])
async def test_the_other_stays_while_the_chosen_one_lacks_something(
    node: Node, monkeypatch: pytest.MonkeyPatch, old: str, new: str, hindrance: str
) -> None:
    await node.write(old)
    await node.write(new, rules=hindrance != "no rules")
    filling = Filling(None if hindrance == "no plan" else NODE, refused=int(hindrance == "refused entries"))
    cured = backend.BACKENDS[old]
    if hindrance == "no tool":
        ill = cured._replace(missing_tools=lambda: ["there is no tool; install it"])
        monkeypatch.setitem(backend.BACKENDS, old, ill)
    if hindrance == "an error":
        monkeypatch.setattr(succession, "firewall_of", unreadable)
    pauses: list[float] = []

    async def cure(seconds: float) -> None:
        assert set(await node.present()) == {old, new}
        pauses.append(seconds)
        if len(pauses) == 2:
            filling.node, filling.refused = NODE, 0
            monkeypatch.setitem(backend.BACKENDS, old, cured)
            monkeypatch.setattr(succession, "firewall_of", backend.firewall_of)
            await node.write(new)

    monkeypatch.setattr(succession.asyncio, "sleep", cure)
    with capture_logs() as logs:
        await succession.replace_others(named(new), filling)
    assert await node.present() == [new]
    assert len(pauses) == 2
    assert [it["event"] for it in logs if it["event"].startswith("firewall.")] == [
        "firewall.not_replaced",  # said once
        "firewall.replaced",
    ]


async def test_policies_of_an_earlier_run_go_and_the_rest_stays(node: Node) -> None:
    await node.write("nftables")
    await node.write_policies()
    rest = node.kernel.nft.tables.keys() - {T4}
    with capture_logs() as logs:
        await succession.remove_policies(named("nftables"))
        await succession.remove_policies(named("nftables"))
    assert node.kernel.nft.tables.keys() == rest
    assert [(it["event"], it["undone"]) for it in logs] == [("policies.removed", 1)]


async def test_chains_and_sets_of_policies_go_without_those_of_services(node: Node) -> None:
    await node.write("iptables")
    services = node.kernel.sets.keys() | set()
    cluster = Cluster(namespace("shop"), pod("web", "10.244.1.5"), policy(policyTypes=["Ingress", "Egress"]))
    async with node.open() as clients:
        policies = backend.policies_of(named("iptables"), clients)
        assert await policies.restore(cluster.catalog.groups(), cluster.catalog.pods) != []
    mangle = node.kernel.tables[Family.IPV4.number, "mangle"].chains
    assert {name.partition("-")[0] for name in mangle if "-" in name} == {"KROUTE", "KROUTENP"}
    await succession.remove_policies(named("iptables"))
    assert node.kernel.sets.keys() == services
    assert {name.partition("-")[0] for name in mangle if "-" in name} == {"KROUTE"}
    assert not any("KROUTENP" in rule for table in node.kernel.tables.values() for rule in table.chains["INPUT"])


async def test_what_keeps_policies_from_being_removed_is_said_once_and_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.write_policies()
    sound, pauses = backend.BACKENDS["nftables"], list[float]()
    monkeypatch.setitem(backend.BACKENDS, "nftables", sound._replace(has_policies=unreadable))

    async def cure(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            monkeypatch.setitem(backend.BACKENDS, "nftables", sound)

    monkeypatch.setattr(succession.asyncio, "sleep", cure)
    with capture_logs() as logs:
        await succession.remove_policies(named("nftables"))
    assert T4 not in node.kernel.nft.tables
    assert [it["event"] for it in logs] == ["policies.not_removed", "policies.removed"]


async def test_another_backend_goes_with_its_policies_when_the_new_ones_are_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.write("nftables")
    await node.write_policies()
    await node.write("iptables")
    policies = Mock(has_adopted=False)

    async def cure(_seconds: float) -> None:
        assert T4 in node.kernel.nft.tables
        policies.has_adopted = True

    monkeypatch.setattr(succession.asyncio, "sleep", cure)
    with capture_logs() as logs:
        await succession.replace_others(named("iptables"), Filling(), policies)
    assert node.kernel.nft.tables == {}
    assert logs[0]["why"] == "network policies are not written yet"


def unreadable(*_: object) -> None:
    raise KernelError("the kernel does not tell; trying later")
