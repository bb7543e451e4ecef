"""Direct return's tunnels on a real kernel: the contract, and what the kernel shows of a pod that is prepared."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from kroute.controllers.direct_return import Pods, undo_direct_return
from kroute.kernel import modules
from kroute.kernel.errors import KernelError
from kroute.kernel.net import steering
from kroute.kernel.net.steering import Steer
from kroute.kernel.pods import namespaces, pod_network
from kroute.kernel.pods.client import LINKS, Tunnels
from kroute.kernel.pods.pod_network import MOST_LISTED, PodTunnel
from kroute.model.objects import ObjectKey
from kroute.model.plan import ServicePlan, TunnelEnd
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.pass_status import PassStatus
from tests.kernel import contracts_tunnels
from tests.kernel.contracts_tunnels import OTHER, POD, POD6, VIP, VIP6
from tests.kernel.nodes import HANG, run

CROWD, LIMIT = 150, 100
"""Namespaces that somebody makes, and how many of one depth count then: 4,096 need more memory than a machine has."""
NOBODY = 65534
FULL = "10.244.1.7"
_MAKE_A_CROWD = """
import ctypes, os, signal, sys
size, user = map(int, sys.argv[1:])
os.setuid(user)
read, write = os.pipe()
for _ in range(size):
    if os.fork() == 0:
        failed = ctypes.CDLL(None).unshare(0x10000000 | 0x40000000)  # CLONE_NEWUSER, CLONE_NEWNET
        os.write(write, b"-" if failed else b"+")
        signal.pause()
made = b""
while len(made) < size:
    made += os.read(read, 4096)
print(made.count(b"+"), flush=True)
signal.pause()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def crowd(user: int) -> Iterator[None]:
    """CROWD network namespaces, each in a user namespace of its own that this user has made."""
    command = [sys.executable, "-c", _MAKE_A_CROWD, str(CROWD), str(user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert int(process.stdout.readline()) == CROWD
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


class RealTunnelNode:
    """The test's namespace, with pods behind pairs of veth."""

    def __init__(self) -> None:
        self.tunnels = Tunnels()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def add_pod(self, *addresses: str, depth: int = 0) -> int:
        inward = ["unshare", "--map-root-user"] * depth
        process = subprocess.Popen([*inward, "unshare", "--net", "sleep", "infinity"])
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
            run(f"ip route replace {address}/{length} dev {veth}")
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


@pytest.mark.parametrize("user", [0, NOBODY], ids=["root of a pod", "nobody"])
async def test_a_pod_behind_a_crowd_of_namespaces_is_found(
    node: RealTunnelNode, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    monkeypatch.setattr(namespaces, "MOST_NAMESPACES", LIMIT)
    with crowd(user):
        pid = node.add_pod(POD)
        assert [found.pid for found in await node.tunnels.find([POD])] == [pid]
        depths = Counter(found.depth for found in namespaces.find_namespaces([], ["lo"]))
        assert depths[1] == (LIMIT if user == 0 else 0)  # user namespaces of pods are root's


async def test_a_namespace_with_endless_lists_is_left_alone_and_holds_no_cleanup_up(
    node: RealTunnelNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever may make user namespaces can make one that looks as if kroute had prepared it."""
    hostile = node.add_pod(OTHER, depth=1)
    node.add_pod(POD)
    for namespace in await node.tunnels.find([OTHER, POD]):
        [address] = namespace.addresses
        assert await node.tunnels.prepare(namespace, PodTunnel(address, frozenset({VIP})))
    full = node.add_pod(FULL)
    [namespace] = [found for found in await node.tunnels.find([FULL]) if found.addresses]
    for pid, where in {hostile: "dev kroute-dsr4 table 27506 proto 107", full: "dev eth0"}.items():
        subnets = (f"10.{at // 65536}.{at // 256 % 256}.{at % 256}" for at in range(3 * MOST_LISTED))
        (tmp_path / "routes").write_text("\n".join(f"route add {subnet}/32 {where}" for subnet in subnets))
        node.inside(pid, f"ip -batch {tmp_path / 'routes'}")
    with pytest.raises(KernelError, match="more than 4096 routes"):
        await node.tunnels.prepare(namespace, PodTunnel(FULL, frozenset({VIP})))
    listed: list[bytes] = []
    monkeypatch.setattr(pod_network, "copied_route", lambda route, _: listed.append(route))
    report = CleanupReport()
    await undo_direct_return(node.tunnels, report)
    assert (len(report.undone), report.failed) == (1, [])
    assert [found.pid for found in await node.tunnels.find(())] == [hostile]
    assert len(listed) < 2 * MOST_LISTED


async def test_a_pass_ends_by_its_deadline_and_the_next_one_goes_on_where_it_stopped(node: RealTunnelNode) -> None:
    """Each look at the clock takes a second."""
    addresses = [f"10.244.2.{number}" for number in range(6)]
    for address in addresses:
        node.add_pod(address, depth=1)
    for namespace in await node.tunnels.find(addresses):
        [address] = namespace.addresses
        assert await node.tunnels.prepare(namespace, PodTunnel(address, frozenset({VIP})))
    node.add_pod(POD)
    pods = Pods(PassStatus("direct_return", count().__next__), node.tunnels, lambda _key, _problem: None)
    end = TunnelEnd(POD, VIP)
    pods.want([ServicePlan(ObjectKey("default", "web"), 1, tunnel_ends=(end,))])
    pods.look_again()
    assert await pods.write()
    assert pods.ready == {end}
    pods.want([])
    left = [len(await node.tunnels.find(()))]
    while not await pods.write():
        left.append(len(await node.tunnels.find(())))
        assert left[-1] < left[-2]
    assert left[0] == 7
    assert len(left) > 2
    assert await node.tunnels.find(()) == []
