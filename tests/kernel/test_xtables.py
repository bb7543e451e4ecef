"""Rules on a real kernel, by the real tools: foreign rules are untouched, and each failure is an error in words."""

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import SetDefinition
from kroute.kernel.iptables.tools import Variant
from kroute.kernel.iptables.xtables import TableRules, Xtables
from tests.kernel.contracts_tables import RULES
from tests.kernel.nodes import RealNode, run
from tests.lab.xtables_lock import held

pytestmark = pytest.mark.legacy

FOREIGN = """
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:FOREIGN - [0:0]
[3:180] -A PREROUTING -p tcp -m tcp --dport 80 -m comment --comment "first of two" -j FOREIGN
[0:0] -A PREROUTING -m addrtype --dst-type LOCAL -j RETURN
[7:420] -A FOREIGN -s 10.0.0.0/8 -i eth+ -p tcp -j DNAT --to-destination 10.0.0.1:80
[0:0] -A POSTROUTING ! -o lo -j MASQUERADE
COMMIT
"""


def legacy(family: int = socket.AF_INET) -> Xtables:
    return Xtables(Variant(family, "legacy"))


@pytest.fixture
async def xtables(node: RealNode) -> Xtables:
    await node.ipset.create(SetDefinition("CLUSTER-IP", "hash:ip,port"))
    return legacy()


def saved() -> list[str]:
    return [line for line in run("iptables-legacy-save -c -t nat").splitlines() if not line.startswith("#")]


async def test_foreign_rules_stay_byte_for_byte_with_their_counters(xtables: Xtables, tmp_path: Path) -> None:
    """Counters of a built-in chain's policy are not compared: every commit resets them, iptables' own too."""
    (tmp_path / "foreign").write_text(FOREIGN)
    run(f"iptables-legacy-restore -c {tmp_path / 'foreign'}")
    before = saved()
    await xtables.ensure(RULES)
    assert [line for line in saved() if "KROUTE" not in line] == before
    await xtables.remove("nat", "KROUTE-")
    assert saved() == before


async def test_rules_that_are_right_keep_their_counters(xtables: Xtables) -> None:
    await xtables.ensure(RULES)
    run("iptables-legacy -t nat -Z")
    run("iptables-legacy -t nat -R KROUTE-MARK-MASQ 1 -j MARK --set-xmark 0x4000/0x4000 -c 11 22")
    assert await xtables.ensure(RULES) == []
    counted = "[11:22] -A KROUTE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000"
    assert counted in saved()
    counts = await xtables.packets("nat")
    assert counts["KROUTE-MARK-MASQ"] == [11]
    assert {chain: len(rules) for chain, rules in counts.items()} == {it: len(RULES.chains[it]) for it in RULES.chains}
    run("iptables-legacy -t nat -F KROUTE-SERVICES")
    assert await xtables.ensure(RULES) == ["chain KROUTE-SERVICES has other rules"]
    assert counted in saved()


async def test_iptables_prints_the_rules_as_they_were_given(xtables: Xtables) -> None:
    await xtables.ensure(RULES)
    printed = {line.partition("] ")[2] for line in saved() if line.startswith("[")}
    wanted = {f"-A {chain} {rule}" for chain, rules in RULES.chains.items() for rule in rules}
    assert printed == wanted | {f"-A {chain} {rule}" for chain, rule in RULES.jumps}


async def test_both_families_have_the_same_rules_in_one_process(node: RealNode) -> None:
    rules = TableRules("nat", {"KROUTE-POSTROUTING": ("-j MASQUERADE --random-fully",)}, ())
    for family, command in ((socket.AF_INET, "iptables-legacy-save"), (socket.AF_INET6, "ip6tables-legacy-save")):
        await legacy(family).ensure(rules)
        assert await legacy(family).differences(rules) == []
        assert "-A KROUTE-POSTROUTING -j MASQUERADE --random-fully" in run(f"{command} -t nat")


async def test_no_other_table_comes_into_being(node: RealNode) -> None:
    await legacy().ensure(TableRules("nat", {"KROUTE-X": ("-j RETURN",)}, [("OUTPUT", "-j KROUTE-X")]))
    assert await legacy().remove("mangle", "KROUTE-") == []
    assert run("cat /proc/net/ip_tables_names").split() == ["nat"]


