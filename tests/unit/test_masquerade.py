"""masquerade: the rules as packets meet them, and the sets that they look up."""

import errno
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.controllers.masquerade_rules import IPV4, IPV6, masquerade_rules, set_definitions
from kroute.controllers.milestones import Stage
from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import AddEntry, DeleteEntry, SetDefinition
from kroute.settings import Exemption, Settings
from tests.fakes.kernel import FakeSet
from tests.unit.fake_node import FakeNode, new_kernel, plan, server

TO_CLUSTER_IP = "-m set --match-set KROUTE-CLUSTER-IP dst,dst -j KROUTE-MARK-MASQ"


def bare(rules: list[str]) -> list[str]:
    """The rules without their comments; each must have one."""
    cut = []
    for rule in rules:
        before, _, after = rule.partition('-m comment --comment "')
        text, _, rest = after.partition('" ')
        assert text, rule
        cut.append(before + rest)
    return cut


def chains(settings: Settings, family=IPV4, *, random_fully: bool = True) -> dict[str, list[str]]:
    rules = masquerade_rules(settings, family, random_fully=random_fully)
    return {name: bare(list(texts)) for name, texts in rules.chains.items()}


class TestRules:
    def test_packets_pass_our_chains_first(self) -> None:
        rules = masquerade_rules(Settings("node3"), IPV4, random_fully=True)
        assert rules.table == "nat"
        jumps = [(chain, bare([rule])[0]) for chain, rule in rules.jumps]
        assert jumps == [
            ("PREROUTING", "-j KROUTE-SERVICES"),
            ("OUTPUT", "-j KROUTE-SERVICES"),
            ("POSTROUTING", "-j KROUTE-POSTROUTING"),
        ]

    def test_by_default_only_hairpin_connections_are_masqueraded(self) -> None:
        assert chains(Settings("node3")) == {
            "KROUTE-SERVICES": [],
            "KROUTE-MARK-MASQ": ["-j MARK --set-xmark 0x4000/0x4000"],
            "KROUTE-POSTROUTING": [
                "-m set --match-set KROUTE-HAIRPIN dst,dst,src -j MASQUERADE --random-fully",
                "-m mark ! --mark 0x4000/0x4000 -j RETURN",
                "-j MARK --set-xmark 0x4000/0x0",
                "-j MASQUERADE --random-fully",
            ],
        }

    def test_with_masquerade_all_everything_to_a_cluster_ip_is_marked(self) -> None:
        settings = Settings("node3", masquerade_all=True, cluster_cidrs=("172.20.0.0/16",))
        assert chains(settings)["KROUTE-SERVICES"] == [TO_CLUSTER_IP]

    def test_with_a_cluster_network_what_comes_from_outside_it_is_marked(self) -> None:
        settings = Settings("node3", cluster_cidrs=("172.20.0.0/16",))
        assert chains(settings)["KROUTE-SERVICES"] == [f"-m set ! --match-set KROUTE-CLUSTER-CIDR src {TO_CLUSTER_IP}"]
        assert chains(settings, IPV6)["KROUTE-SERVICES"] == []

    def test_exemptions_come_first_each_in_its_family(self) -> None:
        settings = Settings(
            "node3",
            masquerade_all=True,
            masquerade_exemptions=(
                Exemption("192.168.130.0/24", "192.168.0.0/16"),
                Exemption("fd00:130::/64", "fd00::/16"),
            ),
        )
        assert chains(settings)["KROUTE-SERVICES"] == [
            "-s 192.168.130.0/24 -d 192.168.0.0/16 -j RETURN",
            TO_CLUSTER_IP,
        ]
        assert chains(settings, IPV6)["KROUTE-SERVICES"][0] == "-s fd00:130::/64 -d fd00::/16 -j RETURN"

    def test_ipv6_looks_into_sets_of_its_own(self) -> None:
        rules = chains(Settings("node3", masquerade_all=True), IPV6)
        assert rules["KROUTE-SERVICES"] == ["-m set --match-set KROUTE-6-CLUSTER-IP dst,dst -j KROUTE-MARK-MASQ"]
        assert "--match-set KROUTE-6-HAIRPIN " in rules["KROUTE-POSTROUTING"][0]

    def test_the_mark_is_the_one_of_the_settings(self) -> None:
        rules = chains(Settings("node3", masquerade_mark=0x10))
        assert rules["KROUTE-MARK-MASQ"] == ["-j MARK --set-xmark 0x10/0x10"]
        assert rules["KROUTE-POSTROUTING"][1:3] == [
            "-m mark ! --mark 0x10/0x10 -j RETURN",
            "-j MARK --set-xmark 0x10/0x0",
        ]

    def test_without_random_fully_in_the_kernel_it_is_not_asked_for(self) -> None:
        rules = chains(Settings("node3"), random_fully=False)
        assert rules["KROUTE-POSTROUTING"][-1] == "-j MASQUERADE"

    def test_every_set_has_room_for_250_000_entries_and_a_name_that_the_kernel_takes(self) -> None:
        definitions = set_definitions()
        assert len(definitions) == 6
        assert all(definition.maxelem >= 250_000 and len(definition.name) <= 31 for definition in definitions)


