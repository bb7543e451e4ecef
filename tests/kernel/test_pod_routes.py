"""The kernel's routes to pods of other nodes and its tunnels, on a real kernel."""

import errno
from contextlib import nullcontext
from socket import AF_INET, AF_INET6

import pytest

from kroute.kernel import modules
from kroute.kernel.errors import Failure, KernelError
from kroute.kernel.modules import kernel_version
from kroute.kernel.pods.pod_routes import (
    DeletePodRoute,
    DeleteTunnel,
    MakeTunnel,
    PodNetworkKernel,
    PodRoute,
    SetPodRoute,
    SetRule,
    Tunnel,
)
from tests.kernel.nodes import run, uplink

NODE, NODE6 = "192.168.9.1", "fd99::1"
PODS, PODS6 = "10.244.2.0/24", "fd00:244:2::/64"
PEER, PEER6 = "192.168.9.5", "fd99::5"
ABROAD, ABROAD6 = "192.168.77.5", "fd77::5"


@pytest.fixture
def kernel(namespace: None) -> PodNetworkKernel:
    uplink(f"{NODE}/24", f"{NODE6}/64 nodad")
    run("ip route add default via 192.168.9.254")
    run("ip route add fd77::/64 via fd99::fe")
    return PodNetworkKernel()


async def test_routes_by_another_node_are_read_back_changed_and_deleted(kernel: PodNetworkKernel) -> None:
    routes = {PODS: PodRoute(NODE, gateway=PEER), PODS6: PodRoute(NODE6, gateway=PEER6)}
    assert await kernel.write([SetPodRoute(*it) for it in routes.items()]) == []
    assert (await kernel.read())[0] == routes
    again = [SetPodRoute(*it) for it in routes.items()]
    assert await kernel.write(again) == [Failure(it, errno.EEXIST) for it in again]
    digest = await kernel.digest()
    assert digest.counts == (2,)
    assert await kernel.digest() == digest
    run("ip route add 10.77.0.0/24 via 192.168.9.77")
    assert await kernel.digest() == digest, "only ours count"
    other = {PODS: PodRoute(NODE, gateway="192.168.9.6"), PODS6: PodRoute(NODE6, gateway="fd99::6")}
    assert await kernel.write([SetPodRoute(*it, replaces=True) for it in other.items()]) == []
    assert (await kernel.read())[0] == other
    assert (await kernel.digest()).checksum != digest.checksum
    for _ in range(2):
        assert await kernel.write([DeletePodRoute(PODS, PodRoute()), DeletePodRoute(PODS6, PodRoute())]) == []
        assert (await kernel.read())[0] == {}


async def test_routes_of_other_programs_stay_and_win(kernel: PodNetworkKernel) -> None:
    run(f"ip route add {PODS} via 192.168.9.9")
    run(f"ip route add {PODS6} via fd99::9")
    ours = [SetPodRoute(PODS, PodRoute(NODE, PEER)), SetPodRoute(PODS6, PodRoute(NODE6, PEER6))]
    assert await kernel.write(ours) == []
    assert "via 192.168.9.9" in run("ip route get 10.244.2.7")
    assert "via fd99::9" in run("ip route get fd00:244:2::7")
    for _ in range(2):
        assert await kernel.write([DeletePodRoute(PODS, PodRoute()), DeletePodRoute(PODS6, PodRoute())]) == []
    assert "via 192.168.9.9" in run("ip route get 10.244.2.7")
    assert "via fd99::9" in run("ip route get fd00:244:2::7")


