"""What a rival changes is repaired at once, and then once a minute at most; plans are written at once all the while."""

from pathlib import Path

from kroute.controllers.node_controllers import REPAIRS_APART
from tests.unit.fake_node import DUMMY, FakeNode, plan, server

VIP = "10.96.0.1"
KEY = (6, VIP, 80)


async def contested(tmp_path: Path) -> FakeNode:
    node = FakeNode(tmp_path)
    await node.start(plan("a", 1, server(VIP, 80, "10.1.0.1")))
    await node.resync()
    node.wiring.restrain(True)
    await node.settle()
    return node


def ruin(node: FakeNode) -> None:
    """Do what a rival does that does not know the Service: in IPVS, and with an event on the dummy interface."""
    node.kernel.virtual_servers.pop(KEY, None)
    if node.kernel.has_address(VIP):
        node.kernel.delete_address(DUMMY, VIP)


async def test_no_object_is_written_again_more_than_once_a_minute(tmp_path: Path) -> None:
    node = await contested(tmp_path)
    repairs, bindings = 0, 0
    for _ in range(60):  # five minutes
        ruin(node)
        await node.wait(5)
        repairs += KEY in node.kernel.virtual_servers
        bindings += node.kernel.has_address(VIP)
    assert (repairs, bindings) == (300 / REPAIRS_APART, 300 / REPAIRS_APART)


async def test_what_the_rival_has_changed_before_it_was_found_is_repaired_at_once(tmp_path: Path) -> None:
    """kube-proxy removes every virtual server when it starts in the mode nftables, and kroute goes on serving."""
    node = FakeNode(tmp_path)
    await node.start(plan("a", 1, server(VIP, 80, "10.1.0.1")))
    await node.resync()
    ruin(node)
    node.wiring.restrain(True)
    await node.settle()
    assert KEY in node.kernel.virtual_servers
    assert node.kernel.has_address(VIP)


async def test_without_a_rival_both_are_repaired_at_the_next_look(tmp_path: Path) -> None:
    node = await contested(tmp_path)
    node.wiring.restrain(False)
    await node.settle()
    ruin(node)
    await node.resync()
    assert KEY in node.kernel.virtual_servers
    assert node.kernel.has_address(VIP)


async def test_a_new_plan_is_written_at_once_all_the_same(tmp_path: Path) -> None:
    node = await contested(tmp_path)
    await node.wait(1)
    await node.apply(plan("b", 2, server("10.96.0.2", 80, "10.1.0.1")))
    assert (6, "10.96.0.2", 80) in node.kernel.virtual_servers
    assert node.kernel.has_address("10.96.0.2")


async def test_the_end_of_the_rival_is_followed_by_a_repair_at_once(tmp_path: Path) -> None:
    node = await contested(tmp_path)
    ruin(node)
    await node.wait(1)
    node.wiring.restrain(False)
    await node.settle()
    assert KEY in node.kernel.virtual_servers
    assert node.kernel.has_address(VIP)