async def serving(tmp_path: Path, **settings: object) -> FakeNode:
    node = FakeNode(tmp_path, **settings)
    await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"), server("fd00::1", 80, "fd00:1::1")))
    return node


def rules_in(node: FakeNode, family: int = socket.AF_INET) -> dict[str, list[str]]:
    return node.kernel.table(family, "nat").chains


async def test_each_family_has_its_sets_filled(tmp_path: Path) -> None:
    node = await serving(tmp_path, cluster_cidrs=("172.20.0.0/16", "fd00:172::/32"))
    assert {name: each.elements for name, each in node.kernel.sets.items()} == {
        "KROUTE-CLUSTER-IP": {("10.96.0.1", 6, 80)},
        "KROUTE-HAIRPIN": {("10.1.0.1", 6, 8080, "10.1.0.1")},
        "KROUTE-CLUSTER-CIDR": {("172.20.0.0/16",)},
        "KROUTE-6-CLUSTER-IP": {("fd00::1", 6, 80)},
        "KROUTE-6-HAIRPIN": {("fd00:1::1", 6, 8080, "fd00:1::1")},
        "KROUTE-6-CLUSTER-CIDR": {("fd00:172::/32",)},
    }


async def test_a_cluster_network_of_length_zero_is_two_halves(tmp_path: Path) -> None:
    node = await serving(tmp_path, cluster_cidrs=("0.0.0.0/0",))
    assert node.kernel.sets["KROUTE-CLUSTER-CIDR"].elements == {("0.0.0.0/1",), ("128.0.0.0/1",)}


