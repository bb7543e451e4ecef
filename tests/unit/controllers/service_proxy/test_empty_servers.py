"""A port without endpoints has a virtual server in the kernel only while its last real servers drain."""

import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kroute.kernel.ipvs.objects import (
    AddRealServer,
    AddVirtualServer,
    DeleteRealServer,
    DeleteVirtualServer,
    RealServerState,
    SetRealServer,
    SetVirtualServer,
    VirtualServerOptions,
    VirtualServerState,
)
from kroute.model.plan import Protocol, ServicePlan
from kroute.reconcile.ledger import Ledger
from tests.unit.fake_node import DUMMY, NODE_IPV4, FakeNode, new_kernel, plan, server

WEB = (6, "10.96.0.1", 80)
NODE_PORT = (6, NODE_IPV4, 30080)
POD = ("10.1.0.1", 8080)


def web(generation: int, *real_servers: str) -> ServicePlan:
    """Return the plan of default/web with a ClusterIP and a node port."""
    return plan("web", generation, server("10.96.0.1", 80, *real_servers), server(NODE_IPV4, 30080, *real_servers))


async def serving(tmp_path: Path, **options: object) -> FakeNode:
    """Return a node that serves default/web with one real server; it records the writes from now on."""
    node = await FakeNode(tmp_path, **options).start(web(1, "10.1.0.1"))
    node.kernel.writes.clear()
    return node


def connect(node: FakeNode, connections: int) -> None:
    for key in (WEB, NODE_PORT):
        node.ipvs.set_connections(key, POD, connections, 0)


def of(node: FakeNode, key: tuple[int, str, int]) -> list[object]:
    """Return the writes to one virtual server."""
    return [write for write in node.kernel.writes if getattr(write, "key", None) == key]


