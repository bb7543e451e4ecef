"""`kroute plan` tells what direct return would do on the node and in which pods, and enters none."""

from pathlib import Path

from kroute.inspect.dry_run import dry_run
from tests.unit.controllers.test_direct_return import POD, REMOTE, VIP, direct
from tests.unit.fake_node import FakeNode, node_plan

PLANS = (node_plan(1, "10.0.0.0/8"), direct(1, POD, REMOTE))


async def changes(node: FakeNode) -> list[str]:
    found = await dry_run(node.settings, PLANS, node.clients)
    assert not found.problems
    mine = [it for it in found.changes if it.kind == "direct return"]
    assert {it.service for it in mine if "rules" not in it.what} <= {"default/web"}
    return [it.what for it in mine]


async def test_it_is_what_an_agent_then_does_and_nothing_where_it_has_been_done(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, direct_return=True)
    pod = node.clients.tunnels.add_pod(POD)
    await node.clients.open()
    assert sorted(await changes(node)) == [
        f"deliver packets to {VIP}",
        f"end of a tunnel kroute-dsr4 in pod {POD}",
        "rules for packets with mark 0x4",
    ]
    assert (pod.tunnels, node.clients.tunnels.addresses, node.clients.tunnels.mark) == ({}, set(), None)
    await node.start(*PLANS)
    assert pod.tunnels
    assert await changes(node) == []
