"""Writing rules may take long: another program holds the lock. Sets are written meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kroute.controllers.prepared_pods import PreparedPods
from kroute.controllers.service_proxy.readiness import PATIENCE, Readiness
from kroute.kernel.errors import KernelError
from kroute.model.plan import NodePlan
from kroute.reconcile.stage_gate import ENTRIES_PREPARED, ROUTES_PREPARED
from tests.builders import say
from tests.unit.controllers.test_any_firewall import CLUSTER_IPS, PORT, WEB, Node
from tests.unit.fake_node import node_plan, plan, server

LATE = plan("late", 2, server("10.96.0.2", 80, "10.1.0.2"))
LATE_PORT = ("10.96.0.2", 6, 80)
MOVED = node_plan(3, ipv4="192.168.123.7")
MOVED_ON = node_plan(4, ipv4="192.168.123.8")


@asynccontextmanager
async def waiting(node: Node, wanted: NodePlan) -> AsyncIterator["asyncio.Task[None]"]:
    """A pass of the controller that waits for the lock; at the end of the block it is over."""
    node.firewall.lock.clear()
    async with asyncio.TaskGroup() as group:
        one_pass = group.create_task(node.masquerade.step())
        await settle()
        assert node.firewall.waiting_for == wanted.node
        yield one_pass
        node.firewall.lock.set()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_plan_is_prepared_while_rules_wait() -> None:
    node = await Node().start(WEB)
    node.broadcaster.publish([MOVED])
    async with waiting(node, MOVED) as one_pass:
        node.broadcaster.publish([LATE])
        await settle()
        assert node.firewall.sets[CLUSTER_IPS] == {PORT, LATE_PORT}
        assert node.gate.has_passed(LATE, ENTRIES_PREPARED)
        assert not one_pass.done()
    assert node.firewall.written_for == MOVED.node


async def test_nothing_is_prepared_while_the_first_rules_wait() -> None:
    node = Node()
    node.publish(WEB)
    await node.masquerade.start()
    async with waiting(node, node_plan()):
        node.broadcaster.publish([LATE])
        await settle()
        assert node.firewall.sets[CLUSTER_IPS] == {PORT, LATE_PORT}
        assert not any(node.gate.has_passed(it, ENTRIES_PREPARED) for it in (WEB, LATE))
    assert all(node.gate.has_passed(it, ENTRIES_PREPARED) for it in (WEB, LATE))


async def test_no_vip_goes_live_before_the_first_rules_however_long_they_take() -> None:
    """On a slow node they take longer than a VIP waits for a controller that does nothing."""
    node = Node()
    node.publish(WEB)
    await node.masquerade.start()
    node.gate.join(asyncio.Event(), says={ROUTES_PREPARED: lambda _: True})
    say(node.gate, ROUTES_PREPARED, [WEB])
    readiness = Readiness(node.gate, lambda *_: None, PreparedPods())
    readiness.add(WEB)

    async def looks() -> None:
        readiness.review(node.clock())
        await readiness.end_waits(lambda _: True, node.clock)

    async with waiting(node, node_plan()):
        for _ in range(4):
            await looks()
            node.clock.now += PATIENCE
        assert not readiness.is_ready_or_overdue(WEB.key)
    await looks()
    assert readiness.is_ready_or_overdue(WEB.key)


async def test_facts_that_change_while_rules_wait_are_written_after_it() -> None:
    node = await Node().start(WEB)
    node.broadcaster.publish([MOVED])
    async with waiting(node, MOVED):
        node.broadcaster.publish([MOVED_ON])
        await settle()
        assert node.firewall.waiting_for == MOVED.node
    assert node.masquerade.wake.is_set()
    await node.masquerade.step()
    assert node.firewall.written_for == MOVED_ON.node


async def test_a_stop_waits_for_the_rules_and_for_nothing_else() -> None:
    node = await Node().start(WEB)
    node.broadcaster.publish([MOVED])
    async with waiting(node, MOVED) as one_pass:
        node.masquerade.stop()
        node.broadcaster.publish([LATE])
        await settle()
        assert not one_pass.done()
        assert node.firewall.sets[CLUSTER_IPS] == {PORT}
    assert node.firewall.written_for == MOVED.node


async def test_a_set_that_cannot_be_written_meanwhile_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise KernelError("ipset is gone")

    node = await Node().start(WEB)
    node.broadcaster.publish([MOVED])
    node.firewall.lock.clear()
    one_pass = asyncio.create_task(node.masquerade.step())
    await settle()
    with monkeypatch.context() as patch:
        patch.setattr(node.firewall, "change_elements", refuse)
        node.broadcaster.publish([LATE])
        async with asyncio.timeout(60):
            await one_pass
    assert node.masquerade.statistics().last_error == "ipset is gone"
    node.firewall.lock.set()
    node.clock.now += 60
    await node.masquerade.step()
    assert node.firewall.written_for == MOVED.node
    assert node.firewall.sets[CLUSTER_IPS] == {PORT, LATE_PORT}
