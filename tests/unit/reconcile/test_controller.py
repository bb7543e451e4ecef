"""The one task of a controller: what wakes it, and how it ends."""

import asyncio
import errno
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from kroute.kernel.errors import KernelError
from kroute.kernel.net.monitor import AddressEvent
from kroute.model.plan import RealServer, ServicePlan
from kroute.reconcile import controller as controller_module
from kroute.reconcile.controller import Controller
from kroute.reconcile.stage_gate import GOING_LIVE, WITHDRAWN
from tests.fakes.kernel import FakeKernel
from tests.fakes.monitor import FakeMonitor
from tests.unit.fake_node import DUMMY, FakeNode, new_kernel, node_plan, plan, server
from tests.virtual_time import virtual

FIRST_LIST = [node_plan(), plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"))]
PATIENCE = 20.0
"""Seconds after which a test stops waiting: before the resync comes round."""


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  nothing signals what the fake kernel holds
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(tmp_path: Path, kernel: FakeKernel | None = None, **settings: object):
    """Run a node's controllers as in the agent, on the clock of the loop."""
    node = FakeNode(tmp_path, kernel, **settings)
    node.use_clock(asyncio.get_running_loop().time)
    await node.open()
    async with asyncio.TaskGroup() as group:
        for controller in node.controllers:
            group.create_task(controller.run())
        yield node
        for controller in node.controllers:
            controller.stop()


def counting(controller: Controller, steps: list[str]):
    step = controller.step

    async def count() -> None:
        steps.append(controller.name)
        await step()

    return count


@virtual(settles_within=0.0)
async def test_a_changed_real_server_takes_one_pass_of_the_controller_that_writes_it(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.broadcaster.publish(FIRST_LIST)
        await until(lambda: node.service_proxy.live.is_set() and not node.stage_gate.has_candidates(WITHDRAWN))
        await asyncio.sleep(0.05)  # for passes that nothing else shows
        steps: list[str] = []
        for controller in node.controllers:
            controller.step = counting(controller, steps)
        served = server("10.96.0.1", 80, "10.1.0.1")
        changed = plan("web", 2, msgspec.structs.replace(served, real_servers=(RealServer("10.1.0.1", 8080, 5),)))
        node.broadcaster.publish([changed])
        await until(lambda: node.stage_gate.has_passed(changed, *GOING_LIVE))
        await asyncio.sleep(0.05)
        assert steps == ["service_proxy"]


@virtual(settles_within=0.0)
async def test_no_controller_keeps_a_plan_that_a_newer_one_replaces(tmp_path: Path) -> None:
    served = server("10.96.0.1", 80, "10.1.0.1")
    older = plan("web", 1, served)
    newer = plan("web", 2, msgspec.structs.replace(served, real_servers=(RealServer("10.1.0.1", 8080, 5),)))
    unknown = sys.getrefcount(older)
    async with running(tmp_path) as node:
        node.broadcaster.publish([node_plan(), older])
        await until(lambda: node.service_proxy.live.is_set() and not node.stage_gate.has_candidates(WITHDRAWN))
        assert sys.getrefcount(older) > unknown
        node.broadcaster.publish([newer])
        await until(lambda: node.stage_gate.has_passed(newer, *GOING_LIVE))
        await asyncio.sleep(0.05)  # for passes that nothing else shows
        assert sys.getrefcount(older) == unknown


@virtual(settles_within=0.0)
async def test_plans_are_applied_as_they_come(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.broadcaster.publish([node_plan()])
        node.broadcaster.publish(FIRST_LIST)
        await until(lambda: DUMMY in node.kernel.links and "10.96.0.1" in node.kernel.links[DUMMY].addresses)
        node.broadcaster.publish([plan("web", 2)])
        await until(lambda: not node.kernel.links[DUMMY].addresses and not node.kernel.virtual_servers)
        await until(lambda: not node.kernel.sets["KROUTE-CLUSTER-IP"].elements)


@virtual(settles_within=0.0)
async def test_what_somebody_deletes_is_back_within_a_second(tmp_path: Path) -> None:
    now = asyncio.get_running_loop().time
    async with running(tmp_path) as node:
        delete_address, delete_link = node.kernel.delete_address, node.kernel.delete_link
        node.broadcaster.publish(FIRST_LIST)
        await until(lambda: DUMMY in node.kernel.links and "10.96.0.1" in node.kernel.links[DUMMY].addresses)
        for delete in (partial(delete_address, DUMMY, "10.96.0.1"), partial(delete_link, DUMMY)):
            delete()
            before = now()
            await until(lambda: DUMMY in node.kernel.links and "10.96.0.1" in node.kernel.links[DUMMY].addresses)
            assert now() - before < 1


@virtual(settles_within=0.0)
async def test_each_event_of_the_kernel_is_noticed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as node:
        noticed: list[object] = []
        notice = node.service_proxy.notice
        monkeypatch.setattr(node.service_proxy, "notice", lambda events: (noticed.extend(events), notice(events)))
        node.broadcaster.publish(FIRST_LIST)
        for repairs in range(1, 4):
            await until(lambda: DUMMY in node.kernel.links and "10.96.0.1" in node.kernel.links[DUMMY].addresses)
            node.kernel.delete_address(DUMMY, "10.96.0.1")
            await until(lambda count=repairs: node.service_proxy.statistics().repairs == count)
        await asyncio.sleep(0.1)
    assert [event.gone for event in noticed if isinstance(event, AddressEvent)] == [False, True] * 3 + [False]


@virtual(settles_within=0.0)
async def test_a_monitor_that_fails_stops_nobody_and_is_listened_to_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [KernelError("cannot follow the node's addresses: the socket is gone")]
    listen = FakeMonitor.next

    async def fail_once(self: FakeMonitor) -> list:
        if failures:
            raise failures.pop()
        return await listen(self)

    monkeypatch.setattr(FakeMonitor, "next", fail_once)
    async with running(tmp_path, resync_period=0.1) as node:
        node.broadcaster.publish(FIRST_LIST)
        await until(lambda: DUMMY in node.kernel.links and "10.96.0.1" in node.kernel.links[DUMMY].addresses)
        await until(lambda: node.service_proxy.statistics().failures == 1)
        node.service_proxy.settings = node.route_fix.settings = msgspec.structs.replace(
            node.settings, resync_period=1000.0
        )
        await asyncio.sleep(0.3)
        node.kernel.delete_address(DUMMY, "10.96.0.1")
        await until(lambda: "10.96.0.1" in node.kernel.links[DUMMY].addresses)


@virtual(settles_within=0.0)
async def test_the_resync_comes_round_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path, resync_period=0.1) as node:
        node.broadcaster.publish(FIRST_LIST)
        await until(lambda: node.kernel.virtual_servers)
        node.kernel.virtual_servers.clear()
        await until(lambda: node.kernel.virtual_servers)


@virtual(settles_within=0.0)
async def test_a_retry_comes_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.kernel.refuse(lambda change: getattr(change, "key", None) == (6, "10.96.0.1", 80), errno.ENOMEM)
        node.broadcaster.publish(FIRST_LIST)
        await until(lambda: node.service_proxy.statistics().waiting)
        node.kernel.accept_all()
        await until(lambda: node.kernel.virtual_servers)
        await until(lambda: not node.service_proxy.statistics().waiting)


@virtual(settles_within=0.0)
async def test_nothing_is_taken_away_before_the_initial_sync(tmp_path: Path) -> None:
    kernel = new_kernel()
    kernel.add_link(DUMMY, kind="dummy", noarp=True)
    kernel.add_address(DUMMY, "10.96.0.8")
    async with running(tmp_path, kernel) as node:
        await until(lambda: all(controller.statistics().last_success for controller in node.controllers))
        await asyncio.sleep(0.05)
        assert "10.96.0.8" in kernel.links[DUMMY].addresses
        node.broadcaster.publish([])
        await until(lambda: "10.96.0.8" not in kernel.links[DUMMY].addresses)


@pytest.mark.parametrize("plans", [[], FIRST_LIST], ids=["waiting", "serving"])
@virtual(settles_within=0.0)
async def test_a_stop_ends_it_soon_and_leaves_the_data_path(tmp_path: Path, plans: list) -> None:
    now = asyncio.get_running_loop().time
    async with running(tmp_path) as node:
        await until(lambda: all(controller.statistics().last_success for controller in node.controllers))
        if plans:
            node.broadcaster.publish(plans)
            await until(lambda: node.kernel.links.get(DUMMY) and node.kernel.links[DUMMY].addresses)
        node.kernel.writes.clear()
        before = now()
    assert now() - before < 1
    assert node.kernel.writes == []
    assert bool(node.kernel.virtual_servers) == bool(plans)


@virtual(settles_within=0.0)
async def test_when_idle_it_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as node:
        node.broadcaster.publish(FIRST_LIST)
        await until(lambda: DUMMY in node.kernel.links and "10.96.0.1" in node.kernel.links[DUMMY].addresses)
        await asyncio.sleep(0.05)
        steps: list[str] = []
        for controller in node.controllers:
            monkeypatch.setattr(controller, "step", counting(controller, steps))
        await asyncio.sleep(0.2)
        assert steps == []
        node.broadcaster.publish([])
        await asyncio.sleep(0.05)
        assert steps == []
        node.broadcaster.publish([ServicePlan(FIRST_LIST[1].key, generation=9)])
        await until(lambda: len(steps) >= 3)


@virtual(settles_within=0.0)
async def test_cancelling_it_is_a_kill(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    await node.open()
    task = asyncio.create_task(node.service_proxy.run())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@virtual(settles_within=0.0)
async def test_events_that_wait_for_a_long_pass_are_bounded_and_nothing_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "MOST_EVENTS", 100)
    async with running(tmp_path) as node:
        node.broadcaster.publish(FIRST_LIST)
        await until(lambda: DUMMY in node.kernel.links and "10.96.0.1" in node.kernel.links[DUMMY].addresses)
        proxy = node.service_proxy
        step, may_go_on, waiting = proxy.step, asyncio.Event(), 0

        async def long() -> None:
            await may_go_on.wait()
            await step()

        monkeypatch.setattr(proxy, "step", long)
        proxy.wake.set()
        await asyncio.sleep(0.01)
        node.kernel.delete_address(DUMMY, "10.96.0.1")
        for _ in range(250):
            node.kernel.add_address(DUMMY, "10.96.0.9")
            node.kernel.delete_address(DUMMY, "10.96.0.9")
            await asyncio.sleep(0.001)
            waiting = max(waiting, len(proxy._events))
        assert 0 < waiting <= 100
        may_go_on.set()
        await until(lambda: "10.96.0.1" in node.kernel.links[DUMMY].addresses)
