"""service_proxy ends the UDP flows that a change of its virtual servers has made stale, and no others."""

import errno
from collections.abc import Iterable
from pathlib import Path

import pytest

from kroute.kernel.conntrack import DeleteFlow, Flow
from kroute.kernel.ipvs.objects import AddVirtualServer, RealServerState, VirtualServerOptions, VirtualServerState
from kroute.model.plan import Protocol, ServicePlan
from tests.fakes.kernel import Operation
from tests.unit.fake_node import DUMMY, NODE_IPV4, FakeNode, new_kernel, plan, server

CLIENT = "10.1.0.77"
DNS = (17, "10.96.0.10", 53)
PAUSE = 120.0
"""Seconds after which the next look is due, whatever the last one took."""


def dns(generation: int, *real_servers: str, scheduler: str = "rr", leaving: Iterable[str] = ()) -> ServicePlan:
    """Return the plan of default/dns with a ClusterIP and a node port, both UDP."""
    keys = (("10.96.0.10", 53), (NODE_IPV4, 30053))
    options = {"scheduler": scheduler, "leaving": leaving}
    servers = [server(*key, *real_servers, protocol=Protocol.UDP, **options) for key in keys]  # type: ignore[arg-type]
    return plan("dns", generation, *servers)


def flow(port: int, real_server: str, destination: str = "10.96.0.10", destination_port: int = 53) -> Flow:
    """Return a client's flow that this real server answers."""
    answers_from = destination_port if real_server == destination else 8080
    return Flow(CLIENT, port, destination, destination_port, real_server, answers_from, CLIENT, port)


async def apply(node: FakeNode, *plans: ServicePlan) -> None:
    """Apply the plans, and let the pauses between looks pass."""
    await node.apply(*plans)
    for _ in range(2):
        await node.wait(PAUSE)


def left(node: FakeNode) -> set[int]:
    """Return the client ports of the flows that still exist."""
    return {one.source_port for _, one in node.kernel.flows}


def looks(node: FakeNode) -> list[object]:
    """Record every listing of the connection tracker from now on, in the returned list."""
    seen: list[object] = []

    def note(change: object) -> bool:
        if isinstance(change, Operation) and change.verb == "list UDP flows":
            seen.append(change)
        return False

    node.kernel.refuse(note, 0)
    return seen


