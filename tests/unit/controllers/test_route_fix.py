"""route_fix: this node's own address is the source of its packets to VIPs."""

import errno
from pathlib import Path

import pytest

from kroute.kernel.net.routes import IPV6_METRIC, LocalRoute, SetLocalRoute
from kroute.reconcile.comparison.source_routes import SourceRoute, ours_among
from kroute.reconcile.stage_gate import ROUTES_PREPARED
from tests.unit.fake_node import DUMMY, NODE_IPV4, NODE_IPV6, FakeNode, plan, server

OTHER, OTHER6 = "192.168.123.239", "fd00:123::239"


def sources(node: FakeNode, address: str) -> list[str | None]:
    """Return the sources of the routes to an address, in the kernel's order."""
    return [route.source for route in node.kernel.links[DUMMY].routes.get(address, ())]


async def serving(tmp_path: Path, *vips: str, **settings: object) -> FakeNode:
    node = FakeNode(tmp_path, **settings)
    await node.start(plan("web", 1, *(server(vip, 80) for vip in vips or ("10.96.0.1",))))
    node.kernel.writes.clear()
    return node


@pytest.mark.parametrize(
    ("address", "routes", "ours"),
    [
        pytest.param("10.96.0.1", [("10.96.0.1", 0)], None, id="the kernel's own of IPv4"),
        pytest.param("fd00::1", [(None, 0)], None, id="the kernel's own of IPv6"),
        pytest.param("10.96.0.1", [(NODE_IPV4, 0), ("10.96.0.1", 0)], SourceRoute((NODE_IPV4,)), id="ours first"),
        pytest.param("10.96.0.1", [("10.96.0.1", 0), (NODE_IPV4, 0)], SourceRoute((NODE_IPV4,), False), id="second"),
        pytest.param("fd00::1", [(None, 0), (NODE_IPV6, 1024)], SourceRoute((NODE_IPV6,), False), id="IPv6 second"),
        pytest.param("10.96.0.1", [(OTHER, 0), (NODE_IPV4, 0)], SourceRoute((OTHER, NODE_IPV4)), id="stale and ours"),
    ],
)
def test_which_routes_are_ours(address: str, routes: list[tuple[str | None, int]], ours: SourceRoute | None) -> None:
    assert ours_among(address, [LocalRoute(address, source, metric) for source, metric in routes]) == ours


async def test_every_vip_has_the_nodes_own_address_as_source(tmp_path: Path) -> None:
    node = await serving(tmp_path, "10.96.0.1", "fd00::1")
    assert sources(node, "10.96.0.1")[0] == NODE_IPV4
    assert sources(node, "fd00::1") == [NODE_IPV6]


async def test_all_routes_follow_a_changed_node_address(tmp_path: Path) -> None:
    node = await serving(tmp_path, "10.96.0.1", "10.96.0.2", "fd00::1")
    node.kernel.add_address("eth0", OTHER, 24)
    changed = [server(vip, 80) for vip in ("10.96.0.1", "10.96.0.2", "fd00::1")]
    await node.apply(plan("web", 2, *changed, source=OTHER))
    assert sorted(node.kernel.writes, key=str) == [SetLocalRoute("10.96.0.1", OTHER), SetLocalRoute("10.96.0.2", OTHER)]
    assert sources(node, "10.96.0.1")[0] == sources(node, "10.96.0.2")[0] == OTHER


