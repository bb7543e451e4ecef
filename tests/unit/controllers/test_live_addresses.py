"""On an address that is live already, a virtual server accepts no connection before its rules are ready."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.kernel.ipset import AddEntry, DeleteEntry
from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    RealServerState,
    SetRealServer,
    VirtualServerOptions,
    VirtualServerState,
)
from kroute.kernel.net.addresses import UnbindAddress
from kroute.model.plan import AddressSet, Protocol, ServicePlan
from kroute.reconcile.stage_gate import WITHDRAWN
from tests.unit.fake_node import DUMMY, NODE_IPV4, FakeNode, plan, server

NODE_PORT = (6, NODE_IPV4, 30080)
WEB = (6, "10.96.0.1", 80)
LOCAL, REMOTE = ("10.1.0.1", 8080), ("10.2.0.1", 8080)
ELEMENT = (NODE_IPV4, 6, 30080)
SERVED_HERE = (AddressSet.EXTERNAL_LOCAL,)
SERVED_ELSEWHERE = (AddressSet.EXTERNAL_LOCAL, AddressSet.NO_LOCAL)


def web(generation: int, *real_servers: str, external: tuple[AddressSet, ...] = (AddressSet.EXTERNAL,)) -> ServicePlan:
    """Return the plan of default/web with a node port."""
    return plan("web", generation, server(NODE_IPV4, 30080, *real_servers), external=external)


async def serving(tmp_path: Path, *plans: ServicePlan) -> FakeNode:
    """Return a node that serves these plans; it records the writes from now on."""
    node = await FakeNode(tmp_path).start(*plans)
    node.kernel.writes.clear()
    return node


def unprepared(node: FakeNode, *plans: ServicePlan) -> Callable[[], None]:
    """Publish plans whose set entries the kernel refuses, until the returned function is called."""
    node.kernel.refuse(lambda change: isinstance(change, AddEntry), errno.ENOMEM)
    node.broadcaster.publish(plans)
    return node.kernel.accept_all


def weights(node: FakeNode, key: tuple[int, str, int] = NODE_PORT) -> dict[tuple[str, int], int]:
    return {real: state.weight for real, state in node.kernel.virtual_servers[key].real_servers.items()}


def place(node: FakeNode, write: object) -> int:
    return list(node.kernel.writes).index(write)


async def test_a_node_port_waits_for_its_set_entries(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.broadcaster.publish([web(1, "10.1.0.1")])
    await node.service_proxy.step()
    assert node.kernel.virtual_servers == {}
    await node.masquerade.step()
    await node.service_proxy.step()
    assert weights(node) == {LOCAL: 1}


async def test_a_new_port_waits_on_a_bound_vip_and_on_a_new_one_whose_route_brings_packets(tmp_path: Path) -> None:
    node = await serving(tmp_path, plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    servers = [server(vip, port, "10.1.0.1") for vip, port in (("10.96.0.1", 80), ("10.96.0.1", 81), ("10.96.0.2", 80))]
    node.broadcaster.publish([plan("web", 2, *servers)])
    await node.service_proxy.step()
    await node.route_fix.step()
    await node.service_proxy.step()
    assert set(node.kernel.virtual_servers) == {WEB}
    await node.settle()
    assert set(node.kernel.virtual_servers) == {WEB, (6, "10.96.0.1", 81), (6, "10.96.0.2", 80)}


async def test_a_real_server_that_comes_waits_and_one_that_goes_does_not(tmp_path: Path) -> None:
    node = await serving(
        tmp_path, web(1, "10.1.0.1"), plan("other", 1, server("10.96.0.1", 80, "10.1.0.1", "10.3.0.1"))
    )
    unprepared(node, web(2, "10.1.0.1", "10.2.0.1"), plan("other", 2, server("10.96.0.1", 80, "10.1.0.1")))
    await node.settle()
    assert weights(node) == {LOCAL: 1}
    assert weights(node, WEB) == {LOCAL: 1, ("10.3.0.1", 8080): 0}


async def test_a_real_server_that_drains_gets_its_weight_back_when_the_entries_are_there(tmp_path: Path) -> None:
    node = await serving(tmp_path, web(1, "10.1.0.1"))
    node.ipvs.set_connections(NODE_PORT, LOCAL, 1, 0)
    await node.apply(web(2))
    accept = unprepared(node, web(3, "10.1.0.1"))
    await node.settle()
    assert weights(node) == {LOCAL: 0}
    accept()
    await node.wait(1)
    assert weights(node) == {LOCAL: 1}


async def test_after_five_seconds_it_is_let_in_anyway_with_one_warning(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    with capture_logs() as logs:
        unprepared(node, web(1, "10.1.0.1"))
        await node.settle()
        await node.wait(4.9)
        assert node.kernel.virtual_servers == {}
        await node.wait(0.2)
        assert weights(node) == {LOCAL: 1}
        await node.wait(20)
    [line] = [line for line in logs if line["event"] == "service.unprepared"]
    assert line["services"] == ["default/web"]


async def test_a_service_that_changes_all_the_time_is_let_in_in_time(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    for generation in range(1, 9):
        unprepared(node, web(generation, f"10.1.0.{generation}"))
        await node.settle()
        node.clock.now += 1
    assert NODE_PORT in node.kernel.virtual_servers


async def test_what_leaves_for_good_waits_for_nothing(tmp_path: Path) -> None:
    node = await serving(tmp_path, web(1, "10.1.0.1"))
    node.broadcaster.publish([plan("web", 2)])
    await node.service_proxy.step()
    assert node.kernel.writes == [DeleteVirtualServer(NODE_PORT)]
    assert node.stage_gate.has_passed(plan("web", 2), WITHDRAWN)


async def test_without_endpoints_real_servers_go_at_once_and_the_port_is_not_the_hosts_before_it_is_refused(
    tmp_path: Path,
) -> None:
    before, after = [
        plan("dns", generation, server(NODE_IPV4, 30053, *reals, protocol=Protocol.UDP))
        for generation, reals in ((1, ["10.1.0.1"]), (2, []))
    ]
    key = (17, NODE_IPV4, 30053)
    node = await serving(tmp_path, before)
    await node.apply(after)
    assert [write for write in node.kernel.writes if not isinstance(write, DeleteEntry)] == [
        DeleteRealServer(key, LOCAL),
        AddEntry("KROUTE-NO-ENDPOINT", (NODE_IPV4, 17, 30053)),
        DeleteVirtualServer(key),
    ]


async def test_after_a_kill_what_has_drained_goes_only_when_its_port_is_refused(tmp_path: Path) -> None:
    node = await serving(tmp_path, web(1, "10.1.0.1"))
    node.broadcaster.publish([web(2)])
    await node.service_proxy.step()
    node = await node.restarted().start(web(2))
    refused = place(node, AddEntry("KROUTE-NO-ENDPOINT", ELEMENT))
    assert refused < place(node, DeleteVirtualServer(NODE_PORT))


async def test_clients_outside_are_kept_out_before_real_servers_elsewhere_come_in(tmp_path: Path) -> None:
    node = await serving(tmp_path, web(1, "10.1.0.1", external=SERVED_HERE))
    await node.apply(web(2, "10.2.0.1", external=SERVED_ELSEWHERE))
    kept_out = place(node, AddEntry("KROUTE-NO-LOCAL", ELEMENT))
    assert kept_out < place(node, AddRealServer(NODE_PORT, REMOTE, 1))


@pytest.mark.parametrize("restart", [False, True], ids=["running", "after a restart"])
async def test_clients_outside_are_let_in_after_real_servers_elsewhere_have_gone(tmp_path: Path, restart: bool) -> None:
    node = await serving(tmp_path, web(1, "10.2.0.1", external=SERVED_ELSEWHERE))
    if restart:
        node = await node.restarted().start(web(2, "10.1.0.1", external=SERVED_HERE))
    else:
        await node.apply(web(2, "10.1.0.1", external=SERVED_HERE))
    let_in = place(node, DeleteEntry("KROUTE-NO-LOCAL", ELEMENT))
    assert place(node, SetRealServer(NODE_PORT, REMOTE, 0)) < let_in


async def test_withdrawal_is_said_only_when_the_edit_is_written(tmp_path: Path) -> None:
    node = await serving(tmp_path, web(1, "10.2.0.1"))
    newer = web(2, "10.1.0.1", external=SERVED_HERE)
    node.broadcaster.publish([newer])
    await node.service_proxy.step()
    assert not node.stage_gate.has_passed(newer, WITHDRAWN)
    await node.masquerade.step()
    await node.service_proxy.step()
    assert weights(node) == {LOCAL: 1, REMOTE: 0}
    assert node.stage_gate.has_passed(newer, WITHDRAWN)


async def test_the_deadline_frees_the_withdrawal_too(tmp_path: Path) -> None:
    node = await serving(tmp_path, web(1, "10.2.0.1"))
    newer = web(2, "10.1.0.1", external=SERVED_HERE)
    unprepared(node, newer)
    await node.settle()
    await node.wait(4.9)
    assert not node.stage_gate.has_passed(newer, WITHDRAWN)
    await node.wait(0.2)
    assert weights(node) == {LOCAL: 1, REMOTE: 0}
    assert node.stage_gate.has_passed(newer, WITHDRAWN)


async def test_a_foreign_virtual_server_in_the_way_holds_the_withdrawal_up_no_longer(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    node.kernel.virtual_servers[NODE_PORT] = VirtualServerState(
        VirtualServerOptions("wlc"), {("192.168.9.9", 80): RealServerState(3)}
    )
    both = plan("web", 1, server(NODE_IPV4, 30080, "10.1.0.1"), server("10.96.0.1", 80, "10.1.0.1"))
    await node.start(both)
    await node.wait(5.1)
    only = web(2, "10.1.0.1")
    await node.apply(only)
    assert ("10.96.0.1", 6, 80) in node.kernel.sets["KROUTE-CLUSTER-IP"].elements
    await node.wait(5.1)
    assert node.stage_gate.has_passed(only, WITHDRAWN)
    assert node.kernel.sets["KROUTE-CLUSTER-IP"].elements == set()


async def test_a_service_with_node_ports_only_is_served_and_its_node_goes_live(tmp_path: Path) -> None:
    node = await serving(tmp_path, web(1, "10.1.0.1"))
    assert weights(node) == {LOCAL: 1}
    assert node.kernel.links[DUMMY].addresses == {}
    assert node.service_proxy.live.is_set()
    await node.resync()
    assert node.kernel.writes == []


async def test_a_restart_without_a_change_writes_nothing(tmp_path: Path) -> None:
    plans = [web(1, "10.1.0.1"), plan("vip", 1, server("10.96.0.1", 80, "10.1.0.1"))]
    node = await serving(tmp_path, *plans)
    node = await node.restarted().start(*plans)
    await node.resync()
    assert node.kernel.writes == []


async def test_a_missing_virtual_server_is_repaired_at_once(tmp_path: Path) -> None:
    node = await serving(tmp_path, web(1, "10.1.0.1"))
    del node.kernel.virtual_servers[NODE_PORT]
    node.service_proxy.resync_soon()
    await node.service_proxy.step()
    assert weights(node) == {LOCAL: 1}


async def test_a_vip_that_moves_to_another_interface_leaves_its_virtual_server_alone(tmp_path: Path) -> None:
    node = await serving(tmp_path, plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    node.kernel.add_address("eth0", "10.96.0.1", 24)
    elsewhere = plan("web", 2, server("10.96.0.1", 80, "10.1.0.1"))
    elsewhere = ServicePlan(elsewhere.key, 2, elsewhere.virtual_servers, set_entries=elsewhere.set_entries[:-1])
    await node.apply(elsewhere)
    assert UnbindAddress("10.96.0.1") in node.kernel.writes
    assert not [write for write in node.kernel.writes if getattr(write, "key", None) == WEB]
    await node.apply(plan("web", 3))
    assert node.kernel.virtual_servers == {}


async def test_a_node_address_becomes_a_vip_without_a_word_to_its_virtual_server(tmp_path: Path) -> None:
    served = plan("web", 2, server("10.96.0.1", 80, "10.1.0.1"))
    node = await serving(tmp_path, ServicePlan(served.key, 1, served.virtual_servers))
    assert weights(node, WEB) == {LOCAL: 1}
    node.kernel.writes.clear()
    await node.apply(served)
    assert "10.96.0.1" in node.kernel.links[DUMMY].addresses
    assert not [write for write in node.kernel.writes if isinstance(write, AddVirtualServer)]