async def test_sets_are_filled_before_rules_look_into_them(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    writes = [str(write) for write in node.kernel.writes]
    first_rule = writes.index("commit table nat")
    assert all(writes.index(entry) < first_rule for entry in writes if "to set" in entry)


async def test_the_number_of_rules_does_not_depend_on_that_of_the_services(tmp_path: Path) -> None:
    node = await serving(tmp_path, masquerade_all=True)
    before = sum(len(rules) for rules in rules_in(node).values())
    await node.apply(*(plan(f"s{i}", 2, server(f"10.96.1.{i}", 80, f"10.1.1.{i}")) for i in range(50)))
    assert sum(len(rules) for rules in rules_in(node).values()) == before


async def test_an_entry_that_two_services_need_stays_for_the_second(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    await node.apply(plan("other", 2, server("10.96.0.2", 80, "10.1.0.1")))
    await node.apply(plan("web", 3))
    assert node.kernel.sets["KROUTE-HAIRPIN"].elements == {("10.1.0.1", 6, 8080, "10.1.0.1")}


async def test_entries_leave_when_the_address_is_gone(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.broadcaster.publish([plan("web", 2)])
    await node.masquerade.step()
    assert ("10.96.0.1", 6, 80) in node.kernel.sets["KROUTE-CLUSTER-IP"].elements
    await node.service_proxy.step()
    await node.masquerade.step()
    assert node.kernel.sets["KROUTE-CLUSTER-IP"].elements == set()


async def test_a_plan_is_not_prepared_while_an_entry_of_it_is_refused(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.refuse(lambda change: isinstance(change, AddEntry), errno.ENOMEM)
    new = plan("new", 2, server("10.96.0.2", 80))
    await node.apply(new)
    assert not node.milestones.has_reached(new, Stage.ENTRIES_PREPARED)
    node.kernel.accept_all()
    await node.wait(1)
    assert node.milestones.has_reached(new, Stage.ENTRIES_PREPARED)


async def test_flushed_rules_are_back_after_the_audit(tmp_path: Path) -> None:
    node = await serving(tmp_path, masquerade_all=True)
    before = {name: list(rules) for name, rules in rules_in(node).items()}
    for rules in rules_in(node).values():
        rules.clear()
    await node.audit()
    assert rules_in(node) == before
    assert node.masquerade.statistics().repairs == 6


async def test_flushed_sets_and_lost_entries_are_back_after_the_audit_and_strays_gone(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.sets["KROUTE-HAIRPIN"].elements.clear()
    node.kernel.sets["KROUTE-CLUSTER-IP"].elements.add(("192.0.2.1", 6, 22))
    del node.kernel.sets["KROUTE-6-CLUSTER-IP"]
    node.kernel.writes.clear()
    await node.audit()
    assert AddEntry("KROUTE-HAIRPIN", ("10.1.0.1", 6, 8080, "10.1.0.1")) in node.kernel.writes
    assert DeleteEntry("KROUTE-CLUSTER-IP", ("192.0.2.1", 6, 22)) in node.kernel.writes
    assert node.kernel.sets["KROUTE-6-CLUSTER-IP"].elements == {("fd00::1", 6, 80)}


async def test_a_set_that_is_too_small_is_made_anew(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.sets["KROUTE-HAIRPIN"] = FakeSet(SetDefinition("KROUTE-HAIRPIN", "hash:ip,port,ip", maxelem=100))
    node = await FakeNode(tmp_path, kernel).start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    assert kernel.sets["KROUTE-HAIRPIN"].definition.maxelem > 100
    assert len(kernel.sets["KROUTE-HAIRPIN"].elements) == 1
    assert "-j KROUTE-POSTROUTING" in rules_in(node)["POSTROUTING"][0]


async def test_changed_settings_change_the_rules_at_the_next_start(tmp_path: Path) -> None:
    node = await serving(tmp_path, masquerade_all=True)
    node = node.restarted(masquerade_all=False)
    await node.start()
    assert rules_in(node)["KROUTE-SERVICES"] == []


async def test_foreign_rules_and_sets_stay(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.table(socket.AF_INET, "nat").chains["CNI"] = ["-j RETURN"]
    kernel.table(socket.AF_INET, "nat").chains["POSTROUTING"].append("-j CNI")
    kernel.sets["cni"] = FakeSet(SetDefinition("cni", "hash:ip"), {("192.0.2.1",)})
    node = await FakeNode(tmp_path, kernel).start(plan("web", 1, server("10.96.0.1", 80)))
    await node.audit()
    assert rules_in(node)["POSTROUTING"][1:] == ["-j CNI"]
    await node.cleanup()
    assert (rules_in(node)["POSTROUTING"], rules_in(node)["CNI"]) == (["-j CNI"], ["-j RETURN"])
    assert list(kernel.sets) == ["cni"]


async def test_a_family_without_tables_is_told_of_once_and_does_not_block_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(tmp_path)
    ipv6 = node.masquerade._xtables[IPV6]

    async def no_table(*_: object) -> list[str]:
        raise KernelError("ip6tables table nat: no such table; load the module ip6table_nat")

    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(ipv6, "ensure", no_table)
        new = plan("web", 1, server("10.96.0.1", 80))
        await node.start(new)
        await node.audit()
        await node.audit()
    [line] = [line for line in logs if line["event"] == "rules.failed"]
    assert line["family"] == "IPv6"
    assert "KROUTE-SERVICES" in rules_in(node)
    assert node.milestones.has_reached(new, Stage.ENTRIES_PREPARED)
    await node.audit()
    assert "KROUTE-SERVICES" in rules_in(node, socket.AF_INET6)


async def test_at_first_no_plan_is_prepared_before_the_rules_are_there_and_later_an_audit_delays_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(tmp_path)
    ipv4 = node.masquerade._xtables[IPV4]
    prepared: list[bool] = []
    ensure, newest = ipv4.ensure, plan("web", 1, server("10.96.0.1", 80))

    async def look(rules: object) -> list[str]:
        prepared.append(node.milestones.has_reached(newest, Stage.ENTRIES_PREPARED))
        return await ensure(rules)

    monkeypatch.setattr(ipv4, "ensure", look)
    await node.start(newest)
    newest = plan("new", 2, server("10.96.0.2", 80))
    node.broadcaster.publish([newest])
    await node.audit()
    assert prepared == [False, True]
