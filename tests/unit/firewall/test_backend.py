"""Which backend a node gets, and what opens the kernel for it."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kroute.checks import preflight
from kroute.firewall import backend
from kroute.firewall.iptables.address_sets import POLICIES
from kroute.firewall.nftables.firewall import NftablesFirewall
from kroute.firewall.nftables.names import POLICY_TABLES
from kroute.firewall.protocol import Prerequisites
from kroute.kernel import modules
from kroute.kernel.ipset import SetDefinition
from kroute.kernel.nftables.objects import AddTable
from kroute.model.addresses import Family
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.settings import FIREWALLS, Settings
from tests.fakes.kernel import FakeKernel, FakeSet
from tests.fakes.node_kernel import FakeNodeKernel, open_fake_kernel

AUTO = Settings("node1")


class Node:
    """A kernel in memory. `opened` are the clients that were opened by each call, in order."""

    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.opened: list[set[str]] = []

    @asynccontextmanager
    async def open(self, *_: object, only: Collection[str] = ()) -> AsyncIterator[FakeNodeKernel]:
        self.opened.append(set(only))
        async with open_fake_kernel(self.kernel) as clients:
            yield clients

    async def make_sets(self) -> None:
        clients = await FakeNodeKernel.of(self.kernel).open()
        await clients.ipset.create(SetDefinition("KROUTE-VIP", "hash:ip"))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node()
    monkeypatch.setattr(backend, "open_kernel", made.open)
    return made


@pytest.mark.parametrize(
    ("network_policies", "policy_log", "group"), [(False, True, None), (True, False, None), (True, True, 10247)]
)
def test_only_policies_that_are_enforced_are_logged(
    *, network_policies: bool, policy_log: bool, group: int | None
) -> None:
    chosen = Settings("node1", network_policies=network_policies, policy_log=policy_log)
    assert chosen.refusals_logged_to == group


def test_every_name_of_the_setting_is_a_backend() -> None:
    assert {"auto", *backend.BACKENDS} == set(FIREWALLS)


@pytest.mark.parametrize("name", backend.BACKENDS)
async def test_what_the_settings_name_is_chosen_without_a_look_at_the_kernel(node: Node, name: str) -> None:
    choice = await backend.choose(Settings("node1", firewall=name))
    assert choice == backend.Choice(name, "the setting `firewall` names it", given=True)
    assert node.opened == []


async def test_auto_stays_with_what_made_the_sets_that_are_there(node: Node) -> None:
    await node.make_sets()
    choice = await backend.choose(AUTO)
    assert choice.name == "iptables"
    assert "on this node already" in choice.why
    assert node.opened[0] == {"ipset"}  # no library is loaded to find out


async def test_auto_prefers_what_the_kernel_has_without_modules_of_its_own(node: Node) -> None:
    choice = await backend.choose(AUTO)
    assert choice == backend.Choice("nftables", "the kernel has what it needs")
    assert not any("xtables" in clients for clients in node.opened)


@pytest.mark.parametrize(("family", "has_ipv6", "chosen"), [
    (Family.IPV4, True, "iptables"), (Family.IPV6, True, "iptables"), (Family.IPV6, False, "nftables"),
])  # fmt: skip
async def test_auto_falls_back_and_says_what_the_kernel_lacks(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: Family, has_ipv6: bool, chosen: str
) -> None:
    async def lacking(_self: object) -> Prerequisites:
        missing = {it: ["table x: there is no nat; use another kernel"] if it is family else [] for it in Family}
        return Prerequisites("nftables", missing, "")

    monkeypatch.setattr(NftablesFirewall, "prerequisites", lacking)
    monkeypatch.setattr(backend, "IPV6", Path("/proc") if has_ipv6 else tmp_path / "none")
    choice = await backend.choose(AUTO)
    assert choice.name == chosen
    assert has_ipv6 == ("nftables cannot be used here: table x: there is no nat" in choice.why)


async def test_only_what_has_left_something_is_opened_for_undoing(node: Node) -> None:
    async with backend.open_what_stands(AUTO) as (_, _, firewalls):
        assert firewalls == []
    assert "xtables" not in node.opened[-1]
    await node.make_sets()
    async with backend.open_what_stands(AUTO) as (settings, _, [firewall, _]):
        assert await firewall.is_present()
        assert settings.firewall == "iptables"
    assert {"xtables", "ipset", "ipvs"} <= node.opened[-1]


async def undone() -> list[str]:
    """Remove all that stands; returns what that was."""
    report = CleanupReport()
    async with backend.open_what_stands(AUTO) as (_, _, left):
        for each in left:
            await each.remove(report)
    return report.undone


@pytest.mark.parametrize("family", Family)
async def test_tables_of_network_policies_alone_are_found_and_undone(node: Node, family: Family) -> None:
    clients = await FakeNodeKernel.of(node.kernel).open()
    assert await clients.nftables.transact(POLICY_TABLES[family], [AddTable()]) == []
    assert await backend.present(AUTO) == ["nftables"]
    assert await undone() == [f"delete table {POLICY_TABLES[family]}"]
    assert await backend.present(AUTO) == []


async def test_sets_of_network_policies_alone_are_found_and_undone(node: Node) -> None:
    node.kernel.sets[f"{POLICIES}OWN"] = FakeSet(SetDefinition(f"{POLICIES}OWN", "hash:net,net"))
    assert await backend.present(AUTO) == ["iptables"]
    assert await undone() == [f"destroy set {POLICIES}OWN"]
    assert await backend.present(AUTO) == []


async def test_a_missing_tool_is_a_prerequisite_with_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load_all(_names: object) -> list[str]:
        return []

    without = backend.BACKENDS["iptables"]._replace(
        missing_tools=lambda: ["x-save is not installed; install the package x"]
    )
    monkeypatch.setitem(backend.BACKENDS, "iptables", without)
    monkeypatch.setattr(modules, "load", load_all)
    monkeypatch.setattr(preflight, "has_capability", lambda *_: True)
    choice, [missing] = await preflight.look_at_node(Settings("node1", firewall="iptables"))
    assert choice is not None
    assert str(missing) == "x-save is not installed (--firewall iptables): install the package x"
