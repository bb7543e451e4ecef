"""What `kroute check` says of packet marks that other programs use, from iptables-save's text and the policy rules.

tests/kernel/test_marks.py has rules of nf_tables, which the kernel gives back. Those about marks of connections are
here: the lab's kernels have none.
"""

import struct
from collections.abc import Callable
from socket import AF_INET
from typing import TypeVar

import pytest

from kroute.checks import neighbours
from kroute.checks.finding import Finding, Level
from kroute.checks.neighbours import Use, check_marks, uses_of_marks
from kroute.kernel.iptables.tools import Variant
from kroute.kernel.net.policy_routing import PolicyRule
from kroute.kernel.net.steering import TABLE
from kroute.kernel.netlink.message import attribute, text
from kroute.kernel.nftables.expressions import Ct, Meta, compare, ct, number, register, set_meta
from kroute.kernel.nftables.objects import Chain, NftRule, Table
from tests.builders import settings

T = TypeVar("T")
BIT = 0x2000
SAVED = f"""\
*nat
:CNI-HOSTPORT-SETMARK - [0:0]
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd mark" -j MARK --set-xmark {BIT:#x}/{BIT:#x}
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KROUTE-MARK -j MARK --set-xmark 0x4000/0x4000
-A AWS-CONNMARK-CHAIN-0 -m connmark --mark {BIT:#x} -j RETURN
-A PREROUTING -m comment --comment "AWS, primary ENI" -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80
-A OUTPUT -j CONNMARK --save-mark --nfmask 0x40 --ctmask 0x40
-A cali-INPUT -m mark ! --mark 0x0/0xfff00000 -j RETURN
-A TPROXY -m mark --mark 0x539 -j RETURN
-A TPROXY -m mark --mark what -j RETURN
COMMIT
"""


@pytest.fixture(autouse=True)
def legacy_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What iptables-save prints of the legacy tables of IPv4."""

    async def save(variant: Variant, table: str = "") -> str | None:
        assert not table
        return SAVED if variant == Variant(AF_INET, "legacy") else None

    monkeypatch.setattr(neighbours, "save", save)


class NftTable:
    """A table of another program, with one rule."""

    def __init__(self, *expressions: bytes) -> None:
        self._rule = NftRule("others", expressions)

    async def rules(
        self, table: Table, keep: Callable[[int, NftRule], T | None]
    ) -> tuple[int, dict[str, Chain], list[T]] | None:
        kept = keep(1, self._rule)
        return 1, {}, [kept] if kept is not None else []


async def found(mark: int, *policy_rules: PolicyRule, reads_legacy: bool = True, **changed: object) -> Finding:
    uses = await uses_of_marks(NftTable(), (), policy_rules, reads_legacy=reads_legacy)
    [finding] = check_marks(settings(direct_return=True, direct_return_mark=mark, **changed), uses)
    return finding


@pytest.mark.parametrize(
    ("mark", "place"),
    [
        (BIT, "chain CNI-HOSTPORT-SETMARK of nat (IPv4 legacy)"),
        (0x80, "chain PREROUTING of nat (IPv4 legacy)"),
        (0x100000, "chain cali-INPUT of nat (IPv4 legacy)"),
        (0x8, "chain TPROXY of nat (IPv4 legacy)"),
    ],
    ids=["a bit that is set", "a bit that comes from the connection", "a bit that is tested", "a bit of a whole mark"],
)
async def test_the_place_of_another_use_is_named(mark: int, place: str) -> None:
    finding = await found(mark)
    assert (finding.level, place in finding.message) == (Level.WARNING, True)
    assert f"--direct-return-mark {mark:#x}" in finding.message
    assert "docs/neighbours.md" in finding.next_step


@pytest.mark.parametrize("mark", [0x2, 0x4, 0x40])
async def test_bits_that_nobody_names_and_marks_of_connections_are_free(mark: int) -> None:
    """Neither kroute's own rules count, nor those of kubelet, in which 0x4000 means what it means in kroute's."""
    finding = await found(mark)
    assert (finding.check, finding.level) == ("marks", Level.OK)


async def test_a_policy_rule_uses_a_mark_unless_kroute_made_the_rule() -> None:
    theirs = PolicyRule(AF_INET, 100, 0x200, 2004, mask=0xF00)
    assert "IPv4 rule 100 fwmark 0x200 lookup 2004" in (await found(0x100, theirs)).message
    for rule in (PolicyRule(AF_INET, 90, 0x4, TABLE, mask=0x4), PolicyRule(AF_INET, 32766, None, 254)):
        assert (await found(0x4, rule)).level is Level.OK


async def test_nothing_legacy_is_read_where_this_process_may_not() -> None:
    assert (await found(BIT, reads_legacy=False)).level is Level.OK


async def test_rules_of_nf_tables_about_marks_of_connections() -> None:
    def connmark(mode: int) -> bytes:
        content = text(1, "CONNMARK") + attribute(2, bytes(4)) + attribute(3, struct.pack("=IIIB3x", 0, 1, 0x80, mode))
        return attribute(1, text(1, "target") + attribute(2, content))

    restored = Use("chain others of nft table ip nat", 0, 0x80)
    of_connection = ct(register(0), Ct.MARK)
    for expressions, expected in {
        (connmark(2),): [restored],
        (connmark(1),): [],
        (of_connection, compare(register(0), number(BIT))): [],
        (of_connection, set_meta(Meta.MARK, register(0))): [],
        (b"not an expression", connmark(2)): [restored],
    }.items():
        tables = NftTable(*expressions)
        assert await uses_of_marks(tables, [("ip", "nat")], (), reads_legacy=False) == expected
        assert await uses_of_marks(tables, [("ip", "kroute")], (), reads_legacy=False) == []
        assert await uses_of_marks(tables, [("bridge", "nat")], (), reads_legacy=False) == []


def test_both_marks_are_looked_at_and_only_with_direct_return_the_second_one() -> None:
    uses = [Use(f"chain {name} of nat", 0, 0x4004) for name in ("a", "b", "c", "d", "d")]
    masquerade, direct = check_marks(settings(direct_return=True), uses)
    assert "--masquerade-mark 0x4000 is also a mark of another program: chain a of nat, " in masquerade.message
    assert direct.message.endswith("chain c of nat and 1 more")
    [only] = check_marks(settings(), uses)
    assert only == masquerade
