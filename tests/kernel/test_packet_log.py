"""Packets that rules have logged, on a real kernel."""

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.packet_log import LoggedPacket, PacketLog
from tests.kernel.nodes import NODE_IP, NODE_IP6, RealNode, run
from tests.lab.firewall import backend

GROUP, OTHER_GROUP = 10247, 10248
PREFIX = "KROUTENP-I-SWARDD2NCJMKVNBO"
UDP = 17
RULES = f"""
table inet logged {{
  chain input {{
    type filter hook input priority 0;
    udp dport 4000-4009 limit rate 10/second burst 20 packets log prefix "{PREFIX}" group {GROUP}
    udp dport 4000-4009 drop
  }}
}}
"""
LEGACY = f"-p udp --dport 4000:4009 -m limit --limit 10/sec --limit-burst 20 -j NFLOG --nflog-prefix {PREFIX}"


def log_datagrams() -> None:
    """Have the kernel log datagrams to ten ports."""
    if backend() == "nftables":
        run("nft -f -", RULES)
        return
    for tool in ("iptables-legacy", "ip6tables-legacy"):
        run(f"{tool} -A INPUT {LEGACY} --nflog-group {GROUP}")


@pytest.fixture
async def packets(node: RealNode) -> AsyncIterator[PacketLog]:
    log_datagrams()
    async with PacketLog(GROUP) as log:
        yield log


def send(address: str, port: int, times: int = 1, size: int = 3) -> int:
    """Send datagrams to this node itself; returns the port that they come from."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as sender:
        for _ in range(times):
            sender.sendto(b"x" * size, (address, port))
        return int(sender.getsockname()[1])


@pytest.mark.each_firewall
@pytest.mark.parametrize("address", [NODE_IP, NODE_IP6])
async def test_a_logged_packet_has_its_rules_prefix_its_addresses_and_ports(packets: PacketLog, address: str) -> None:
    port = send(address, 4001)
    assert await packets.next() == [LoggedPacket(PREFIX, UDP, address, address, port, 4001)]


@pytest.mark.each_firewall
async def test_the_kernel_logs_a_bounded_number_of_packets(packets: PacketLog) -> None:
    send(NODE_IP, 4001, times=1000)
    found = await packets.next()
    send(NODE_IP6, 4002)
    while found[-1].destination_port != 4002:
        found += await packets.next()
    assert 20 <= len(found) < 500


async def test_a_group_has_one_reader(packets: PacketLog) -> None:
    with pytest.raises(KernelError, match=f"group {GROUP} ") as refused:
        await PacketLog(GROUP).open()
    assert refused.value.errno == errno.EPERM
    async with PacketLog(OTHER_GROUP):
        pass
    await packets.close()
    async with PacketLog(GROUP):
        pass
