"""Rules of iptables-nft in the words of iptables-save; tests/kernel/test_iptables_nft.py has the tool write them."""

import socket
import struct

import pytest

from kroute.kernel.iptables.nft_rules import deletion_of, read_rules
from kroute.kernel.iptables.tools import SavedTable
from kroute.kernel.netlink.message import attribute, text
from kroute.kernel.nftables import expressions as e
from kroute.kernel.nftables.objects import (
    AddChain,
    AddRule,
    AddTable,
    Chain,
    DeleteChain,
    DeleteRule,
    FlushChain,
    NftRule,
    Table,
)
from tests.fakes.kernel import FakeKernel
from tests.fakes.nftables import FakeNftables

NAT, NAT6 = Table(socket.AF_INET, "nat"), Table(socket.AF_INET6, "nat")
PREROUTING = Chain("PREROUTING", "nat", "prerouting", -100)
JUMP = e.verdict(e.VerdictCode.JUMP, "KUBE-SERVICES")


def envelope(kind: str, name: str, said: bytes = b"") -> bytes:
    """A match or target of x_tables in nf_tables."""
    parts = text(1, name) + attribute(2, bytes(4)) + attribute(3, said)
    return attribute(1, text(1, kind) + attribute(2, parts))


def comment(of: bytes) -> bytes:
    return envelope("match", "comment", of.ljust(256, b"\0"))


def ipvs(*, reply: bool = False) -> bytes:
    return envelope("match", "ipvs", bytes(34) + bytes((0, 0, 0, 0, 0x10 if reply else 0, 0x30)))


MARK = envelope("target", "MARK", struct.pack("=II", 0x2BA7, 0xFFFFFFFF))
TO = e.payload(1, e.Header.NETWORK, 16, 4), e.compare(1, socket.inet_aton("203.0.113.9"))
TO_16 = TO[0], e.bitwise(1, b"\xff\xff\0\0", bytes(4)), e.compare(1, b"\x0a\0\0\0")
FROM_8 = e.payload(9, e.Header.NETWORK, 12, 1), e.compare(9, b"\x0a", equal=False)
TCP = e.meta(1, e.Meta.L4PROTO), e.compare(1, b"\x06")
PORT = e.payload(1, e.Header.TRANSPORT, 2, 2), e.compare(1, struct.pack("!H", 80))
XT_TCP = struct.pack("=HHHHBBBB", 0, 65535, 80, 80, 0, 0, 0, 0)
XT_SCTP = struct.pack("=HHHH272xiII", 80, 80, 0, 0, 0, 2, 0)
"""Of the ports it has flags, too: which are asked for, and which are negated."""


async def read(*rules: NftRule, table: Table = NAT, chains: tuple[Chain, ...] = ()) -> SavedTable:
    kernel = FakeKernel()
    async with FakeNftables(kernel) as nftables:
        changes = [AddTable(), *map(AddChain, (PREROUTING, Chain("KUBE-SERVICES"), *chains)), *map(AddRule, rules)]
        assert await nftables.transact(table, changes) == []
        found = await read_rules(nftables, table, lambda chain: chain.startswith("KUBE-"))
    assert found is not None
    assert found[0] == kernel.nft.generation
    return found[1]


