"""What others change is found by a look, within its period, and no look costs a resync while nobody changes anything.

Nothing here is found by a resync that is due by itself: with a budget of nothing they are an hour apart, or more.
"""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kroute.kernel.net.routes import LocalRoute
from kroute.reconcile import controller
from kroute.reconcile.resync_schedule import LONGEST_PAUSE, LONGEST_UNDISTURBED, MOST_LOOKS, Metered
from tests.unit.fake_node import DUMMY, NODE_IPV4, NODE_IPV6, FakeNode, node_plan, plan, server

VIPS = ("10.96.0.1", "10.96.0.2", "fd00::1")
CLUSTER_IPS, FOREIGN = "KROUTE-CLUSTER-IP", "-s 1.2.3.4/32 -j ACCEPT"
PORT, OTHER_PORT = ("10.96.0.1", 6, 80), ("10.96.0.99", 6, 80)


async def serving(tmp_path: Path, **settings: object) -> FakeNode:
    node = FakeNode(tmp_path, resync_budget=0.0, **settings)
    await node.start(plan("web", 1, *(server(vip, 80, "10.1.0.1") for vip in VIPS[:2]), server(VIPS[2], 80, "fd01::1")))
    await node.resync()  # settles what the first look compares once more
    return node


def chain(node: FakeNode, table: str, name: str) -> list[str]:
    return node.kernel.table(socket.AF_INET, table).chains[name]


def resyncs(node: FakeNode) -> dict[str, int]:
    return {each.name: each.statistics().resyncs for each in node.controllers}


def looks(node: FakeNode) -> int:
    return min(each.statistics().looks for each in node.controllers)


@pytest.mark.parametrize("firewall", ["iptables", "nftables"])
async def test_while_nobody_changes_anything_nothing_is_read(tmp_path: Path, firewall: str) -> None:
    node = await serving(tmp_path, firewall=firewall)
    before, looked = resyncs(node), looks(node)
    for _ in range(10):
        await node.resync()
    assert resyncs(node) == before
    assert looks(node) >= looked + 9


@pytest.mark.parametrize("firewall", ["iptables", "nftables"])
async def test_its_own_writes_make_it_read_nothing(tmp_path: Path, firewall: str) -> None:
    node = await serving(tmp_path, firewall=firewall)
    before = resyncs(node)
    for number in range(2, 12):
        ports = [server(vip, port, "10.1.0.1") for vip in VIPS[:2] for port in range(80, 80 + number)]
        await node.apply(plan("more", number, server(f"10.96.1.{number}", 80, "10.1.0.2")), plan("web", number, *ports))
        await node.resync()
    assert resyncs(node) == before
    assert node.masquerade.statistics().repairs == node.route_fix.statistics().repairs == 0


async def test_while_nobody_changes_rules_they_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await serving(tmp_path)
    for xtables in node.xtables.values():
        monkeypatch.delattr(type(xtables), "ensure", raising=False)
    await node.resync()
    await node.resync()
    assert node.masquerade.statistics().failures == 0


OF_SETS: dict[str, Callable[[FakeNode], object]] = {
    "an element is removed": lambda node: node.kernel.sets[CLUSTER_IPS].elements.remove(PORT),
    "an element is added": lambda node: node.kernel.sets[CLUSTER_IPS].elements.add(OTHER_PORT),
    "one is exchanged for another": lambda node: node.kernel.sets[CLUSTER_IPS].elements.symmetric_difference_update(
        {PORT, OTHER_PORT}
    ),
    "a set is flushed": lambda node: node.kernel.sets[CLUSTER_IPS].elements.clear(),
    "a set is missing": lambda node: node.kernel.sets.pop(CLUSTER_IPS),
}


@pytest.mark.parametrize("damage", OF_SETS.values(), ids=OF_SETS)
async def test_a_changed_set_is_found_by_the_next_look(tmp_path: Path, damage: Callable[[FakeNode], object]) -> None:
    node = await serving(tmp_path)
    intact = set(node.kernel.sets[CLUSTER_IPS].elements)
    damage(node)
    await node.resync()
    assert node.kernel.sets[CLUSTER_IPS].elements == intact
    assert node.masquerade.statistics().repairs > 0


