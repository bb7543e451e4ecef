"""masquerade: the sets hold the plans' entries, and an address is in the set VIP only while its ports are."""

import asyncio
import errno
from collections.abc import Iterable
from pathlib import Path

import msgspec
from structlog.testing import capture_logs

from kroute.kernel.ipset import AddEntry, DeleteEntry, SetChange, SetDefinition
from kroute.model.plan import AddressSet
from kroute.reconcile.stage_gate import ENTRIES_PREPARED
from tests.fakes.kernel import FakeSet
from tests.unit.fake_node import FakeNode, new_kernel, node_plan, plan, server

VIP, PORT = AddEntry("KROUTE-VIP", ("10.96.0.1",)), AddEntry("KROUTE-CLUSTER-IP", ("10.96.0.1", 6, 80))
WEB = plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"), server("fd00::1", 80, "fd00:1::1"))


async def serving(tmp_path: Path, **settings: object) -> FakeNode:
    return await FakeNode(tmp_path, **settings).start(WEB)


def elements(node: FakeNode, name: str) -> set[tuple[str | int, ...]]:
    return node.kernel.sets[name].elements


def order(node: FakeNode, changes: Iterable[SetChange]) -> list[int]:
    """Return the positions of these changes among all writes; compared as text, as an addition equals its deletion."""
    texts = [str(write) for write in node.kernel.writes]
    return [texts.index(str(change)) for change in changes]


