"""Direct return's tunnels on a real kernel: the contract, and what the kernel shows of a pod that is prepared."""

import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from kroute.kernel import modules
from kroute.kernel.net import steering
from kroute.kernel.net.steering import Steer
from kroute.kernel.pods.client import LINKS, Tunnels
from kroute.kernel.pods.pod_network import PodTunnel
from tests.kernel import contracts_tunnels
from tests.kernel.contracts_tunnels import POD, POD6, VIP, VIP6
from tests.kernel.nodes import HANG, run


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class RealTunnelNode:
    """The test's namespace, with pods behind pairs of veth."""

    def __init__(self) -> None:
        self.tunnels = Tunnels()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def add_pod(self, *addresses: str) -> int:
        process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._processes[process.pid] = process
        own, pod = Path("/proc/self/ns/net"), Path(f"/proc/{process.pid}/ns/net")
        wait_until(lambda: pod.readlink() != own.readlink())
        veth = f"veth{len(self._processes)}"
        run(f"ip link add {veth} type veth peer name eth0 netns {process.pid}")
        run(f"ip link set {veth} up")
        self.inside(process.pid, "ip link set eth0 addrgenmode none")  # before it is up, when the kernel gives it one
        self.inside(process.pid, "ip link set eth0 up")
        wait_until(lambda: "state UP" in self.inside(process.pid, "ip link show eth0"))
        for address in addresses:
            length, dad = ("128", " nodad") if ":" in address else ("32", "")
            self.inside(process.pid, f"ip addr add {address}/{length} dev eth0{dad}")
            run(f"ip route add {address}/{length} dev {veth}")
        return process.pid

    def inside(self, pid: int, command: str) -> str:
        return run(f"nsenter --target {pid} --net {command}")

    def end_pod(self, pid: int) -> None:
        process = self._processes.pop(pid)
        process.kill()
        process.wait()

    def add_link_like_ours(self, pid: int, name: str) -> None:
        self.inside(pid, f"ip link add {name} type dummy")

    def be_strict(self, pid: int) -> None:
        Path(f"/proc/sys/net/ipv4/conf/veth{list(self._processes).index(pid) + 1}/rp_filter").write_text("1")

    def close(self) -> None:
        for pid in list(self._processes):
            self.end_pod(pid)


@pytest.fixture
async def node(namespace: None) -> AsyncIterator[RealTunnelNode]:
    assert await modules.load(["ipip", "ip6_tunnel"]) == []
    real = RealTunnelNode()
    yield real
    real.close()


class TestTunnels(contracts_tunnels.TunnelsContract):
    pass


async def test_a_pod_that_is_prepared_says_what_was_done_and_is_as_before_when_that_is_undone(
    node: RealTunnelNode,
) -> None:
    pid = node.add_pod(POD, POD6)
    node.inside(pid, "ip route add default dev eth0")
    node.inside(pid, "ip -6 route add default dev eth0")
    before = list(_looks(node, pid))
    [namespace] = await node.tunnels.find([POD, POD6])
    for family, (address, vip) in {4: (POD, VIP), 6: (POD6, VIP6)}.items():
        await node.tunnels.prepare(namespace, PodTunnel(address, frozenset({vip})))
        assert vip in node.inside(pid, f"ip -{family} address show dev kroute-dsr{family}")
        assert f"from {vip} lookup 27506" in node.inside(pid, f"ip -{family} rule")
        mss = 1500 - {4: 20 + 40, 6: 40 + 60}[family]
        assert f"advmss {mss}" in node.inside(pid, f"ip -{family} route show table 27506")
    assert list(_looks(node, pid)) != before
    for family in LINKS:
        await node.tunnels.undo(namespace, family)
    assert list(_looks(node, pid)) == before


def _looks(node: RealTunnelNode, pid: int) -> Iterator[str]:
    for family in (4, 6):
        for what in ("address", "rule", "route show table all"):
            yield node.inside(pid, f"ip -{family} {what}")
    yield node.inside(pid, "cat /proc/sys/net/ipv4/conf/eth0/arp_ignore /proc/sys/net/ipv4/conf/eth0/arp_announce")


async def test_routes_of_other_tables_are_not_listed(node: RealTunnelNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that speaks BGP may have all routes of the internet."""
    node.add_pod(POD, POD6)
    assert await node.tunnels.steered() == set()  # there is no such table yet
    listed: list[bytes] = []
    parse = steering._parse_route

    def parsed(payload: bytes) -> str | None:
        listed.append(payload)
        return parse(payload)

    monkeypatch.setattr(steering, "_parse_route", parsed)
    assert await node.tunnels.steer([Steer(VIP), Steer(VIP6)]) == []
    assert await node.tunnels.steered() == {VIP, VIP6}
    assert len(listed) == 2


async def test_a_pod_with_the_smallest_mtu_is_prepared(node: RealTunnelNode) -> None:
    pid = node.add_pod(POD)
    node.inside(pid, "ip route add default dev eth0")
    node.inside(pid, "ip link set eth0 mtu 68")
    [namespace] = await node.tunnels.find([POD])
    tunnel = PodTunnel(POD, frozenset({VIP}))
    assert await node.tunnels.prepare(namespace, tunnel)
    assert await node.tunnels.prepare(namespace, tunnel) == []
