"""Rules on a real kernel: foreign rules are untouched, and python-iptables' traps are avoided."""

import fcntl
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.ipset import SetDefinition
from kroute.kernel.iptables.xtables import TableRules, Xtables
from tests.kernel.contracts_tables import RULES
from tests.kernel.nodes import RealNode, run

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


@pytest.fixture
async def xtables(node: RealNode) -> AsyncIterator[Xtables]:
    await node.ipset.create(SetDefinition("CLUSTER-IP", "hash:ip,port"))
    async with Xtables() as opened:
        yield opened


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
    assert "[11:22] -A KROUTE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000" in saved()


async def test_iptables_prints_the_rules_as_they_were_given(xtables: Xtables) -> None:
    await xtables.ensure(RULES)
    printed = {line.partition("] ")[2] for line in saved() if line.startswith("[")}
    wanted = {f"-A {chain} {rule}" for chain, rules in RULES.chains.items() for rule in rules}
    assert printed == wanted | {f"-A {chain} {rule}" for chain, rule in RULES.jumps}


async def test_both_families_have_the_same_rules_in_one_process(node: RealNode) -> None:
    rules = TableRules("nat", {"KROUTE-POSTROUTING": ("-j MASQUERADE --random-fully",)}, ())
    for family, command in ((socket.AF_INET, "iptables-legacy-save"), (socket.AF_INET6, "ip6tables-legacy-save")):
        async with Xtables(family) as xtables:
            await xtables.ensure(rules)
            assert await xtables.differences(rules) == []
        assert "-A KROUTE-POSTROUTING -j MASQUERADE --random-fully" in run(f"{command} -t nat")


async def test_no_other_table_comes_into_being(node: RealNode) -> None:
    async with Xtables() as xtables:
        await xtables.ensure(TableRules("nat", {"KROUTE-X": ("-j RETURN",)}, [("OUTPUT", "-j KROUTE-X")]))
        assert await xtables.remove("mangle", "KROUTE-") == []
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
    async with Xtables(family) as xtables:
        await xtables.ensure(wanted)
        assert await xtables.differences(wanted) == []
    printed = run(f"{command} -S KROUTE-X").splitlines()[1:]
    assert [line.removeprefix("-A KROUTE-X ") for line in printed] == list(rules)
    run(f"{command} -F KROUTE-X")
    for rule in rules:
        run(f"{command} -A KROUTE-X {rule}")
    async with Xtables(family) as xtables:
        assert await xtables.differences(wanted) == []


async def test_a_lock_held_by_another_is_waited_for_and_then_reported(node: RealNode, tmp_path: Path) -> None:
    path = tmp_path / "xtables.lock"
    rules = TableRules("nat", {"KROUTE-X": ("-j RETURN",)}, ())
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    async with Xtables(lock_path=path, lock_timeout=0.2) as xtables:
        with pytest.raises(KernelError, match="another program holds the xtables lock"):
            await xtables.ensure(rules)
        os.close(descriptor)
        assert await xtables.ensure(rules) == ["chain KROUTE-X is missing"]


async def test_a_table_that_the_kernel_lacks_is_an_error_with_a_next_step(node: RealNode) -> None:
    async with Xtables() as xtables:
        with pytest.raises(KernelError, match="load the module iptable_nosuch"):
            await xtables.ensure(TableRules("nosuch", {"KROUTE-X": ()}, ()))


async def test_an_unknown_option_is_an_error_that_names_the_table(xtables: Xtables) -> None:
    with pytest.raises(KernelError, match="table nat"):
        await xtables.ensure(TableRules("nat", {"KROUTE-X": ("-j MARK --no-such-option 1",)}, ()))
    assert await xtables.differences(TableRules("nat", {}, ())) == []


async def test_standard_output_stays_where_it_is(xtables: Xtables, capfd: pytest.CaptureFixture[str]) -> None:
    before = os.fstat(1)
    await xtables.ensure(RULES)
    assert os.fstat(1) == before
    assert capfd.readouterr().out == ""


async def test_a_table_that_changes_meanwhile_is_read_again(xtables: Xtables) -> None:
    """Another program, without the lock, writes between our read and our commit."""
    from kroute.kernel.iptables.table import OpenTable

    seen: list[int] = []

    def work(table: OpenTable) -> int:
        if not seen:
            run("iptables-legacy -t nat -A OUTPUT -j ACCEPT")
        seen.append(len(table.create_missing({"KROUTE-X": ()})))
        table.commit()
        return len(seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XTABLES_LOCKFILE", "/run/xtables.other.lock")
        assert await xtables._in_thread(lambda: xtables._locked("nat", work)) == 2
    assert {"-A OUTPUT -j ACCEPT", ":KROUTE-X - [0:0]"} <= {line.removeprefix("[0:0] ") for line in saved()}


async def test_a_set_that_vanishes_between_the_check_and_the_rule_is_an_error_of_the_kernel(
    xtables: Xtables, node: RealNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = xtables._check

    async def check_and_destroy(rules: TableRules) -> None:
        await check(rules)
        await node.ipset.destroy("CLUSTER-IP")

    monkeypatch.setattr(xtables, "_check", check_and_destroy)
    with pytest.raises(KernelError, match=r"cannot make a rule of iptables table nat: .*CLUSTER-IP"):
        await xtables.ensure(RULES)