async def test_a_missing_element_is_found_by_the_next_look_after_writes_to_its_set(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.sets[CLUSTER_IPS].elements.remove(PORT)
    await node.apply(plan("more", 2, server("10.96.0.3", 80, "10.1.0.2")))
    assert PORT not in node.kernel.sets[CLUSTER_IPS].elements
    await node.resync()
    assert PORT in node.kernel.sets[CLUSTER_IPS].elements


def move_jump(node: FakeNode) -> None:
    """Put the jumps of PREROUTING behind a foreign rule."""
    rules = chain(node, "nat", "PREROUTING")
    rules[:] = [FOREIGN, *rules]


OF_RULES: dict[str, Callable[[FakeNode], object]] = {
    "a foreign rule comes before ours": lambda node: chain(node, "filter", "KROUTE-INPUT").insert(0, FOREIGN),
    "a rule is deleted": lambda node: chain(node, "nat", "KROUTE-SERVICES").pop(),
    "the jumps are moved": move_jump,
    "a jump is deleted": lambda node: chain(node, "filter", "INPUT").clear(),
    "a table is deleted": lambda node: node.kernel.tables.pop((socket.AF_INET, "mangle")),
}


@pytest.mark.parametrize("damage", OF_RULES.values(), ids=OF_RULES)
async def test_changed_rules_are_found_by_the_next_look_which_reads_no_set(
    tmp_path: Path, damage: Callable[[FakeNode], object]
) -> None:
    node = await serving(tmp_path)
    before = resyncs(node)
    damage(node)
    await node.resync()
    assert node.masquerade.statistics().repairs > 0
    await node.resync()
    await node.resync()
    assert resyncs(node) == before
    assert move_jump is not damage or chain(node, "nat", "PREROUTING")[-1] == FOREIGN


async def test_rules_for_other_facts_of_the_node_are_written_once_and_then_only_looked_at(tmp_path: Path) -> None:
    node = await serving(tmp_path, snat_source="node-ip")
    before = resyncs(node)
    await node.apply(node_plan(2, ipv4="192.168.123.239"))
    for _ in range(4):
        await node.resync()
    assert resyncs(node)["masquerade"] == before["masquerade"]
    assert node.masquerade.statistics().repairs == 0


async def test_the_firewall_is_read_every_hour_and_the_rest_every_day_while_nobody_else_writes(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    pauses = {each.name: each.statistics().resync_pause for each in node.controllers}
    assert pauses == {
        "service_proxy": LONGEST_UNDISTURBED,
        "route_fix": LONGEST_UNDISTURBED,
        "masquerade": LONGEST_PAUSE,
    }
    node.kernel.links[DUMMY].routes[VIPS[0]].clear()
    for _ in range(MOST_LOOKS):
        await node.resync()
    assert node.route_fix.statistics().resync_pause < LONGEST_PAUSE


OF_ROUTES: dict[str, Callable[[dict[str, list[LocalRoute]]], object]] = {
    "an IPv4 route is gone": lambda routes: routes[VIPS[0]].remove(LocalRoute(VIPS[0], NODE_IPV4, 0)),
    "an IPv6 route is gone": lambda routes: routes[VIPS[2]].clear(),
    "a route has another source": lambda routes: routes.update(
        {VIPS[2]: [it._replace(source="fd00:123::1") for it in routes[VIPS[2]]]}
    ),
    "all IPv4 routes are flushed": lambda routes: [routes.pop(it) for it in VIPS[:2]],
}


@pytest.mark.parametrize("damage", OF_ROUTES.values(), ids=OF_ROUTES)
@pytest.mark.parametrize("wrote", [False, True], ids=["idle", "after own writes"])
async def test_a_route_that_goes_without_an_event_is_found_by_a_later_look(
    tmp_path: Path, damage: Callable[[dict[str, list[LocalRoute]]], object], wrote: bool
) -> None:
    node = await serving(tmp_path)
    damage(node.kernel.links[DUMMY].routes)
    if wrote:
        await node.apply(plan("more", 2, server("10.96.0.3", 80), server("fd00::3", 80)))
    for _ in range(MOST_LOOKS):
        await node.resync()
    routes = node.kernel.links[DUMMY].routes
    found = [routes[vip][0].source for vip in VIPS]
    assert found == [NODE_IPV4, NODE_IPV4, NODE_IPV6]
    assert node.route_fix.statistics().repairs > 0


async def test_the_kernels_own_routes_make_it_read_nothing(tmp_path: Path) -> None:
    """They come and go with addresses, which is reported."""
    node = await serving(tmp_path)
    for _ in range(MOST_LOOKS):
        assert not await node.route_fix.look()
    node.kernel.add_address(DUMMY, "10.99.0.1")
    await node.pump()
    await node.route_fix.step()
    for _ in range(MOST_LOOKS):
        assert not await node.route_fix.look()


async def test_an_overrun_makes_all_controllers_with_events_read_at_once(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    routes = node.kernel.links[DUMMY].routes
    routes[VIPS[0]].clear()
    node.kernel.overrun()
    await node.settle()
    assert routes[VIPS[0]][0].source == NODE_IPV4


@pytest.mark.parametrize("wrote", [False, True], ids=["idle", "after own writes"])
async def test_an_address_that_goes_without_an_event_is_found_by_a_later_look(tmp_path: Path, wrote: bool) -> None:
    node = await serving(tmp_path)
    vips = node.service_proxy._vips
    for _ in range(2 * MOST_LOOKS):
        assert not await vips.look()
    del node.kernel.links[DUMMY].addresses[VIPS[0]]
    if wrote:
        await node.apply(plan("more", 2, server("10.96.0.3", 80)))
    assert [await vips.look() for _ in range(MOST_LOOKS)].count(True) == 1


async def test_a_foreign_address_is_found_by_its_digest_on_a_link_with_others(tmp_path: Path) -> None:
    """Addresses of others on the link are no reason to read it again and again."""
    node = await serving(tmp_path)
    node.kernel.add_address(DUMMY, "10.99.0.1")
    vips = node.service_proxy._vips
    found = [await vips.look() for _ in range(MOST_LOOKS)]
    assert found.count(True) == 1
    await vips.learn()
    assert not any([await vips.look() for _ in range(2 * MOST_LOOKS)])


async def test_a_first_resync_of_an_empty_kernel_does_not_have_all_read_a_period_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "Metered", lambda work: Metered(work, lambda: 0.0))  # reading nothing took no time
    node = FakeNode(tmp_path, resync_budget=0.001)
    await node.start(*[plan(f"s{number}", 1, server(f"10.96.1.{number}", 80, "10.1.0.1")) for number in range(200)])
    await node.resync()
    assert (resyncs(node)["service_proxy"], resyncs(node)["route_fix"]) == (1, 1)
