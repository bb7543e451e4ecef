"""A node's rules are written once the facts of the node are known, and are repaired, each table separately."""

import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import SetDefinition
from kroute.kernel.iptables.xtables import TableRules
from kroute.model.addresses import Family
from kroute.reconcile.stage_gate import ENTRIES_PREPARED
from tests.fakes.kernel import FakeSet
from tests.fakes.xtables import FakeXtables
from tests.unit.fake_node import FakeNode, new_kernel, node_plan, plan, server

WEB = plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"), server("fd00::1", 80, "fd00:1::1"))
LAST_RULE = "KROUTE-POSTROUTING"


async def serving(tmp_path: Path, **settings: object) -> FakeNode:
    return await FakeNode(tmp_path, **settings).start(WEB)


def rules_in(node: FakeNode, family: int = socket.AF_INET, table: str = "nat") -> dict[str, list[str]]:
    return node.kernel.table(family, table).chains


def break_table(monkeypatch: pytest.MonkeyPatch, xtables: FakeXtables, table: str) -> None:
    """Make the kernel refuse a table in this family, as if it did not exist."""
    ensure = xtables.ensure

    async def refuse(rules: TableRules) -> list[str]:
        if rules.table == table:
            raise KernelError(f"ip6tables table {table}: no such table; load the module ip6table_{table}")
        return await ensure(rules)

    monkeypatch.setattr(xtables, "ensure", refuse)