INTERFACE_RULES = ("-i d0 -j ACCEPT", "! -o eth+ -p tcp -m tcp --dport 80 -j ACCEPT", "-p sctp -j RETURN")


@pytest.mark.parametrize(
    ("family", "command", "rules"),
    [
        (socket.AF_INET, "iptables-legacy", (*INTERFACE_RULES, "! -s 10.0.0.0/8 -d 10.1.0.1/32 -j DROP")),
        (
            socket.AF_INET6,
            "ip6tables-legacy",
            (*INTERFACE_RULES, "! -s fd00::/64 -d fd01::1/128 -p ipv6-icmp -j DROP"),
        ),
    ],
    ids=["ipv4", "ipv6"],
)
async def test_interfaces_protocols_and_networks(
    node: RealNode, family: int, command: str, rules: tuple[str, ...]
) -> None:
    wanted = TableRules("filter", {"KROUTE-X": rules}, ())
    await legacy(family).ensure(wanted)
    assert await legacy(family).differences(wanted) == []
    printed = run(f"{command} -S KROUTE-X").splitlines()[1:]
    assert [line.removeprefix("-A KROUTE-X ") for line in printed] == list(rules)
    run(f"{command} -F KROUTE-X")
    for rule in rules:
        run(f"{command} -A KROUTE-X {rule}")
    assert await legacy(family).differences(wanted) == []


async def test_a_lock_held_by_another_is_waited_for_and_then_reported(
    node: RealNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "lock"))
    rules = TableRules("nat", {"KROUTE-X": ("-j RETURN",)}, ())
    with held(tmp_path / "lock"):
        with pytest.raises(KernelError, match="currently holding the xtables lock") as refused:
            await legacy().ensure(rules)
        assert refused.value.errno == errno.EAGAIN
        writing = asyncio.create_task(legacy().ensure(rules))
        assert await legacy().differences(rules) == ["chain KROUTE-X is missing"]
    assert await writing == ["chain KROUTE-X is missing"]


async def test_a_lock_that_cannot_be_made_is_named(node: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", "/nonexistent/lock")
    with pytest.raises(KernelError, match="/nonexistent/lock"):
        await legacy().ensure(TableRules("nat", {"KROUTE-X": ()}, ()))


async def test_a_table_that_the_kernel_lacks_is_an_error_with_a_next_step(node: RealNode) -> None:
    with pytest.raises(KernelError, match="load the module iptable_nosuch"):
        await legacy().ensure(TableRules("nosuch", {"KROUTE-X": ()}, ()))


async def test_a_rule_that_the_tool_cannot_make_is_named_and_nothing_is_written(xtables: Xtables) -> None:
    with pytest.raises(KernelError, match="no-such-option"):
        await xtables.ensure(TableRules("nat", {"KROUTE-X": ("-j MARK --no-such-option 1",)}, ()))
    assert await xtables.chains("nat") == []


@pytest.mark.nftables
async def test_in_the_tables_of_iptables_nft_rules_are_written_and_removed_as_in_legacy_ones(
    node: RealNode, namespace: None
) -> None:
    nft = Xtables(Variant(socket.AF_INET6, "nft"))
    rules = TableRules(
        "filter",
        {"KROUTE-FORWARD": ('-m mark --mark 0x1/0x1 -m comment --comment "two words" -j ACCEPT',)},
        (("FORWARD", '-m comment --comment "kroute: jump" -j KROUTE-FORWARD'),),
        frozenset({"FORWARD"}),
    )
    assert not await nft.is_used("filter")
    assert len(await nft.ensure(rules)) == 2
    for command in ("-N DOCKER", "-I FORWARD -j DOCKER"):
        run(f"ip6tables-nft {command}")
    before = await nft.digest(["filter", "nat"])
    assert await nft.differences(rules) == []
    run("ip6tables-nft -I FORWARD -p tcp -j DROP")
    assert await nft.digest(["filter", "nat"]) != before
    assert await nft.ensure(rules) == ["the jumps of FORWARD are not first"]
    assert await nft.ensure(rules) == []
    assert sorted(await nft.remove("filter", "KROUTE-")) == ["chain KROUTE-FORWARD", "jump from FORWARD"]
    assert "DOCKER" in run("ip6tables-nft-save -t filter")
    run("nft flush ruleset")
