"""State that only other programs write, as a migration reads and deletes it: fwmark servers, policy routing, rules."""

import socket

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.iptables.tools import VARIANTS, Variant, delete, save
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.ipvs.objects import DeleteMarkServer
from kroute.kernel.net.addresses import Addresses
from kroute.kernel.net.policy_routing import PolicyRouting
from tests.kernel.nodes import RealNode, run

LEGACY = Variant(socket.AF_INET, "legacy")


async def test_virtual_servers_of_marks_are_read_and_deleted(node: RealNode) -> None:
    run("ipvsadm -A -f 7 -s rr")
    run("ipvsadm -A -f 8 -6 -s rr")
    run("ipvsadm -A -t 10.0.0.1:80 -s rr")
    async with Ipvs() as ipvs:
        marks = await ipvs.marks()
        assert marks == [(socket.AF_INET, 7), (socket.AF_INET6, 8)]
        gone = DeleteMarkServer(socket.AF_INET, 9)
        assert await ipvs.delete_marks([*(DeleteMarkServer(*each) for each in marks), gone]) == []
        assert await ipvs.marks() == []
    assert list(await node.ipvs.read()) == [(6, "10.0.0.1", 80)]


async def test_one_rule_and_one_route_are_deleted_among_others(node: RealNode) -> None:
    before = run("ip rule") + run("ip -6 rule")
    run("ip rule add prio 32764 fwmark 0x1234 table 78")
    run("ip -6 rule add prio 32764 fwmark 0x1234 table 78")
    run("ip rule add prio 32764 fwmark 0x1235 table 78")
    run("ip route add local default dev lo table 78")
    run("ip route add 203.0.113.9 dev d0 table 79")
    run("ip -6 route add local default dev lo table 78")
    async with PolicyRouting() as routing:
        rules = [rule for rule in await routing.rules() if rule.table == 78]
        assert [str(rule) for rule in rules] == [
            "IPv4 rule 32764 fwmark 0x1234 lookup 78",
            "IPv4 rule 32764 fwmark 0x1235 lookup 78",
            "IPv6 rule 32764 fwmark 0x1234 lookup 78",
        ]
        routes = await routing.routes({78, 79})
        assert [str(route) for route in routes] == [
            "IPv4 route local default dev lo table 78",
            "IPv4 route 203.0.113.9/32 dev d0 table 79",
            "IPv6 route local default dev lo table 78",
        ]
        assert await routing.delete([rules[0], rules[2], *routes]) == []
        assert await routing.delete([rules[0], *routes]) == []
        assert await routing.routes({78, 79}) == []
    assert "0x1235" in run("ip rule")
    run("ip rule del fwmark 0x1235")
    assert run("ip rule") + run("ip -6 rule") == before


@pytest.mark.legacy
async def test_rules_are_deleted_by_their_text_and_all_or_none(node: RealNode) -> None:
    run("iptables-legacy -t nat -N THEIRS")
    run("iptables-legacy -t nat -A THEIRS -j RETURN")
    run("iptables-legacy -t nat -A PREROUTING -m comment --comment 'two words' -j THEIRS")
    run("iptables-legacy -t nat -A PREROUTING -s 192.0.2.1 -j ACCEPT")
    before = await save(LEGACY)
    assert before is not None
    jump = 'PREROUTING -m comment --comment "two words" -j THEIRS'
    assert f"-A {jump}" in before
    with pytest.raises(KernelError, match="iptables-legacy-restore failed"):
        await delete(LEGACY, "nat", [jump, "PREROUTING -s 192.0.2.9/32 -j ACCEPT"], ["THEIRS"])
    assert jump in (await save(LEGACY) or "")
    await delete(LEGACY, "nat", [jump], ["THEIRS"])
    after = await save(LEGACY)
    assert after is not None
    assert "THEIRS" not in after
    assert "-A PREROUTING -s 192.0.2.1/32 -j ACCEPT" in after


@pytest.mark.legacy
async def test_both_variants_of_both_families_can_be_looked_at(node: RealNode) -> None:
    assert [await save(variant) is not None for variant in VARIANTS] == [True] * 4
    assert await save(Variant(socket.AF_INET, "missing")) is None


async def test_link_local_addresses_of_a_link_are_nobodys(node: RealNode) -> None:
    run("ip link add d1 type dummy")
    run("ip link set d1 up")
    run("ip address add 10.96.0.1/32 scope link dev d1")
    run("ip address add fd00::1/128 dev d1")
    assert "fe80::" in run("ip -6 address show dev d1")
    async with Addresses() as addresses:
        assert await addresses.read("d1") == {"10.96.0.1", "fd00::1"}


async def test_an_address_on_two_links_stays_local_when_the_first_one_goes(node: RealNode) -> None:
    run("ip link add first type dummy")
    run("ip link add second type dummy")
    run("ip link set second up")
    for link in ("first", "second"):
        run(f"ip address add 10.96.0.1/32 dev {link}")
    run("ip route replace local 10.96.0.1 dev second table local proto kernel scope host src 192.168.9.1")
    run("ip link del first")
    assert run("ip route get 10.96.0.1").split()[:4] == ["local", "10.96.0.1", "dev", "lo"]
    assert "src 192.168.9.1" in run("ip route get 10.96.0.1")