@pytest.mark.parametrize(
    ("expressions", "words"),
    [
        ((JUMP,), "-j KUBE-SERVICES"),
        ((e.verdict(e.VerdictCode.GOTO, "KUBE-SERVICES"),), "-g KUBE-SERVICES"),
        ((e.counter(), e.verdict(e.VerdictCode.RETURN)), "-j RETURN"),
        ((comment(b"two words"), e.counter(), JUMP), '-m comment --comment "two words" -j KUBE-SERVICES'),
        ((comment(b'a "b" \\'), JUMP), '-m comment --comment "a \\"b\\" \\\\" -j KUBE-SERVICES'),
        ((comment(b"\xff"), JUMP), '-m comment --comment "\ufffd" -j KUBE-SERVICES'),
        (
            (*TCP, *TO, *PORT, e.counter(), MARK),
            "-p tcp -d 203.0.113.9/32 --dport 80 -j MARK --set-xmark 0x2ba7/0xffffffff",
        ),
        (
            (*TO, *TCP, envelope("match", "tcp", XT_TCP), MARK),
            "-d 203.0.113.9/32 -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x2ba7/0xffffffff",
        ),
        ((envelope("match", "tcp", XT_TCP[:-1] + b"\x02"), MARK), "-m tcp -j MARK --set-xmark 0x2ba7/0xffffffff"),
        ((envelope("match", "sctp", XT_SCTP), JUMP), "-m sctp --dport 80 -j KUBE-SERVICES"),
        ((envelope("match", "sctp", XT_SCTP[:-4] + b"\x02\0\0\0"), JUMP), "-m sctp -j KUBE-SERVICES"),
        ((*TO_16, JUMP), "-d 10.0.0.0/16 -j KUBE-SERVICES"),
        ((*FROM_8, JUMP), "! -s 10.0.0.0/8 -j KUBE-SERVICES"),
        ((e.payload(1, e.Header.NETWORK, 1, 1), e.compare(1, b"\x0a"), JUMP), "-j KUBE-SERVICES"),
        ((e.meta(1, e.Meta.IIFNAME), e.compare(1, b"cbr0\0"), JUMP), "-i cbr0 -j KUBE-SERVICES"),
        (
            (ipvs(), comment(b""), envelope("target", "SNAT")),
            '-m ipvs --vdir ORIGINAL --vmethod MASQ -m comment --comment "" -j SNAT',
        ),
        ((ipvs(reply=True), JUMP), "-m ipvs --vdir REPLY --vmethod MASQ -j KUBE-SERVICES"),
        (
            (envelope("match", "set", b"\3\0\1\2"), envelope("match", "set", b"\4\0\1\1"), JUMP),
            "-m set --match-set #3 src -m set ! --match-set #4 dst -j KUBE-SERVICES",
        ),
        ((envelope("match", "conntrack", bytes(100)), JUMP), "-m conntrack -j KUBE-SERVICES"),
        # what is cut short or unknown is left out, and the verdict stays
        ((envelope("match", "ipvs", b"\0"), envelope("match", "udp", b"\0"), JUMP), "-m ipvs -m udp -j KUBE-SERVICES"),
        ((TO[0], e.compare(1, bytes(17)), e.compare(2, b"\0"), JUMP), "-j KUBE-SERVICES"),
        ((envelope("target", "MARK", b"\0"),), ""),
    ],
)  # fmt: skip
async def test_a_rule_is_told_in_the_words_of_iptables_save(expressions: tuple[bytes, ...], words: str) -> None:
    [rule] = (await read(NftRule("PREROUTING", expressions))).rules
    assert rule.text == f"PREROUTING {words}".strip()
    assert rule.target == words.rpartition("-j " if "-j " in words else "-g ")[2].partition(" ")[0]


async def test_a_comment_of_nfts_own_is_one_of_iptables_too() -> None:
    [rule] = (await read(NftRule("PREROUTING", (JUMP,), "kubernetes service portals"))).rules
    assert rule.text == 'PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES'


async def test_addresses_of_ipv6_are_at_other_places() -> None:
    to = e.payload(1, e.Header.NETWORK, 24, 16), e.compare(1, socket.inet_pton(socket.AF_INET6, "2001:db8::9"))
    [rule] = (await read(NftRule("PREROUTING", (*to, JUMP)), table=NAT6)).rules
    assert (rule.after("-d"), rule.target) == ("2001:db8::9/128", "KUBE-SERVICES")


async def test_of_other_chains_only_the_jumps_to_theirs_are_kept() -> None:
    chains = (Chain("DOCKER"), Chain("KUBE-SEP-1"), Chain("prerouting", "nat", "prerouting", -90))
    table = await read(
        NftRule("KUBE-SERVICES", (e.verdict(e.VerdictCode.GOTO, "KUBE-SEP-1"),)),
        NftRule("KUBE-SEP-1", (envelope("target", "DNAT"),)),
        NftRule("KUBE-SEP-1", ()),
        NftRule("DOCKER", (JUMP,)),
        NftRule("prerouting", (JUMP,)),
        NftRule("PREROUTING", (e.verdict(e.VerdictCode.JUMP, "DOCKER"),)),
        chains=chains,
    )
    assert table.policies == {"PREROUTING": "ACCEPT"}
    assert set(table.chains) == {"KUBE-SERVICES", "DOCKER", "KUBE-SEP-1", "prerouting"}
    assert [rule.text for rule in table.rules] == ["PREROUTING -j DOCKER"]
    assert sorted(table.jumps) == [
        ("DOCKER", "KUBE-SERVICES"), ("KUBE-SERVICES", "KUBE-SEP-1"), ("prerouting", "KUBE-SERVICES"),
    ]  # fmt: skip
    assert table.targets_of({"DOCKER", "PREROUTING"}) == {"KUBE-SERVICES", "DOCKER"}


async def test_a_deletion_names_rules_by_handle_and_empties_chains_before_any_is_deleted() -> None:
    [rule] = (await read(NftRule("PREROUTING", (JUMP,)))).rules
    assert deletion_of([rule], ["A", "B"]) == [
        DeleteRule("PREROUTING", rule.handle), FlushChain("A"), FlushChain("B"), DeleteChain("A"), DeleteChain("B"),
    ]  # fmt: skip


async def test_a_table_that_is_not_there_has_no_rules() -> None:
    async with FakeNftables(FakeKernel()) as nftables:
        assert await read_rules(nftables, NAT, lambda _: True) is None
