"""Deleted objects are written again: at once where rtnetlink sends an event, the others at the resync."""

import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.kernel.ipvs.objects import RealServerState, VirtualServerOptions, VirtualServerState
from kroute.kernel.net.addresses import BindAddress, InterfaceAddress, UnbindAddress
from kroute.kernel.net.monitor import AddressEvent, LinkEvent
from kroute.kernel.net.routes import IPV6_METRIC, LocalRoute, SetLocalRoute
from kroute.reconcile.stage_gate import WITHDRAWN
from tests.unit.fake_node import DUMMY, NODE_IPV4, NODE_IPV6, FakeNode, plan, server

WEB = (6, "10.96.0.1", 80)
VIPS = ("10.96.0.1", "10.96.0.2", "fd00::1")


async def serving(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    await node.start(plan("web", 1, *(server(vip, 80, "10.1.0.1" if "." in vip else "fd00:1::1") for vip in VIPS)))
    node.kernel.writes.clear()
    return node


def assert_whole(node: FakeNode) -> None:
    link = node.kernel.links[DUMMY]
    assert set(link.addresses) == set(VIPS)
    for vip in VIPS:
        assert link.routes[vip][0].source == (NODE_IPV6 if ":" in vip else NODE_IPV4)


def places(node: FakeNode, vip: str) -> tuple[int, int]:
    """Return the positions of the writes of a VIP's route and of its address."""
    writes = node.kernel.writes
    route = next(at for at, one in enumerate(writes) if isinstance(one, SetLocalRoute) and one.address == vip)
    return route, next(at for at, one in enumerate(writes) if isinstance(one, BindAddress) and one.address == vip)


@pytest.mark.parametrize("vip", VIPS)
async def test_a_deleted_address_is_back_at_once_behind_its_route(tmp_path: Path, vip: str) -> None:
    node = await serving(tmp_path)
    node.kernel.delete_address(DUMMY, vip)
    await node.settle()
    assert_whole(node)
    route, address = places(node, vip)
    assert route < address
    assert node.service_proxy.statistics().repairs == 1


async def test_all_addresses_deleted_at_once_are_back_behind_their_routes(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    for vip in VIPS:
        node.kernel.delete_address(DUMMY, vip)
    await node.settle()
    assert_whole(node)
    assert all(route < address for route, address in (places(node, vip) for vip in VIPS))


async def test_a_deleted_link_is_back_at_once_with_routes_then_addresses(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.delete_link(DUMMY)
    await node.settle()
    assert_whole(node)
    assert str(node.kernel.writes[0]) == f"create dummy {DUMMY}"
    assert all(route < address for route, address in (places(node, vip) for vip in VIPS))


async def test_a_link_that_was_set_down_is_up_at_once(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    link = node.kernel.links[DUMMY]
    link.up = False
    node.kernel.emit(LinkEvent(False, DUMMY, link.index, False))
    await node.settle()
    assert link.up
    assert node.service_proxy.statistics().repairs == 1


async def test_a_link_that_somebody_replaced_is_used_and_filled(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.delete_link(DUMMY)
    node.kernel.add_link(DUMMY, kind="dummy", noarp=False)
    await node.settle()
    assert_whole(node)
    assert node.kernel.links[DUMMY].noarp


@pytest.mark.parametrize("version", [(6, 1), (7, 3)], ids=["Linux 6.1", "Linux 7.3"])
async def test_a_source_that_leaves_the_node_and_comes_back_is_in_every_route_at_once(
    tmp_path: Path, version: tuple[int, int]
) -> None:
    node = await serving(tmp_path)
    node.kernel.version = version
    [interface] = (name for name, link in node.kernel.links.items() if NODE_IPV6 in link.addresses)
    node.kernel.delete_address(interface, NODE_IPV6)
    await node.settle()
    node.kernel.add_address(interface, NODE_IPV6)
    await node.settle()
    assert_whole(node)


async def test_a_lifetime_that_is_renewed_writes_no_route(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    [interface] = (name for name, link in node.kernel.links.items() if NODE_IPV6 in link.addresses)
    node.kernel.emit(AddressEvent(False, InterfaceAddress(interface, NODE_IPV6, 64)))
    await node.settle()
    assert node.kernel.writes == []


async def test_after_an_overrun_everything_is_read_anew(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.delete_address(DUMMY, "10.96.0.1")
    node.kernel.overrun()
    await node.settle()
    assert_whole(node)


async def test_replacing_the_only_service_loses_no_route_of_its_successor(tmp_path: Path) -> None:
    """Deleting the last IPv4 address of a link deletes every IPv4 route on it, without an event."""
    node = FakeNode(tmp_path)
    await node.start(plan("old", 1, server("10.96.0.1", 80, "10.1.0.1")))
    node.broadcaster.publish([plan("old", 2), plan("new", 2, server("10.96.0.2", 80, "10.1.0.1"))])
    await node.settle([1, 2, 0])
    routes = node.kernel.links[DUMMY].routes
    assert [route.source for route in routes["10.96.0.2"]] == [NODE_IPV4, "10.96.0.2"]


async def test_a_vip_that_comes_back_before_its_withdrawal_is_over_gets_its_route_anew(tmp_path: Path) -> None:
    """route_fix still counts on a route that the kernel deleted with the link's last IPv4 address."""
    node = FakeNode(tmp_path)
    node.kernel.virtual_servers[6, NODE_IPV4, 30080] = VirtualServerState(VirtualServerOptions("wlc"), {})
    await node.start(plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    await node.apply(plan("web", 2, server(NODE_IPV4, 30080, "10.1.0.1")))
    assert node.kernel.links[DUMMY].routes.get("10.96.0.1", []) == []
    await node.apply(plan("heir", 1, server("10.96.0.1", 80, "10.1.0.1")))
    assert "10.96.0.1" in node.kernel.links[DUMMY].addresses
    assert node.kernel.links[DUMMY].routes["10.96.0.1"][0].source == NODE_IPV4


async def test_a_deleted_virtual_server_is_back_after_the_resync(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    before = dict(node.kernel.virtual_servers)
    node.kernel.virtual_servers.clear()
    await node.settle()
    assert node.kernel.virtual_servers == {}
    with capture_logs() as logs:
        await node.resync()
    assert node.kernel.virtual_servers == before
    assert {line["what"] for line in logs if line["event"] == "repair"} == {
        "virtual server TCP 10.96.0.1:80 was missing",
        "virtual server TCP 10.96.0.2:80 was missing",
        "virtual server TCP [fd00::1]:80 was missing",
    }
    assert node.service_proxy.statistics().repairs == 3


async def test_changed_and_added_real_servers_are_put_right_by_the_resync(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    reals = node.kernel.virtual_servers[WEB].real_servers
    reals["10.1.0.1", 8080] = RealServerState(0)
    reals["10.1.0.66", 8080] = RealServerState(7)
    await node.resync()
    await node.wait(10)
    assert {real: state.weight for real, state in reals.items()} == {("10.1.0.1", 8080): 1}


async def test_an_address_that_nobody_wants_leaves_the_dummy_interface_at_the_resync(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.add_address(DUMMY, "192.0.2.1")
    await node.resync()
    assert_whole(node)


async def test_a_resync_that_finds_all_right_writes_nothing(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    await node.resync()
    assert node.kernel.writes == []
    assert [controller.statistics().repairs for controller in node.controllers] == [0, 0, 0]
    assert all(controller.statistics().last_resync > 0 for controller in node.controllers)


async def test_a_ledger_that_was_removed_is_back_at_the_resync(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.ledger.path.unlink()
    await node.resync()
    node = node.restarted()
    assert WEB in node.ledger.virtual_servers


async def test_routes_that_failed_while_the_link_was_gone_or_down_come_with_the_link(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.refuse(lambda change: isinstance(change, SetLocalRoute) and ":" in change.address, errno.ENETDOWN)
    node.kernel.drop_route(DUMMY, LocalRoute("fd00::1", NODE_IPV6, IPV6_METRIC))
    await node.settle()
    assert node.route_fix.statistics().waiting == 1
    node.kernel.accept_all()
    link = node.kernel.links[DUMMY]
    link.up = False
    node.kernel.emit(LinkEvent(False, DUMMY, link.index, False))
    await node.settle()
    assert_whole(node)
    assert node.route_fix.statistics().waiting == 0


async def test_a_virtual_server_that_a_reading_leaves_out_is_looked_up_and_nothing_is_repaired(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.left_out = {WEB}
    await node.resync()
    assert node.service_proxy.statistics().repairs == 0
    assert node.kernel.writes == []
    del node.kernel.virtual_servers[WEB]
    await node.resync()
    assert node.service_proxy.statistics().repairs == 1
    assert WEB in node.kernel.virtual_servers


async def test_what_leaves_is_over_also_when_somebody_else_has_deleted_it_meanwhile(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.refuse(lambda change: change == UnbindAddress("10.96.0.1"), errno.EBUSY)
    await node.apply(plan("web", 2))
    assert WEB in node.kernel.virtual_servers, "it serves for as long as its address is there"
    del node.kernel.virtual_servers[WEB]
    await node.resync()
    node.kernel.accept_all()
    await node.wait(31)
    assert not node.kernel.links[DUMMY].addresses
    assert not any(node.kernel.links[DUMMY].routes.values())
    assert not node.stage_gate.has_candidates(WITHDRAWN)
