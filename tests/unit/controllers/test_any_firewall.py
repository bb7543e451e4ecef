"""masquerade needs nothing of a firewall but its protocol."""

import pytest
from structlog.testing import capture_logs

from kroute.controllers.masquerade import Masquerade
from kroute.firewall.sets import Room
from kroute.model.addresses import Family
from kroute.model.plan import AddressSet, NodePlan, ServicePlan
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.controller import Shared
from kroute.reconcile.stage_gate import ENTRIES_PREPARED
from kroute.settings import Settings
from tests.fakes.firewall import FakeFirewall
from tests.unit.fake_node import Clock, node_plan, plan, server

SETTINGS = Settings("node3", resync_budget=1.0)
PORT, PORT6 = ("10.96.0.1", 6, 80), ("fd00::1", 6, 80)
WEB = plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"), server("fd00::1", 80, "fd00:1::1"))
CLUSTER_IPS = (Family.IPV4, AddressSet.CLUSTER_IP)
VIPS = (Family.IPV4, AddressSet.VIP)


class Node:
    """The controller alone, on a firewall that tests can read and damage."""

    def __init__(self, *, room: int = 1000, first: int = 0) -> None:
        self.firewall = FakeFirewall(SETTINGS, room=Room(first or room, room))
        self.clock = Clock()
        self.broadcaster = Broadcaster()
        shared = Shared(SETTINGS, self.broadcaster, lambda *_: None, self.clock)
        self.gate = shared.gate
        self.masquerade = Masquerade(shared, self.firewall)

    def publish(self, *plans: ServicePlan | NodePlan) -> None:
        """Publish the initial sync, with the node's plan."""
        self.broadcaster.publish([node_plan(), *plans])

    async def start(self, *plans: ServicePlan | NodePlan) -> "Node":
        self.publish(*plans)
        await self.masquerade.start()
        await self.masquerade.step()
        return self

    async def apply(self, *plans: ServicePlan) -> None:
        self.broadcaster.publish(plans)
        await self.masquerade.step()

    def fills(self) -> dict[str, tuple[int, int, int]]:
        """Return entries, capacity and limit of each set that is not empty."""
        return {it.set: (it.entries, it.capacity, it.limit) for it in self.masquerade.set_fills() if it.entries}

    async def resync(self) -> None:
        self.clock.now += SETTINGS.resync_period + 1
        await self.masquerade.step()


async def test_the_sets_hold_what_the_plans_say_and_the_rules_know_the_node() -> None:
    node = await Node().start(WEB)
    assert node.firewall.sets[CLUSTER_IPS] == {PORT}
    assert node.firewall.sets[Family.IPV6, AddressSet.CLUSTER_IP] == {PORT6}
    assert node.firewall.written_for == node_plan().node
    assert node.gate.has_passed(WEB, ENTRIES_PREPARED)


async def test_whatever_is_damaged_is_counted_and_repaired() -> None:
    node = await Node().start(WEB)
    node.firewall.sets[CLUSTER_IPS].clear()
    del node.firewall.sets[Family.IPV6, AddressSet.VIP]
    node.firewall.written_for = None
    with capture_logs() as logs:
        await node.resync()
    sets, *entries, rules = [line["what"] for line in logs if line["event"] == "repair"]
    assert (sets, rules) == ("set VIP of IPv6 was missing", "the rules were not as they should be")
    assert sorted(entries) == [
        "entry 10.96.0.1,TCP,80 of set CLUSTER-IP of IPv4 was missing",
        "entry fd00::1 of set VIP of IPv6 was missing",
    ]
    assert node.firewall.sets[CLUSTER_IPS] == {PORT}
    assert node.firewall.sets[Family.IPV6, AddressSet.VIP] == {("fd00::1",)}
    assert node.firewall.written_for == node_plan().node


async def test_how_full_the_sets_are_follows_every_write_and_every_resync() -> None:
    node = Node(room=32, first=4)
    assert node.masquerade.set_fills() == [], "no set is known yet"
    await node.start(WEB)
    assert len(node.masquerade.set_fills()) == len(node.firewall.sets)
    ports, ports6, vips = "CLUSTER-IP of IPv4", "CLUSTER-IP of IPv6", "VIP of IPv4"
    assert (node.fills()[ports], node.fills()[ports6], node.fills()[vips]) == ((1, 4, 32),) * 3
    await node.apply(*(plan(f"s{port}", port, server("10.96.0.2", port, "10.1.0.2")) for port in range(2, 12)))
    assert (node.fills()[ports], node.fills()[vips]) == ((11, 16, 32), (2, 4, 32))
    node.firewall.sets[VIPS].clear()
    await node.resync()
    assert node.fills()[vips] == (2, 4, 32)


async def test_nothing_is_prepared_whose_entries_do_not_fit_and_its_address_does_not_bite() -> None:
    other = plan("other", 2, server("10.96.0.2", 80, "10.1.0.2"))
    node = await Node(room=1).start(WEB, other)
    assert [node.gate.has_passed(it, ENTRIES_PREPARED) for it in (WEB, other)].count(True) <= 1
    [(bites,)] = node.firewall.sets[Family.IPV4, AddressSet.VIP] or {("",)}
    assert not bites or {it[0] for it in node.firewall.sets[CLUSTER_IPS]} == {bites}


@pytest.mark.parametrize("plans", [(), (WEB,)], ids=["nothing made yet", "a Service"])
async def test_cleanup_leaves_nothing(plans: tuple[ServicePlan, ...]) -> None:
    node = await Node().start(*plans)
    report = CleanupReport()
    await node.firewall.remove(report)
    assert report.failed == []
    assert not await node.firewall.is_present()