async def test_both_tables_of_both_families_have_their_rules(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    for family in (socket.AF_INET, socket.AF_INET6):
        assert "-j KROUTE-SERVICES" in rules_in(node, family)["PREROUTING"][0]
        assert "-j KROUTE-INPUT" in rules_in(node, family, "filter")["INPUT"][0]


async def test_the_number_of_rules_does_not_depend_on_that_of_the_services(tmp_path: Path) -> None:
    node = await serving(tmp_path, masquerade_all=True)
    before = {
        key: {name: list(rules) for name, rules in each.chains.items()} for key, each in node.kernel.tables.items()
    }
    await node.apply(*(plan(f"s{i}", 2, server(f"10.96.1.{i}", 80, f"10.1.1.{i}")) for i in range(50)))
    assert {key: each.chains for key, each in node.kernel.tables.items()} == before


async def test_an_earlier_runs_rules_stay_as_they_are_until_the_node_is_known(tmp_path: Path) -> None:
    node = await serving(tmp_path, snat_source="node-ip")
    before = rules_in(node)[LAST_RULE][-1]
    node = node.restarted(snat_source="node-ip")
    await node.open()
    node.broadcaster.publish([WEB])
    await node.masquerade.start()
    await node.masquerade.step()
    assert not node.stage_gate.has_passed(WEB, ENTRIES_PREPARED)
    await node.apply(node_plan(2))
    assert node.stage_gate.has_passed(WEB, ENTRIES_PREPARED)
    assert rules_in(node)[LAST_RULE][-1] == before
    assert not [write for write in map(str, node.kernel.writes) if "commit" in write]


async def test_the_rules_follow_the_nodes_address_which_is_no_repair(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, snat_source="node-ip")
    await node.start(WEB, node_plan(2, ipv4=None, ipv6=None))
    assert "-j MASQUERADE" in rules_in(node)[LAST_RULE][-1]
    with capture_logs() as logs:
        await node.apply(node_plan(3, ipv4="192.168.123.239"))
    assert "-j SNAT --to-source 192.168.123.239" in rules_in(node)[LAST_RULE][-1]
    assert [line["family"] for line in logs if line["event"] == "rules.written"] == ["IPv4", "IPv6"]
    assert node.masquerade.statistics().repairs == 0


async def test_a_node_plan_that_says_nothing_new_of_the_node_leaves_the_tables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await serving(tmp_path)
    break_table(monkeypatch, node.xtables[Family.IPV4], "nat")
    with capture_logs() as logs:
        await node.apply(node_plan(2))
    assert not [line for line in logs if line["event"] == "rules.failed"]


async def test_changed_settings_change_the_rules_at_the_next_start(tmp_path: Path) -> None:
    node = await serving(tmp_path, masquerade_all=True)
    before = len(rules_in(node)["KROUTE-SERVICES"])
    node = node.restarted(masquerade_all=False)
    await node.start(WEB)
    assert len(rules_in(node)["KROUTE-SERVICES"]) == before - 1


@pytest.mark.parametrize("table", ["nat", "mangle", "filter"])
async def test_flushed_rules_are_back_after_the_resync(tmp_path: Path, table: str) -> None:
    node = await serving(tmp_path)
    before = {name: list(rules) for name, rules in rules_in(node, table=table).items()}
    for rules in rules_in(node, table=table).values():
        rules.clear()
    await node.resync()
    assert rules_in(node, table=table) == before
    assert node.masquerade.statistics().repairs == {"nat": 7, "mangle": 3, "filter": 7}[table]


async def test_foreign_rules_and_sets_stay_and_cleanup_leaves_nothing_else(tmp_path: Path) -> None:
    kernel = new_kernel()
    for table, builtin in (("nat", "POSTROUTING"), ("mangle", "OUTPUT"), ("filter", "INPUT")):
        kernel.table(socket.AF_INET, table).chains["CNI"] = ["-j RETURN"]
        kernel.table(socket.AF_INET, table).chains[builtin].append("-j CNI")
    kernel.sets["cni"] = FakeSet(SetDefinition("cni", "hash:ip"), {("192.0.2.1",)})
    before = {
        table: {name: list(rules) for name, rules in kernel.table(2, table).chains.items()}
        for table in ("nat", "mangle", "filter")
    }
    node = await FakeNode(tmp_path, kernel).start(WEB)
    await node.resync()
    assert rules_in(node)["POSTROUTING"][1:] == rules_in(node, table="filter")["INPUT"][2:] == ["-j CNI"]
    kernel.writes.clear()
    report = await node.cleanup()
    assert report.failed == []
    assert {table: rules_in(node, table=table) for table in ("nat", "mangle", "filter")} == before
    assert list(kernel.sets) == ["cni"]
    commits = [write for write in map(str, kernel.writes) if "commit" in write]
    assert commits == ["commit table filter", "commit table mangle", "commit table nat"] * 2


@pytest.mark.parametrize(
    ("family", "table"),
    [(Family.IPV6, "nat"), (Family.IPV6, "filter"), (Family.IPV4, "mangle"), (Family.IPV4, "filter")],
)
async def test_a_table_that_is_not_there_is_reported_once_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Family, table: str
) -> None:
    node = FakeNode(tmp_path)
    with capture_logs() as logs, monkeypatch.context() as patch:
        break_table(patch, node.xtables[family], table)
        await node.start(WEB)
        await node.resync()
        await node.resync()
    [line] = [line for line in logs if line["event"] == "rules.failed"]
    assert (line["family"], line["table"]) == (family, table)
    chains = {"nat": "KROUTE-SERVICES", "mangle": "KROUTE-OUTPUT", "filter": "KROUTE-INPUT"}
    present = {
        (each, name): chain in rules_in(node, each, name)
        for each in (socket.AF_INET, socket.AF_INET6)
        for name, chain in chains.items()
    }
    assert [key for key, is_there in present.items() if not is_there] == [(family.number, table)]
    assert node.stage_gate.has_passed(WEB, ENTRIES_PREPARED)
    await node.resync()
    assert chains[table] in rules_in(node, family.number, table)


async def test_a_node_without_ipv6_tables_is_cleaned_without_complaint(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, new_kernel(ipv6=False))
    await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    assert (await node.cleanup()).failed == []


async def test_at_first_no_plan_is_prepared_before_the_rules_are_there_and_later_a_resync_delays_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(tmp_path)
    ipv4 = node.xtables[Family.IPV4]
    prepared: list[bool] = []
    ensure, newest = ipv4.ensure, plan("web", 1, server("10.96.0.1", 80))

    async def look(rules: TableRules) -> list[str]:
        prepared.append(node.stage_gate.has_passed(newest, ENTRIES_PREPARED))
        return await ensure(rules)

    monkeypatch.setattr(ipv4, "ensure", look)
    await node.start(newest)
    newest = plan("new", 2, server("10.96.0.2", 80))
    node.broadcaster.publish([newest])
    await node.resync()
    assert prepared == [False] * 3 + [True] * 3
