"""Local routes on a real kernel: which source the node chooses, and that a route exists at every moment."""

import socket

import pytest

from kroute.kernel.errors import Failure
from kroute.kernel.net.addresses import BindAddress
from kroute.kernel.net.monitor import Event, Overrun, RouteEvent
from kroute.kernel.net.routes import DeleteLocalRoute, LocalRoute, SetLocalRoute
from tests.kernel.nodes import NODE_IP, NODE_IP6, OTHER_NODE_IP, OTHER_NODE_IP6, RealNode, run


def source_towards(address: str) -> str:
    """Return the source address that the node itself chooses."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(("vip", "source"), [("10.0.0.1", NODE_IP), ("fd00::1", NODE_IP6)], ids=["ipv4", "ipv6"])
async def test_the_node_uses_the_source_of_the_route(node: RealNode, vip: str, source: str) -> None:
    await node.routes.write("d0", [SetLocalRoute(vip, source)])
    await node.addresses.write("d0", [BindAddress(vip)])
    assert source_towards(vip) == source
    await node.routes.write("d0", [DeleteLocalRoute(vip, source)])
    await node.addresses.write("d0", [BindAddress("10.0.0.2")])
    if vip == "10.0.0.1":
        assert source_towards(vip) == vip


@pytest.mark.parametrize(
    ("vip", "source", "other"),
    [("10.0.0.1", NODE_IP, OTHER_NODE_IP), ("fd00::1", NODE_IP6, OTHER_NODE_IP6)],
    ids=["ipv4", "ipv6"],
)
async def test_a_source_changes_without_a_moment_without_route(
    node: RealNode, vip: str, source: str, other: str
) -> None:
    await node.routes.write("d0", [SetLocalRoute(vip, source)])
    await node.addresses.write("d0", [BindAddress(vip)])
    async with node.monitor(only="d0") as monitor:
        await node.routes.write("d0", [SetLocalRoute(vip, other), DeleteLocalRoute("10.0.0.99")])
        await node.routes.write("d0", [SetLocalRoute("10.0.0.98", NODE_IP)])
        events: list[Event | Overrun] = []
        while not any(isinstance(event, RouteEvent) and event.route.address == "10.0.0.98" for event in events):
            events += await monitor.next()
    assert [event for event in events if isinstance(event, RouteEvent) and event.gone] == []
    assert source_towards(vip) == other


async def test_an_ipv4_route_that_stands_behind_another_comes_to_the_front(node: RealNode) -> None:
    await node.addresses.write("d0", [BindAddress("10.0.0.1")])
    run(f"ip route append local 10.0.0.1 dev d0 table local proto kernel scope host src {NODE_IP}")
    assert source_towards("10.0.0.1") == "10.0.0.1"
    assert await node.routes.write("d0", [SetLocalRoute("10.0.0.1", NODE_IP)]) == []
    assert (await node.routes.read("d0"))["10.0.0.1"] == [LocalRoute("10.0.0.1", NODE_IP, 0)]


@pytest.mark.parametrize("protocol", ["kernel", "boot", "99"])
async def test_an_ipv4_route_of_another_program_before_ours_goes_whoever_made_it(node: RealNode, protocol: str) -> None:
    await node.routes.write("d0", [SetLocalRoute("10.0.0.1", NODE_IP)])
    run(f"ip route prepend local 10.0.0.1 dev d0 table local proto {protocol} src {OTHER_NODE_IP}")
    assert source_towards("10.0.0.1") == OTHER_NODE_IP
    changes = [SetLocalRoute("10.0.0.1", NODE_IP), DeleteLocalRoute("10.0.0.1", OTHER_NODE_IP)]
    assert await node.routes.write("d0", changes) == []
    assert (await node.routes.read("d0"))["10.0.0.1"] == [LocalRoute("10.0.0.1", NODE_IP, 0)]


@pytest.mark.parametrize("protocol", ["kernel", "boot", "static"])
async def test_an_ipv6_route_goes_whoever_made_it_and_the_kernels_own_stays(node: RealNode, protocol: str) -> None:
    await node.addresses.write("d0", [BindAddress("fd00::1", keep_kernel_route=True)])
    run(f"ip -6 route add local fd00::1 dev d0 table local proto {protocol} metric 1024 src {NODE_IP6}")
    assert len((await node.routes.read("d0"))["fd00::1"]) == 2
    assert await node.routes.write("d0", [DeleteLocalRoute("fd00::1", NODE_IP6)]) == []
    assert (await node.routes.read("d0"))["fd00::1"] == [LocalRoute("fd00::1", None, 0)]


async def test_a_tentative_address_is_no_source_yet(node: RealNode) -> None:
    """A veth does duplicate address detection; a dummy with NOARP does not."""
    run("ip link add v0 type veth peer name v1")
    run("ip link set v0 up")
    run("ip link set v1 up")
    run("ip addr add fd98::1/64 dev v0")
    change = SetLocalRoute("fd00::1", "fd98::1")
    assert await node.routes.write("d0", [change]) == [Failure(change, 22)]


async def test_routes_of_other_tables_and_kinds_are_not_read(node: RealNode) -> None:
    run("ip route add 10.9.0.0/16 dev d0")
    run("ip route add local 10.8.0.0/16 dev d0 table local")
    run("ip route add local 10.7.0.1 dev d0 table 100")
    run("ip route add local 10.6.0.1 dev e0 table local")
    await node.addresses.write("d0", [BindAddress("10.0.0.1")])
    assert await node.routes.read("d0") == {"10.0.0.1": [LocalRoute("10.0.0.1", "10.0.0.1", 0)]}
