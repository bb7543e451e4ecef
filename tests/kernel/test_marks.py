"""The rules of other programs in nf_tables about the packet mark, as nft and iptables-nft write them."""

import pytest

from kroute.checks.neighbours import Use, uses_of_marks
from kroute.kernel.net.policy_routing import PolicyRouting
from kroute.kernel.nftables.client import Nftables
from tests.kernel.nodes import run

pytestmark = pytest.mark.nftables

ALL = 0xFFFFFFFF


async def uses() -> list[Use]:
    async with Nftables() as nftables, PolicyRouting() as routing:
        tables, rules = await nftables.tables(), await routing.rules()
        return await uses_of_marks(nftables, tables, rules, reads_legacy=False)


@pytest.mark.parametrize(
    ("rule", "value", "mask"),
    [
        ("meta mark set meta mark | 0x2000", 0x2000, 0x2000),
        ("meta mark set meta mark & 0xffffdfff", 0, 0x2000),
        ("meta mark set meta mark & 0xffff00ff | 0x100", 0x100, 0xFF00),
        ("meta mark set 0x539", 0x539, ALL),
        ("meta mark & 0x2000 == 0x2000 masquerade", 0x2000, 0x2000),
        ("meta mark & 0x2000 != 0 accept", 0, 0x2000),
        ("meta mark 0x3f0 masquerade", 0x3F0, ALL),
    ],
)
@pytest.mark.parametrize("family", ["ip", "ip6", "inet"])
async def test_a_rule_of_nft(namespace: None, family: str, rule: str, value: int, mask: int) -> None:
    run(f"nft add table {family} cni_hostport")
    run(f"nft add chain {family} cni_hostport masquerading {{ type nat hook postrouting priority 100; }}")
    run(f"nft add rule {family} cni_hostport masquerading {rule}")
    assert await uses() == [Use(f"chain masquerading of nft table {family} cni_hostport", value, mask)]


async def test_rules_of_iptables_nft_and_policy_rules(namespace: None) -> None:
    run("iptables-nft -t nat -N CNI-HOSTPORT-SETMARK")
    run("iptables-nft -t nat -A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000")
    run("iptables-nft -t nat -A CNI-HOSTPORT-SETMARK -m mark --mark 0x40/0x40 -j RETURN")
    run("ip rule add priority 100 fwmark 0x200/0xf00 lookup 2004")
    assert set(await uses()) == {
        Use("IPv4 rule 100 fwmark 0x200 lookup 2004", 0x200, 0xF00),
        Use("chain CNI-HOSTPORT-SETMARK of nft table ip nat", 0x2000, 0x2000),
        Use("chain CNI-HOSTPORT-SETMARK of nft table ip nat", 0x40, 0x40),
    }


async def test_rules_that_do_not_concern_the_packets_mark(namespace: None) -> None:
    run("nft add table ip of-others")
    run("nft add chain ip of-others f { type filter hook input priority 0; }")
    for rule in ("tcp dport 8192 accept", "meta nftrace set 1", "meta priority 0x2000 drop", "iif lo drop"):
        run(f"nft add rule ip of-others f {rule}")
    run("nft add table ip kroute")
    run("nft add chain ip kroute mark-masquerade")
    run("nft add rule ip kroute mark-masquerade meta mark set meta mark | 0x4000")
    assert await uses() == []