async def test_each_family_has_its_sets_filled(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(
        WEB,
        plan("idle", 2, server("10.96.0.2", 53)),
        node_plan(3, "172.20.135.0/24", "fd00:172:20:135::/64"),
    )
    assert {name: each.elements for name, each in node.kernel.sets.items()} == {
        "KROUTE-CLUSTER-IP": {("10.96.0.1", 6, 80)},
        "KROUTE-EXTERNAL": set(),
        "KROUTE-EXTERNAL-LOCAL": set(),
        "KROUTE-NO-LOCAL": set(),
        "KROUTE-NO-ENDPOINT": {("10.96.0.2", 6, 53)},
        "KROUTE-RESTRICTED": set(),
        "KROUTE-HEALTH-CHECK": set(),
        "KROUTE-SOURCE-RANGE": set(),
        "KROUTE-HAIRPIN": {("10.1.0.1", 6, 8080, "10.1.0.1")},
        "KROUTE-VIP": {("10.96.0.1",), ("10.96.0.2",)},
        "KROUTE-POD-NETWORK": {("172.20.135.0/24",)},
        "KROUTE-6-CLUSTER-IP": {("fd00::1", 6, 80)},
        "KROUTE-6-EXTERNAL": set(),
        "KROUTE-6-EXTERNAL-LOCAL": set(),
        "KROUTE-6-NO-LOCAL": set(),
        "KROUTE-6-NO-ENDPOINT": set(),
        "KROUTE-6-RESTRICTED": set(),
        "KROUTE-6-HEALTH-CHECK": set(),
        "KROUTE-6-SOURCE-RANGE": set(),
        "KROUTE-6-HAIRPIN": {("fd00:1::1", 6, 8080, "fd00:1::1")},
        "KROUTE-6-VIP": {("fd00::1",)},
        "KROUTE-6-POD-NETWORK": {("fd00:172:20:135::/64",)},
    }


async def test_the_pod_networks_follow_the_nodes_own_plan(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(node_plan(1, "172.20.135.0/24"))
    await node.apply(node_plan(2, "172.20.136.0/24"))
    assert elements(node, "KROUTE-POD-NETWORK") == {("172.20.136.0/24",)}


async def test_sets_are_filled_before_rules_look_into_them(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    writes = [str(write) for write in node.kernel.writes]
    first_rule = min(writes.index("commit table nat"), writes.index("commit table filter"))
    assert all(writes.index(entry) < first_rule for entry in writes if "to set" in entry)


async def test_an_entry_that_two_services_need_stays_for_the_second(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    await node.apply(plan("other", 2, server("10.96.0.2", 80, "10.1.0.1")))
    await node.apply(plan("web", 3))
    assert elements(node, "KROUTE-HAIRPIN") == {("10.1.0.1", 6, 8080, "10.1.0.1")}


async def test_ports_leave_when_the_address_is_gone(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.broadcaster.publish([plan("web", 2)])
    await node.masquerade.step()
    assert elements(node, "KROUTE-CLUSTER-IP") == {PORT.element}
    await node.service_proxy.step()
    await node.masquerade.step()
    assert elements(node, "KROUTE-CLUSTER-IP") == set()


class TestTheVipBites:
    """An address in the set VIP is refused on every port that is in no set of ports."""

    async def test_last_when_it_comes_and_first_when_it_goes(self, tmp_path: Path) -> None:
        ports = range(1, 50)
        many = [plan(f"s{port}", port, server("10.96.0.1", port, "10.1.0.1")) for port in ports]
        entries = [AddEntry(PORT.set, ("10.96.0.1", 6, port)) for port in ports]
        node = await FakeNode(tmp_path).start(*many)
        [vip_comes], ports_come = order(node, [VIP]), order(node, entries)
        assert max(ports_come) < vip_comes
        await node.apply(*(plan(f"s{port}", 50 + port) for port in ports))
        [vip_goes] = order(node, [DeleteEntry(VIP.set, VIP.element)])
        ports_go = order(node, [DeleteEntry(entry.set, entry.element) for entry in entries])
        assert vip_goes < min(ports_go)

    async def test_no_more_once_the_address_is_the_nodes_own(self, tmp_path: Path) -> None:
        """This holds even while the address is still on the dummy interface."""
        node = await serving(tmp_path)
        own = msgspec.structs.replace(
            WEB, generation=2, vips=(), set_entries=tuple(it for it in WEB.set_entries if it.set != AddressSet.VIP)
        )
        node.broadcaster.publish([own])
        await node.masquerade.step()
        assert node.kernel.has_address("10.96.0.1")
        assert elements(node, "KROUTE-VIP") == set()

    async def test_not_while_an_entry_of_its_service_is_refused(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path)
        node.kernel.refuse(lambda change: change == PORT, errno.ENOMEM)
        await node.start(WEB)
        assert elements(node, "KROUTE-VIP") == elements(node, "KROUTE-6-VIP") == set()
        assert not node.stage_gate.has_passed(WEB, ENTRIES_PREPARED)
        node.kernel.accept_all()
        await node.wait(1)
        assert elements(node, "KROUTE-VIP") == {VIP.element}
        assert node.stage_gate.has_passed(WEB, ENTRIES_PREPARED)

    async def test_for_two_services_when_the_ports_of_both_are_there_and_until_both_have_gone(
        self, tmp_path: Path
    ) -> None:
        other = plan("other", 2, server("10.96.0.1", 443, "10.1.0.2"))
        node = FakeNode(tmp_path)
        node.kernel.refuse(lambda change: change == AddEntry("KROUTE-CLUSTER-IP", ("10.96.0.1", 6, 443)), errno.ENOMEM)
        await node.start(WEB, other)
        assert elements(node, "KROUTE-VIP") == set()
        node.kernel.accept_all()
        await node.wait(1)
        assert elements(node, "KROUTE-VIP") == {VIP.element}
        await node.apply(plan("web", 3))
        assert elements(node, "KROUTE-VIP") == {VIP.element}
        assert elements(node, "KROUTE-CLUSTER-IP") == {("10.96.0.1", 6, 443)}
        await node.apply(plan("other", 4))
        assert elements(node, "KROUTE-VIP") == set()

    async def test_after_the_ports_when_everything_was_flushed(self, tmp_path: Path) -> None:
        node = await serving(tmp_path)
        for each in node.kernel.sets.values():
            each.elements.clear()
        node.kernel.writes.clear()
        await node.resync()
        vip_is_back, port_is_back = order(node, [VIP, PORT])
        assert port_is_back < vip_is_back

    async def test_no_port_that_keeps_its_address_while_another_goes(self, tmp_path: Path) -> None:
        node = await FakeNode(tmp_path).start(
            plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"), server("10.96.0.1", 443, "10.1.0.1"))
        )
        await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.1")))
        assert elements(node, "KROUTE-VIP") == {VIP.element}
        assert elements(node, "KROUTE-CLUSTER-IP") == {PORT.element}


async def test_what_was_deleted_is_no_longer_counted(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    await node.apply(plan("other", 2, server("10.96.0.2", 80, "10.1.0.2")))
    await node.apply(plan("web", 3))
    elements(node, "KROUTE-CLUSTER-IP").add(("10.96.0.9", 6, 80))
    await node.resync()
    counted = {fill.set: fill.entries for fill in node.masquerade.set_fills()}
    assert counted == {name: len(each.elements) for name, each in node.kernel.sets.items()}
    assert (counted["KROUTE-CLUSTER-IP"], counted["KROUTE-6-CLUSTER-IP"]) == (1, 0)


async def test_a_port_that_loses_its_endpoints_is_refused_and_one_that_gets_some_is_let_by(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    await node.apply(plan("web", 2, server("10.96.0.1", 80)))
    assert elements(node, "KROUTE-NO-ENDPOINT") == {PORT.element}
    assert elements(node, "KROUTE-CLUSTER-IP") == set()
    await node.apply(plan("web", 3, server("10.96.0.1", 80, "10.1.0.2")))
    assert elements(node, "KROUTE-NO-ENDPOINT") == set()
    assert elements(node, "KROUTE-CLUSTER-IP") == {PORT.element}


async def test_a_plan_is_not_prepared_while_an_entry_of_it_is_refused(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.refuse(lambda change: isinstance(change, AddEntry), errno.ENOMEM)
    new = plan("new", 2, server("10.96.0.2", 80))
    await node.apply(new)
    assert not node.stage_gate.has_passed(new, ENTRIES_PREPARED)
    node.kernel.accept_all()
    await node.wait(1)
    assert node.stage_gate.has_passed(new, ENTRIES_PREPARED)


async def test_lost_entries_and_sets_are_back_after_the_resync_and_strays_gone(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    elements(node, "KROUTE-HAIRPIN").clear()
    elements(node, "KROUTE-VIP").add(("192.168.123.249",))
    del node.kernel.sets["KROUTE-6-CLUSTER-IP"]
    await node.resync()
    assert elements(node, "KROUTE-HAIRPIN") == {("10.1.0.1", 6, 8080, "10.1.0.1")}
    assert elements(node, "KROUTE-VIP") == {VIP.element}
    assert elements(node, "KROUTE-6-CLUSTER-IP") == {("fd00::1", 6, 80)}


async def test_a_set_that_is_too_small_gives_way_to_a_larger_one_that_is_full_already(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    small = SetDefinition("KROUTE-CLUSTER-IP", "hash:ip,port", maxelem=100)
    node.kernel.sets[small.name] = FakeSet(small, {PORT.element})
    node.kernel.writes.clear()
    await node.resync()
    assert node.kernel.sets[small.name].definition.maxelem > 100
    assert elements(node, small.name) == {PORT.element}
    assert [str(write) for write in node.kernel.writes] == [
        "create set KROUTE-CLUSTER-IP-LARGER",
        str(AddEntry("KROUTE-CLUSTER-IP-LARGER", PORT.element)),
        "swap sets KROUTE-CLUSTER-IP KROUTE-CLUSTER-IP-LARGER",
        "destroy set KROUTE-CLUSTER-IP-LARGER",
    ]


async def test_a_set_of_another_kind_is_made_anew_while_no_rule_looks_into_it(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    other = SetDefinition("KROUTE-CLUSTER-IP", "hash:ip", maxelem=262_144)
    node.kernel.sets[other.name] = FakeSet(other)
    node.kernel.writes.clear()
    await node.resync()
    assert elements(node, other.name) == {PORT.element}
    assert [str(write) for write in node.kernel.writes] == [
        "commit table filter",
        "commit table mangle",
        "commit table nat",
        "destroy set KROUTE-CLUSTER-IP",
        "create set KROUTE-CLUSTER-IP",
        str(PORT),
        "commit table nat",
        "commit table mangle",
        "commit table filter",
    ]


async def test_one_that_an_earlier_version_left_serves_until_there_are_plans(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    small = SetDefinition("KROUTE-CLUSTER-IP", "hash:ip,port", maxelem=100)
    node.kernel.sets[small.name] = FakeSet(small, {PORT.element})
    node = node.restarted()
    await node.open()
    waiting = asyncio.create_task(node.masquerade.run())
    await asyncio.sleep(0.05)
    assert node.kernel.writes == []
    waiting.cancel()
    await node.start(WEB)
    assert node.kernel.sets[small.name].definition.maxelem > 100
    assert elements(node, small.name) == {PORT.element}
    assert all(
        table.chains[{"filter": "KROUTE-VIPS", "mangle": "KROUTE-OUTPUT", "nat": "KROUTE-SERVICES"}[name]]
        for (_, name), table in node.kernel.tables.items()
    )


class TestSetsOfAnEarlierVersion:
    RULE = "-m set --match-set KROUTE-CLUSTER-CIDR src -j RETURN"

    def left_behind(self, tmp_path: Path, chain: str) -> FakeNode:
        kernel = new_kernel()
        kernel.sets["KROUTE-CLUSTER-CIDR"] = FakeSet(SetDefinition("KROUTE-CLUSTER-CIDR", "hash:net"))
        kernel.table(2, "nat").chains[chain] = [self.RULE]
        return FakeNode(tmp_path, kernel)

    async def test_are_destroyed_when_the_rules_are_new(self, tmp_path: Path) -> None:
        node = await self.left_behind(tmp_path, "KROUTE-SERVICES").start(WEB)
        assert "KROUTE-CLUSTER-CIDR" not in node.kernel.sets

    async def test_stay_while_a_foreign_rule_looks_into_them(self, tmp_path: Path) -> None:
        with capture_logs() as logs:
            node = await self.left_behind(tmp_path, "FOREIGN").start(WEB)
            await node.resync()
        assert "KROUTE-CLUSTER-CIDR" in node.kernel.sets
        assert [line["set"] for line in logs if line["event"] == "set.kept"] == ["KROUTE-CLUSTER-CIDR"]
        assert node.stage_gate.has_passed(WEB, ENTRIES_PREPARED)
