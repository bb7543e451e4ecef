"""What a file of tests leaves in the cluster that all share is found, and named with the file (tests/lab/guard.py)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import guard
from tests.lab.firewall import has_legacy, has_nf_tables
from tests.lab.guard import Guard
from tests.lab.topology import Place
from tests.lab.world import World

COMMANDS = (
    ("ip link add lab0 type dummy", "ip link del lab0", "links: + lab0 dummy down noarp mtu 1500"),
    ("ip address add 198.51.100.1/32 dev eth0", "ip address del 198.51.100.1/32 dev eth0", "addresses: + 198.51.100.1"),
    ("ip address add 2001:db8::1/128 dev eth0", "ip address del 2001:db8::1/128 dev eth0", "addresses: + 2001:db8::1"),
    ("ip route add 198.51.100.2 dev cbr0 table 77", "ip route flush table 77", "198.51.100.2/32 type 1 table 77"),
    ("ip rule add fwmark 7 table 77", "ip rule del fwmark 7", "rules of routing: + family 2"),
    ("ip link set veth2 mtu 1400", "ip link set veth2 mtu 1500", "links: + veth2 veth up mtu 1400"),
    (
        "sysctl -qw net.ipv4.conf.cbr0.rp_filter=2",
        "sysctl -qw net.ipv4.conf.cbr0.rp_filter=0",
        "cbr0 ipv4 setting 8 = 2",
    ),
    ("sysctl -qw net.ipv4.vs.conntrack=1", "sysctl -qw net.ipv4.vs.conntrack=0", "+ net/ipv4/vs/conntrack = 1"),
    ("ipvsadm -A -t 198.51.100.1:80", "ipvsadm -C", "virtual servers: + TCP  C6336401:0050"),
)
"""What is done to node1, how it is undone, and what is said about it."""
NFTABLES = (
    ("nft add table ip6 lab", "nft delete table ip6 lab", "firewall: + nft table of family 10: lab"),
    ("iptables-nft -t nat -A OUTPUT -j ACCEPT", "iptables-nft -t nat -F", "firewall: + nft table of family 2: nat"),
    ("ip6tables-nft -t nat -N LAB", "ip6tables-nft -t nat -X LAB", "firewall: + nft table of family 10: nat"),
)
LEGACY = (
    ("iptables-legacy -t nat -A OUTPUT -j ACCEPT", "iptables-legacy -t nat -F", "ip, table nat: 1 rules and chains"),
    ("ip6tables-legacy -N LAB", "ip6tables-legacy -X LAB", "ip6, table filter: 2 rules and chains"),
    ("ipset create LAB hash:ip", "ipset destroy LAB", "firewall: + set LAB"),
)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A cluster like the shared one, for one test."""
    monkeypatch.setattr(guard, "SETTLES_WITHIN", 0)
    made = World.build()
    yield made
    made.cluster.close()


def changes(guarded: Guard, *, agents_go_on: bool = False) -> str:
    guarded.note("test_one.py")
    with pytest.raises(AssertionError) as raised:
        guarded.compare(agents_go_on=agents_go_on)
    return str(raised.value)


def test_what_is_changed_on_a_node_is_found_and_once_undone_it_is_not(world: World) -> None:
    node1, guarded = world.nodes[0], Guard(world)
    commands = COMMANDS + (NFTABLES if has_nf_tables() else ()) + (LEGACY if has_legacy() else ())
    for do, _, _ in commands:
        node1.run(*do.split())
    (node1.state_dir / "ledger").touch()
    found = changes(guarded)
    assert found.startswith("test_one.py has changed the cluster that all tests share:\n")
    for said in (*(said for _, _, said in commands), "files: + ledger"):
        assert any(said in line and line.startswith("node1, ") for line in found.splitlines()), (said, found)
    guarded.compare()  # it is said once
    for _, undo, _ in reversed(commands):
        node1.run(*undo.split())
    (node1.state_dir / "ledger").unlink()
    assert "node1, links: - lab0 dummy" in changes(guarded)
    guarded.note("test_two.py")
    guarded.compare()


async def test_a_server_that_did_not_come_back_is_found_and_whatever_is_left_of_a_test(world: World) -> None:
    guarded, web = Guard(world), world.web[2]
    web.is_shared = False
    await web.stop_serving()
    await web.serve(http=8080, udp=5353)
    await world.visitor.serve(http=80)
    await world.nodes[1].pod("more")
    await world.visitor.open_stream(web.ip, 8080)
    world.cluster.host("other", Place(60))
    assert {line for line in changes(guarded).splitlines() if line.startswith(("cluster", "visitor", "web-3"))} == {
        "cluster, hosts: + other",
        "cluster, pods: + more",
        "cluster, open streams: + visitor",
        "visitor, sockets: + tcp6 :::80",
        "web-3, sockets: - sctp 9090",
    }


async def test_a_node_with_an_agent_is_compared_once_that_has_ended(world: World, tmp_path: Path) -> None:
    guarded, node1 = Guard(world), world.nodes[0]
    agent = await node1.kroute("run", "--manifests", str(tmp_path), "--node-name", "node1", "--node-ip", node1.ip)
    await agent.ready()
    guarded.note("test_zero.py")
    guarded.compare(agents_go_on=True)
    await world.visitor.serve(http=80)
    assert changes(guarded, agents_go_on=True).startswith("test_one.py has changed")
    await agent.terminate()
    guarded.note("test_two.py")
    with pytest.raises(AssertionError, match=r"^test_zero.py or test_one.py or test_two.py has changed"):
        guarded.compare()