@pytest.mark.parametrize("port", [0, 5555])
async def test_tunnels_are_made_read_back_and_routed_through(kernel: PodNetworkKernel, port: int) -> None:
    """Debian's User Mode Linux has no tunnels in UDP, and refuses them."""
    assert await modules.load(["ipip", "ip6_tunnel"]) == []
    tunnels = [Tunnel(NODE, ABROAD, port), Tunnel(NODE6, ABROAD6, port)]
    if port and modules.kernel_version() == (6, 1):
        refused = await kernel.write(list(map(MakeTunnel, tunnels)))
        assert [it.errno for it in refused] == [errno.EINVAL] * 2
        return
    routes = {PODS: PodRoute(NODE, link=tunnels[0].link), PODS6: PodRoute(NODE6, link=tunnels[1].link)}
    changes = [*(SetPodRoute(*it) for it in routes.items()), *map(MakeTunnel, tunnels)]
    assert await kernel.write(changes) == []
    assert await kernel.read() == (routes, {it.link: it for it in tunnels})
    assert f"dev {tunnels[0].link} src {NODE}" in run("ip route get 10.244.2.7")
    assert f"dev {tunnels[1].link} " in run("ip route get fd00:244:2::7")
    assert await kernel.mtu([tunnels[0].link]) == 1500 - 20 - (12 if port else 0)
    assert await kernel.mtu([tunnels[1].link]) == 1500 - 40 - (12 if port else 0)
    assert "inet6" not in run(f"ip address show {tunnels[1].link}")
    run(f"ip link set {tunnels[0].link} down")
    routes_after, tunnels_after = await kernel.read()
    assert tunnels_after[tunnels[0].link] == tunnels[0]._replace(is_up=False)
    assert list(routes_after) == [PODS6], "the kernel has deleted the route of IPv4 with its link"
    assert await kernel.write([MakeTunnel(tunnels[0]), SetPodRoute(PODS, routes[PODS])]) == []
    assert await kernel.read() == (routes, {it.link: it for it in tunnels})
    assert await kernel.write([DeletePodRoute(*it) for it in routes.items()]) == []
    assert (await kernel.read())[0] == {}
    assert await kernel.write([SetPodRoute(*it) for it in routes.items()]) == []
    assert await kernel.write([DeleteTunnel(it.link) for it in tunnels]) == []
    assert await kernel.read() == ({}, {})


async def test_what_pods_send_to_nodes_behind_tunnels_goes_through_these(kernel: PodNetworkKernel) -> None:
    assert await modules.load(["ipip", "ip6_tunnel"]) == []
    tunnels = [Tunnel(NODE, ABROAD), Tunnel(NODE6, ABROAD6)]
    routes = {
        f"{ABROAD}/32": PodRoute(link=tunnels[0].link, is_for_pods=True),
        f"{ABROAD6}/128": PodRoute(link=tunnels[1].link, is_for_pods=True),
    }
    run("ip link add pods type dummy")
    run("ip link set pods up")
    for address in ("10.244.1.1/24", "fd00:244:1::1/64 nodad"):
        run(f"ip address add {address} dev pods")
    own = {"10.244.1.0/24", "fd00:244:1::/64"}
    run("ip rule add from 10.244.9.0/24 lookup 27508")
    changes = [*map(MakeTunnel, tunnels), *(SetPodRoute(*it) for it in routes.items()), *map(SetRule, sorted(own))]
    assert await kernel.write(changes) == []
    assert (await kernel.read())[0] == routes
    assert await kernel.rules() == own
    assert f"dev {tunnels[0].link}" in run(f"ip route get {ABROAD} from 10.244.1.1")
    assert f"dev {tunnels[1].link}" in run(f"ip route get {ABROAD6} from fd00:244:1::1")
    for address in (ABROAD, ABROAD6):
        assert "dev e0" in run(f"ip route get {address}"), "the tunnel itself must not go through the tunnel"
    gone = [*(SetRule(it, is_wanted=False) for it in own), *(DeletePodRoute(*it) for it in routes.items())]
    for _ in range(2):
        assert await kernel.write(gone) == []
        assert (await kernel.read())[0] == {}
        assert await kernel.rules() == set()
    assert "10.244.9.0/24" in run("ip rule")