async def test_it_is_not_made_and_its_address_is_bound(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(web(1))
    await node.resync()
    assert node.kernel.virtual_servers == {}
    assert set(node.kernel.links[DUMMY].addresses) == {"10.96.0.1"}
    assert node.service_proxy.live.is_set()
    assert node.service_proxy.statistics().repairs == 0
    assert Ledger.open(tmp_path).virtual_servers == set()


@pytest.mark.parametrize("key", [WEB, NODE_PORT], ids=["cluster ip", "node port"])
async def test_it_stays_while_its_last_real_server_drains_and_goes_with_it(
    tmp_path: Path, key: tuple[int, str, int]
) -> None:
    node = await serving(tmp_path)
    connect(node, 1)
    await node.apply(web(2))
    await node.wait(100)
    assert of(node, key) == [SetRealServer(key, POD, 0)]
    connect(node, 0)
    await node.wait(31)
    assert of(node, key) == [SetRealServer(key, POD, 0), DeleteRealServer(key, POD), DeleteVirtualServer(key)]
    assert Ledger.open(tmp_path).virtual_servers == set()
    assert node.service_proxy.next_due() is None
    assert node.service_proxy.statistics().repairs == 0


async def test_it_goes_at_the_first_look_when_nothing_is_connected(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    await node.apply(web(2))
    await node.wait(2)
    assert node.kernel.virtual_servers == {}


async def test_it_goes_after_the_drain_timeout_with_its_connections(tmp_path: Path) -> None:
    node = await serving(tmp_path, drain_timeout=10.0)
    connect(node, 5)
    await node.apply(web(2))
    await node.wait(9)
    assert set(node.kernel.virtual_servers) == {WEB, NODE_PORT}
    await node.wait(2)
    assert node.kernel.virtual_servers == {}


@pytest.mark.parametrize("protocol", [Protocol.UDP, Protocol.SCTP])
async def test_that_of_udp_and_sctp_goes_at_once(tmp_path: Path, protocol: Protocol) -> None:
    node = await FakeNode(tmp_path).start(plan("dns", 1, server("10.96.0.1", 53, "10.1.0.1", protocol=protocol)))
    node.ipvs.set_connections((int(protocol), "10.96.0.1", 53), POD, 5, 5)
    await node.apply(plan("dns", 2, server("10.96.0.1", 53, protocol=protocol)))
    assert node.kernel.virtual_servers == {}


async def test_a_real_server_that_comes_back_while_it_drains_finds_the_same_virtual_server(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    connect(node, 1)
    await node.apply(web(2))
    await node.apply(web(3, "10.1.0.1"))
    connect(node, 0)
    await node.wait(31)
    assert of(node, WEB) == [SetRealServer(WEB, POD, 0), SetRealServer(WEB, POD, 1)]


async def test_a_real_server_that_comes_while_another_drains_is_added(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    connect(node, 1)
    await node.apply(web(2))
    await node.apply(web(3, "10.1.0.2"))
    assert of(node, WEB) == [SetRealServer(WEB, POD, 0), AddRealServer(WEB, ("10.1.0.2", 8080), 1)]


async def test_options_that_changed_while_it_drained_hold_when_a_real_server_comes(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    connect(node, 1)
    await node.apply(plan("web", 2, server("10.96.0.1", 80, scheduler="lc")))
    await node.apply(plan("web", 3, server("10.96.0.1", 80, "10.1.0.2", scheduler="lc")))
    assert node.kernel.virtual_servers[WEB].options == VirtualServerOptions("lc")


async def test_a_real_server_that_comes_later_has_the_virtual_server_made_anew(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    await node.apply(web(2))
    await node.wait(2)
    node.kernel.writes.clear()
    await node.apply(web(3, "10.1.0.1"))
    assert of(node, NODE_PORT) == [
        AddVirtualServer(NODE_PORT, VirtualServerOptions("rr")),
        AddRealServer(NODE_PORT, POD, 1),
    ]
    assert Ledger.open(tmp_path).virtual_servers == {WEB, NODE_PORT}


async def test_a_restart_goes_on_draining(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    connect(node, 1)
    await node.apply(web(2))
    node = await node.restarted().start(web(1))
    await node.wait(100)
    assert node.kernel.writes == []
    connect(node, 0)
    await node.wait(31)
    assert node.kernel.virtual_servers == {}


async def test_an_empty_one_that_an_earlier_run_left_goes(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    for state in node.kernel.virtual_servers.values():
        state.real_servers.clear()
    node = await node.restarted().start(web(1))
    assert node.kernel.virtual_servers == {}


async def test_one_that_an_earlier_run_left_serving_drains(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    connect(node, 1)
    node = await node.restarted().start(web(1))
    assert of(node, WEB) == [SetRealServer(WEB, POD, 0)]


async def test_somebody_who_deletes_what_drains_leaves_nothing_to_stay_for(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    connect(node, 1)
    await node.apply(web(2))
    node.kernel.virtual_servers[WEB].real_servers.clear()
    with capture_logs() as logs:
        await node.resync()
    assert set(node.kernel.virtual_servers) == {NODE_PORT}
    assert [line["what"] for line in logs if line["event"] == "repair"] == [
        "virtual server TCP 10.96.0.1:80 is not wanted"
    ]


async def test_a_deletion_that_is_refused_is_tried_again(tmp_path: Path) -> None:
    node = await serving(tmp_path)
    node.kernel.refuse(lambda change: isinstance(change, DeleteVirtualServer), errno.EBUSY)
    await node.apply(web(2))
    await node.wait(2)
    assert set(node.kernel.virtual_servers) == {WEB, NODE_PORT}
    node.kernel.accept_all()
    await node.wait(1)
    assert node.kernel.virtual_servers == {}


async def test_somebody_elses_on_its_address_is_nobodys_business_until_there_is_something_to_serve(
    tmp_path: Path,
) -> None:
    foreign = VirtualServerState(VirtualServerOptions("wlc"), {("192.168.9.9", 80): RealServerState(3)})
    node = FakeNode(tmp_path)
    node.kernel.virtual_servers[NODE_PORT] = foreign
    await node.start(web(1))
    await node.resync()
    assert node.problems == []
    await node.apply(web(2, "10.1.0.1"))
    assert [problem.reason for _, problem in node.problems] == ["ForeignVirtualServer"]
    await node.apply(web(3))
    await node.wait(40)
    assert node.kernel.virtual_servers == {NODE_PORT: foreign}


async def test_its_scheduler_is_asked_for_only_when_there_is_something_to_serve(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, new_kernel(schedulers=frozenset({"rr"})))
    await node.start(plan("web", 1, server("10.96.0.1", 80, scheduler="mh")))
    assert (node.kernel.virtual_servers, node.problems) == ({}, [])
    await node.apply(plan("web", 2, server("10.96.0.1", 80, "10.1.0.1", scheduler="mh")))
    assert [problem.reason for _, problem in node.problems] == ["SchedulerMissing"]


async def test_a_scheduler_is_asked_for_again_by_one_that_is_served(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, new_kernel(schedulers=frozenset({"rr"})))
    servers = [server("10.96.0.1", port, "10.1.0.1", scheduler="mh") for port in range(80, 90)]
    await node.start(plan("web", 1, *servers))
    empty = [server("10.96.0.1", port, scheduler="mh") for port in range(80, 89)]
    await node.apply(plan("web", 2, *empty, servers[-1]))
    await node.wait(2)
    node.kernel.schedulers.add("mh")
    node.kernel.writes.clear()
    await node.resync()
    assert node.kernel.writes == [SetVirtualServer((6, "10.96.0.1", 89), VirtualServerOptions("mh"))]
