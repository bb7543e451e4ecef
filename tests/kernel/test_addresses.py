"""Addresses on a real kernel: what the fake does not model."""

import asyncio
import ipaddress
from collections.abc import Iterable

import pytest

from kroute.kernel.errors import Failure
from kroute.kernel.net import addresses as net_addresses
from kroute.kernel.net.addresses import Addresses, BindAddress, InterfaceAddress, RenewAddress, UnbindAddress
from kroute.kernel.net.routes import SetLocalRoute
from tests.kernel.nodes import HANG, NODE_IP6, RealNode, run


async def test_a_vip_makes_no_route_in_table_main(node: RealNode) -> None:
    before = run("ip route") + run("ip -6 route")
    await node.addresses.write("d0", [BindAddress("10.0.0.1"), BindAddress("fd00::1", keep_kernel_route=True)])
    assert run("ip route") + run("ip -6 route") == before


async def test_the_dummy_never_has_a_link_local_address(node: RealNode) -> None:
    assert run("ip -6 -o addr show dev d0") == ""
    run("ip link set d0 down")
    run("ip link set d0 addrgenmode eui64 arp on up")
    assert not getattr(await node.links.read("d0"), "is_right", False)
    await node.links.repair("d0")
    assert getattr(await node.links.read("d0"), "is_right", False)


async def test_flags_and_scopes_are_read(node: RealNode) -> None:
    run("ip addr add 192.168.9.7/24 dev e0")
    run("ip addr add fd99::7/64 dev e0 nodad preferred_lft 0")
    await node.addresses.write("d0", [BindAddress("10.0.0.1")])
    found = {each.address: each._replace(ifindex=0) for each in await node.addresses.of_node()}
    assert found["192.168.9.7"] == InterfaceAddress("e0", "192.168.9.7", 24, "global", secondary=True)
    assert found["fd99::7"] == InterfaceAddress("e0", "fd99::7", 64, "global", deprecated=True)
    assert found["10.0.0.1"] == InterfaceAddress("d0", "10.0.0.1", 32, "link")
    assert found["127.0.0.1"].scope == "host"


async def test_many_ipv6_addresses_keep_no_kernel_route(node: RealNode) -> None:
    """The kernel's routes appear after the addresses, one by one."""
    vips = [str(ipaddress.ip_address("fd00::") + number) for number in range(1, 601)]
    assert await node.routes.write("d0", [SetLocalRoute(vip, NODE_IP6) for vip in vips]) == []
    assert await node.addresses.write("d0", [BindAddress(vip) for vip in vips]) == []
    assert await node.addresses.read("d0") == set(vips)
    routes = await node.routes.read("d0")
    assert {vip: [route.source for route in routes[vip]] for vip in vips} == {vip: [NODE_IP6] for vip in vips}


async def test_a_slow_machine_keeps_no_kernel_route_either(node: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's route is there, and to delete it takes longer than all waits for more of them."""
    delete = Addresses._delete_kernel_routes

    async def slowly(addresses: Addresses, index: int, routes: Iterable[str]) -> None:
        await asyncio.sleep(net_addresses.ARRIVAL_WAIT * net_addresses.ARRIVAL_WAITS * 2)
        await delete(addresses, index, routes)

    monkeypatch.setattr(net_addresses, "ARRIVAL_WAIT", 0.05)
    monkeypatch.setattr(Addresses, "_delete_kernel_routes", slowly)
    for vip in ("fd00::1", "fd00::2"):
        assert await node.routes.write("d0", [SetLocalRoute(vip, NODE_IP6)]) == []
        assert await node.addresses.write("d0", [BindAddress(vip)]) == []
        assert [it.source for it in (await node.routes.read("d0"))[vip]] == [NODE_IP6]


async def test_an_address_with_a_lifetime_goes_by_itself_and_is_nobodys_source(node: RealNode) -> None:
    vips = ["192.168.9.200", "fd99::200"]
    await node.addresses.write("e0", [BindAddress(vip, keep_kernel_route=True, lifetime=60) for vip in vips])
    await node.addresses.write("e0", [RenewAddress(vip, 90) for vip in vips])
    found = {each.address: each for each in await node.addresses.of_node()}
    assert (found[vips[0]].scope, found[vips[1]].deprecated) == ("link", True)
    assert "src 192.168.9.1 " in run("ip route get 192.168.9.201")
    assert "src fd99::200 " not in run("ip -6 route get fd99::201")
    await node.addresses.write("e0", [RenewAddress(vip, 3) for vip in vips])
    async with asyncio.timeout(HANG):
        while await node.addresses.read("e0") & set(vips):  # noqa: ASYNC110  # the kernel's timer is waited for
            await asyncio.sleep(0.2)


async def test_failures_name_their_changes_across_many_messages(node: RealNode) -> None:
    vips = [str(ipaddress.ip_address("10.0.0.0") + number) for number in range(1, 1201)]
    taken = [BindAddress(vip) for vip in vips[::100]]
    assert await node.addresses.write("d0", taken) == []
    failures = await node.addresses.write("d0", [BindAddress(vip) for vip in vips])
    assert failures == [Failure(change, 17) for change in taken]
    assert await node.addresses.read("d0") == set(vips)
    assert await node.addresses.write("d0", [UnbindAddress(vip) for vip in vips]) == []


async def test_where_ipv6_is_switched_off_ipv4_goes_on(node: RealNode) -> None:
    run("sysctl -q -w net.ipv6.conf.all.disable_ipv6=1")
    await node.links.delete("d0")
    await node.links.create_dummy("d0")
    vip6 = BindAddress("fd00::1")
    failures = await node.addresses.write("d0", [vip6, BindAddress("10.0.0.1")])
    assert [failure.change for failure in failures] == [vip6]
    assert await node.addresses.read("d0") == {"10.0.0.1"}