async def test_flows_to_a_real_server_that_has_gone_are_ended_and_others_stay(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(dns(1, "10.1.0.1", "10.1.0.2"))
    node.conntrack.add_flows(flow(1001, "10.1.0.1"), flow(1002, "10.1.0.2"), flow(1003, "10.1.0.1", NODE_IPV4, 30053))
    node.conntrack.add_flows(flow(1004, "10.1.0.1", "192.0.2.53"))
    await apply(node, dns(2, "10.1.0.2"))
    assert left(node) == {1002, 1004}


async def test_flows_to_one_that_still_serves_stay_while_it_drains_and_end_with_it(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(dns(1, "10.1.0.1", "10.1.0.2", "10.1.0.3"))
    node.ipvs.set_connections(DNS, ("10.1.0.1", 8080), 0, 1)
    node.conntrack.add_flows(flow(1001, "10.1.0.1"), flow(1002, "10.1.0.2"), flow(1003, "10.1.0.3"))
    await apply(node)
    await node.apply(dns(2, "10.1.0.3", leaving=["10.1.0.1"]))
    assert left(node) == {1001, 1003}
    await apply(node)
    assert left(node) == {1003}


async def test_flows_are_ended_when_the_last_real_server_or_the_service_goes(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(dns(1, "10.1.0.1"))
    node.conntrack.add_flows(flow(1001, "10.1.0.1"))
    await apply(node, dns(2))
    assert left(node) == set()
    await apply(node, dns(3, "10.1.0.1"))
    node.conntrack.add_flows(flow(1002, "10.1.0.1"))
    await apply(node, plan("dns", 4))
    assert left(node) == set()


@pytest.mark.parametrize("scheduler", ["rr", "lc"], ids=["known scheduler", "one that is asked for"])
async def test_flows_from_before_a_virtual_server_was_made_are_ended(tmp_path: Path, scheduler: str) -> None:
    node = await FakeNode(tmp_path, new_kernel(schedulers=frozenset({"rr", "lc"}))).start(dns(1))
    node.conntrack.add_flows(flow(1001, "10.96.0.10"), flow(1002, NODE_IPV4, NODE_IPV4, 30053))
    await apply(node, dns(2, "10.1.0.1", scheduler=scheduler))
    assert left(node) == set()


async def test_a_restart_ends_what_went_stale_meanwhile_and_keeps_the_rest(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(dns(1, "10.1.0.1", "10.1.0.2"))
    node.conntrack.add_flows(flow(1001, "10.1.0.3"), flow(1002, "10.1.0.2"))
    node = await node.restarted().start(dns(1, "10.1.0.1", "10.1.0.2"))
    assert left(node) == {1002}
    assert [type(write) for write in node.kernel.writes] == [DeleteFlow]


async def test_edits_without_end_make_one_look_a_pause(tmp_path: Path) -> None:
    """One tenant exchanges an endpoint; the first exchange is looked at at once, all others together."""
    node = await FakeNode(tmp_path).start()
    await apply(node, dns(1, "10.1.0.1"))
    seen = looks(node)
    for generation in range(2, 22):
        node.conntrack.add_flows(flow(generation, f"10.1.0.{generation - 1}"))
        await node.apply(dns(generation, f"10.1.0.{generation}"))
    assert len(seen) == 1
    assert left(node) == set(range(3, 22))
    await node.wait(PAUSE)
    assert len(seen) == 2
    assert left(node) == set()


async def test_after_the_first_write_it_looks_only_when_something_may_be_stale(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(dns(1, "10.1.0.1"), plan("web", 1, server("10.96.0.1", 80, "10.1.0.1")))
    await node.wait(PAUSE)
    seen = looks(node)
    await apply(node, dns(2, "10.1.0.1", "10.1.0.2"), plan("web", 2, server("10.96.0.1", 80, "10.1.0.2")))
    await node.resync()
    assert seen == []
    await apply(node, dns(3, "10.1.0.2"))
    assert len(seen) == 1


async def test_flows_of_a_virtual_server_that_is_not_ours_are_left_alone(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    foreign = VirtualServerState(VirtualServerOptions("wlc"), {("192.168.9.9", 53): RealServerState(3)})
    node.kernel.virtual_servers[DNS] = foreign
    node.conntrack.add_flows(flow(1001, "192.168.9.9"))
    await node.start(dns(1, "10.1.0.1"))
    await apply(node, dns(2, "10.1.0.2"))
    await apply(node, plan("dns", 3))
    assert left(node) == {1001}


async def test_flows_of_a_virtual_server_that_somebody_else_was_quicker_to_make_are_left_alone(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start()
    node.conntrack.add_flows(flow(1001, "192.168.9.9"))
    node.kernel.refuse(lambda change: isinstance(change, AddVirtualServer) and change.key == DNS, errno.EEXIST)
    await apply(node, dns(1, "10.1.0.1"))
    assert left(node) == {1001}


async def test_a_look_that_failed_is_made_again_by_itself(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(dns(1, "10.1.0.1", "10.1.0.2"))
    node.conntrack.add_flows(flow(1001, "10.1.0.1"))
    node.kernel.refuse(lambda change: isinstance(change, Operation) and change.verb == "list UDP flows", errno.ENOBUFS)
    await apply(node, dns(2, "10.1.0.2"))
    assert left(node) == {1001}
    node.kernel.accept_all()
    due = node.service_proxy.next_due()
    assert due is not None
    await node.wait(due - node.clock.now)
    assert left(node) == set()


async def test_cleanup_ends_the_flows_of_what_it_deletes(tmp_path: Path) -> None:
    node = await FakeNode(tmp_path).start(dns(1, "10.1.0.1"))
    node.conntrack.add_flows(flow(1001, "10.1.0.1"), flow(1002, "10.1.0.1", "192.0.2.53"))
    node = node.restarted()
    await node.open()
    report = await node.cleanup()
    assert left(node) == {1002}
    assert "end the UDP flows of virtual server UDP 10.96.0.10:53 (1)" in report.undone


async def test_flows_that_began_before_the_address_was_bound_are_ended(tmp_path: Path) -> None:
    """The virtual server was there; the node sent their packets on to its gateway."""
    node = await FakeNode(tmp_path).start()
    node.broadcaster.publish([dns(1, "10.1.0.1"), plan("web", 1, server("10.96.0.1", 53, "10.1.0.1"))])
    await node.masquerade.step()
    await node.service_proxy.step()
    assert DNS in node.kernel.virtual_servers
    assert "10.96.0.10" not in node.kernel.links[DUMMY].addresses
    node.conntrack.add_flows(flow(1001, "10.96.0.10"), flow(1002, "10.1.0.1"))
    await node.settle()
    await node.wait(PAUSE)
    assert left(node) == {1002}
    seen = looks(node)
    node.kernel.delete_address(DUMMY, "10.96.0.1")
    await node.settle()
    assert seen == [], "only of TCP"
    node.kernel.delete_address(DUMMY, "10.96.0.10")
    node.conntrack.add_flows(flow(1003, "10.96.0.10"))
    await node.settle()
    await node.wait(PAUSE)
    assert left(node) == {1002}
