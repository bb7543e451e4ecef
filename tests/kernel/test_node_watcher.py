"""The node's own addresses as a real kernel reports them: one address twice on an interface, and renamed interfaces."""

import socket

import pytest

from kroute.model.node_facts import NodeInterfaces
from kroute.watchers.node import NodeWatcher, read_node_interfaces
from tests.kernel.nodes import NODE_IP, NODE_IP6, OTHER_NODE_IP, RealNode, run
from tests.unit.watching import eventually, running

MARK = "10.99.99.99"
"""An address that the test adds last: what the kernel said before was taken in when it is there."""


async def seen_after(*commands: str) -> tuple[NodeInterfaces, NodeInterfaces]:
    """What a watcher that was there all the time knows after the commands, and what one that reads now knows."""
    told: list[NodeInterfaces] = []
    watcher = NodeWatcher("d0", told.append, resolver=frozenset)
    async with running(watcher.run()):
        await eventually(lambda: len(told) > 0)
        for command in commands:
            run(command)
        run(f"ip addr add {MARK}/32 dev lo")
        await eventually(lambda: MARK in told[-1].own)
    return told[-1], await read_node_interfaces("d0")


@pytest.mark.parametrize(
    "commands",
    [
        ["ip addr add 192.168.9.1/16 dev e0", "ip addr del 192.168.9.1/24 dev e0"],
        ["ip addr add 192.168.9.1/32 dev e0", "ip addr del 192.168.9.1/32 dev e0"],
        ["ip addr add 192.168.9.1 peer 10.7.0.1 dev e0", "ip addr del 192.168.9.1 peer 10.7.0.1 dev e0"],
        [
            "ip addr add 192.168.9.1 peer 10.7.0.1 dev e0",
            "ip addr add 192.168.9.1 peer 10.7.0.2 dev e0",
            "ip addr del 192.168.9.1/24 dev e0",
            "ip addr del 192.168.9.1 peer 10.7.0.1 dev e0",
        ],
    ],
    ids=["another subnet mask", "a host address that comes and goes", "a peer", "two peers"],
)
async def test_an_address_is_the_nodes_as_long_as_it_is_there_once(node: RealNode, commands: list[str]) -> None:
    followed, read = await seen_after(*commands)
    assert NODE_IP in followed.own
    assert (followed.own, followed.default) == (read.own, read.default)


@pytest.mark.parametrize("back", [False, True], ids=["renamed", "renamed and back"])
async def test_a_renamed_interface_keeps_its_addresses_until_they_go(node: RealNode, back: bool) -> None:
    run("sysctl -qw net.ipv6.conf.e0.keep_addr_on_down=1")
    renamed = ["ip link set e0 down", "ip link set e0 name e9", "ip link set e9 up"]
    if back:
        renamed += ["ip link set e9 down", "ip link set e9 name e0", "ip link set e0 up"]
    name = "e0" if back else "e9"
    followed, read = await seen_after(*renamed, f"ip addr del {OTHER_NODE_IP}/24 dev {name}")
    assert OTHER_NODE_IP not in followed.own
    assert {NODE_IP, NODE_IP6} <= followed.own == read.own


async def test_an_interface_that_takes_the_name_of_another(node: RealNode) -> None:
    run("ip link add e1 type dummy")
    run("ip addr add 10.7.0.1/24 dev e1")
    followed, read = await seen_after(
        "ip link set e0 down", "ip link set e0 name e9", "ip link set e1 name e0", "ip link del e0"
    )
    assert "10.7.0.1" not in followed.own
    assert NODE_IP in followed.own == read.own


async def test_ipv6_that_is_switched_off_and_on_again(node: RealNode) -> None:
    off, on = (f"sysctl -qw net.ipv6.conf.all.disable_ipv6={it}" for it in (1, 0))
    followed, read = await seen_after(off)
    assert not any(family_of(it) is socket.AF_INET6 for it in followed.own)
    assert followed.own == read.own
    run(f"ip addr del {MARK}/32 dev lo")
    followed, read = await seen_after(on, f"ip addr add {NODE_IP6}/64 dev e0 nodad")
    assert NODE_IP6 in followed.own == read.own


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