async def test_a_route_is_not_prepared_while_the_kernel_refuses_it(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    wrong = plan("new", 2, server("10.96.0.2", 80), source="192.168.123.77")
    await node.apply(wrong)
    assert not node.stage_gate.has_passed(wrong, ROUTES_PREPARED)
    node.kernel.add_address("eth0", "192.168.123.77", 24)
    await node.wait(1)
    assert node.stage_gate.has_passed(wrong, ROUTES_PREPARED)
    assert sources(node, "10.96.0.2")[0] == "192.168.123.77"


async def test_the_route_outlives_the_address(tmp_path: Path) -> None:
    node = await serving(tmp_path, "fd00::1")
    node.broadcaster.publish([plan("web", 2)])
    await node.route_fix.step()
    assert sources(node, "fd00::1") == [NODE_IPV6]
    await node.service_proxy.step()
    await node.route_fix.step()
    assert sources(node, "fd00::1") == []


async def test_a_route_of_ours_that_the_kernel_leaves_behind_is_removed(tmp_path: Path) -> None:
    node = await serving(tmp_path, "fd00::1", "fd00::2")
    node = node.restarted()
    await node.start(plan("web", 1, server("fd00::1", 80)))
    assert sources(node, "fd00::2") == []
    assert sources(node, "fd00::1") == [NODE_IPV6]


async def test_a_deleted_route_is_back_at_once(tmp_path: Path) -> None:
    node = await serving(tmp_path, "10.96.0.1", "fd00::1")
    node.kernel.drop_route(DUMMY, LocalRoute("10.96.0.1", NODE_IPV4, 0))
    node.kernel.drop_route(DUMMY, LocalRoute("fd00::1", NODE_IPV6, IPV6_METRIC))
    await node.settle()
    assert sorted(node.kernel.writes, key=str) == [
        SetLocalRoute("10.96.0.1", NODE_IPV4),
        SetLocalRoute("fd00::1", NODE_IPV6),
    ]
    assert node.route_fix.statistics().repairs == 2


async def test_a_kernel_route_that_comes_before_ours_is_removed_at_once(tmp_path: Path) -> None:
    node = await serving(tmp_path, "fd00::1")
    node.kernel.set_route(DUMMY, LocalRoute("fd00::1", None, 0), position=0)
    await node.settle()
    assert sources(node, "fd00::1") == [NODE_IPV6]


@pytest.mark.parametrize("position", [0, 1], ids=["before ours", "behind ours"])
async def test_a_route_from_another_source_is_removed_at_once(tmp_path: Path, position: int) -> None:
    node = await serving(tmp_path, resync_budget=0.0)
    node.kernel.set_route(DUMMY, LocalRoute("10.96.0.1", OTHER, 0), position=position)
    await node.settle()
    assert [source for source in sources(node, "10.96.0.1") if source != "10.96.0.1"] == [NODE_IPV4]
    assert sources(node, "10.96.0.1")[0] == NODE_IPV4
    assert node.route_fix.statistics().repairs == 1
    assert node.route_fix.statistics().resyncs == 1


@pytest.mark.parametrize("metric", [512, 2048], ids=["before ours", "behind ours"])
async def test_an_ipv6_route_of_another_metric_is_removed_at_once(tmp_path: Path, metric: int) -> None:
    node = await serving(tmp_path, "fd00::1", resync_budget=0.0)
    node.kernel.set_route(DUMMY, LocalRoute("fd00::1", OTHER6, metric), position=int(metric > IPV6_METRIC))
    await node.settle()
    assert sources(node, "fd00::1") == [NODE_IPV6]
    assert node.route_fix.statistics().repairs == 1
    await node.resync()
    assert node.route_fix.statistics().repairs == 1


async def test_our_own_writes_cause_no_work(tmp_path: Path) -> None:
    node = await serving(tmp_path, "10.96.0.1", "fd00::1")
    await node.apply(plan("new", 2, server("10.96.0.2", 80), server("fd00::2", 80)))
    await node.apply(plan("new", 3))
    node.kernel.writes.clear()
    await node.settle()
    assert node.kernel.writes == []
    assert [controller.statistics().repairs for controller in node.controllers] == [0, 0, 0]


@pytest.mark.parametrize("position", [0, 1], ids=["before ours", "behind ours"])
async def test_a_stale_source_is_found_by_the_resync_once(tmp_path: Path, position: int) -> None:
    node = await serving(tmp_path)
    node.kernel.links[DUMMY].routes["10.96.0.1"].insert(position, LocalRoute("10.96.0.1", OTHER, 0))
    await node.resync()
    await node.resync()
    assert [source for source in sources(node, "10.96.0.1") if source != "10.96.0.1"] == [NODE_IPV4]
    assert sources(node, "10.96.0.1")[0] == NODE_IPV4
    assert node.route_fix.statistics().repairs == 1


async def test_without_the_interface_it_waits_and_goes_on_when_it_is_there(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.kernel.refuse(lambda change: str(change) == f"create dummy {DUMMY}", errno.ENODEV)
    new = plan("web", 1, server("10.96.0.1", 80))
    await node.start(new)
    assert not node.stage_gate.has_passed(new, ROUTES_PREPARED)
    node.kernel.accept_all()
    await node.wait(1)
    assert sources(node, "10.96.0.1")[0] == NODE_IPV4


async def test_a_vip_whose_source_is_not_known_any_more_keeps_its_route(tmp_path: Path) -> None:
    node = await serving(tmp_path, "fd00::1")
    await node.apply(plan("web", 2, server("fd00::1", 80), source6=None))
    await node.resync()
    assert sources(node, "fd00::1") == [NODE_IPV6]
    await node.apply(plan("web", 3))
    assert sources(node, "fd00::1") == []