async def test_a_tunnel_beside_that_of_another_program_stands_by_until_that_one_is_gone(
    kernel: PodNetworkKernel,
) -> None:
    assert await modules.load(["ipip", "ip6_tunnel"]) == []
    tunnels = [Tunnel(NODE, ABROAD), Tunnel(NODE6, ABROAD6)]
    for name, kind, tunnel in zip(("tun4", "tun6"), ("ipip", "ip6tnl mode ip6ip6"), tunnels, strict=True):
        run(f"ip link add {name} type {kind} local {tunnel.local} remote {tunnel.remote}")
        run(f"ip link set {name} up")
    lost = MakeTunnel(Tunnel(NODE6, "fd66::9"))
    run(f"ip link add tun9 type ip6tnl mode ip6ip6 local {NODE6} remote fd66::9")
    run("ip route add unreachable fd66::/64")
    assert await kernel.write([*map(MakeTunnel, tunnels), lost]) == [Failure(lost, errno.EEXIST)]
    assert (await kernel.read())[1] == {it.link: it for it in tunnels}
    await kernel.make_again()
    assert "ipip remote 192.168.77.5 local any" in run(f"ip -details link show {tunnels[0].link}")
    assert f"{tunnels[1].link}@e0" in run(f"ip link show {tunnels[1].link}")
    run("ip link delete tun4")
    run("ip link delete tun6")
    await kernel.make_again()
    assert (await kernel.read())[1] == {it.link: it for it in tunnels}
    for tunnel in tunnels:
        assert f"remote {tunnel.remote} local {tunnel.local} " in run(f"ip -details link show {tunnel.link}")
        assert f"{tunnel.link}@NONE" in run(f"ip link show {tunnel.link}")


async def test_ports_of_udp_come_and_go(kernel: PodNetworkKernel) -> None:
    assert await modules.load(["fou", "fou6"]) == []
    assert await kernel.ports() == set()
    for family in (AF_INET, AF_INET6):
        await kernel.set_port(family, 5555, is_wanted=True)
    assert await kernel.ports() == {(AF_INET, 5555), (AF_INET6, 5555)}
    with pytest.raises(KernelError, match="--overlay-encap-port"):
        await kernel.set_port(AF_INET, 5555, is_wanted=True)
    await kernel.set_port(AF_INET, 5555, is_wanted=False)
    await kernel.set_port(AF_INET, 5555, is_wanted=False)
    assert await kernel.ports() == {(AF_INET6, 5555)}


async def test_the_smallest_mtu_counts(kernel: PodNetworkKernel) -> None:
    run("ip link set lo mtu 1400")
    assert await kernel.mtu(["e0", "lo", "absent"]) == 1400
    assert await kernel.mtu(["absent"]) is None
    run("ip link set e0 mtu 1300")
    assert await kernel.mtu(["lo"], [AF_INET]) == 1300, "that of the default route's interface"
    assert await kernel.mtu(["lo"], [AF_INET6]) == 1400, "there is no default route of IPv6"


async def test_one_tunnel_for_all_nodes_leads_to_a_neighbour_by_ipv6_in_newer_kernels_alone(
    kernel: PodNetworkKernel,
) -> None:
    """So each other node has a tunnel of its own. IPv4 takes such a next hop."""
    assert await modules.load(["ipip", "ip6_tunnel"]) == []
    run(f"ip link add all4 type ipip local {NODE}")
    run(f"ip link add all6 type ip6tnl mode ip6ip6 local {NODE6}")
    for name in ("all4", "all6"):
        run(f"ip link set {name} up")
    run(f"ip route add {PODS} via {PEER} dev all4 onlink")
    refused = pytest.raises(AssertionError, match="invalid gateway") if kernel_version() == (6, 1) else nullcontext()
    with refused:
        run(f"ip route add {PODS6} via {PEER6} dev all6 onlink")
    run("ip route add fd00:244:3::/64 via fdfe::1 dev all6 onlink")
