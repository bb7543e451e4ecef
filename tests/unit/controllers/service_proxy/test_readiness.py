"""How long a Service waits for set entries and routes."""

import asyncio

import pytest

from kroute.controllers.prepared_pods import PreparedPods
from kroute.controllers.service_proxy.readiness import LONGEST_PATIENCE, PATIENCE, Readiness
from kroute.model.objects import ObjectKey
from kroute.reconcile.stage_gate import ENTRIES_PREPARED, ROUTES_PREPARED, Stage, StageGate
from tests.builders import say, stage_gate
from tests.unit.fake_node import plan, server

WEB = plan("web", 1, server("10.96.0.1", 80, "10.1.0.1"))
KEY = WEB.virtual_servers[0].key


async def waiting(now: float) -> tuple[StageGate, Readiness]:
    gate = stage_gate()
    readiness = Readiness(gate, lambda *_: None, PreparedPods())
    readiness.add(WEB)
    await pass_(readiness, now)
    return gate, readiness


async def pass_(readiness: Readiness, now: float) -> None:
    """Call what a pass of service_proxy calls."""
    readiness.review(now)
    await readiness.end_waits(lambda _: True, lambda: now)


async def test_patience_ends_when_nobody_writes_anything() -> None:
    _, readiness = await waiting(100.0)
    assert readiness.next_due() == 100.0 + PATIENCE
    await pass_(readiness, 104.9)
    assert not readiness.is_ready_or_overdue(WEB.key)
    assert not readiness.may_serve(WEB.key, KEY)
    readiness.review(105.0)
    assert readiness.may_serve(WEB.key, KEY)
    await pass_(readiness, 105.0)
    assert readiness.is_ready_or_overdue(WEB.key)
    assert readiness.next_due() is None


async def test_patience_begins_anew_while_something_is_written() -> None:
    gate, readiness = await waiting(100.0)
    for now in (104.0, 108.0, 112.0):
        gate.restart_waits(now)
        await pass_(readiness, now)
        assert readiness.next_due() == now + PATIENCE
    assert not readiness.is_ready_or_overdue(WEB.key)
    await pass_(readiness, 112.0 + PATIENCE)
    assert readiness.is_ready_or_overdue(WEB.key)


async def test_patience_has_an_end_whatever_is_written() -> None:
    gate, readiness = await waiting(100.0)
    gate.restart_waits(100.0 + LONGEST_PATIENCE - 1)
    assert readiness.next_due() == 100.0 + LONGEST_PATIENCE
    await pass_(readiness, 100.0 + LONGEST_PATIENCE)
    assert readiness.is_ready_or_overdue(WEB.key)


@pytest.mark.parametrize("stages", [(ENTRIES_PREPARED,), (ENTRIES_PREPARED, ROUTES_PREPARED)])
async def test_what_is_prepared_need_not_wait(stages: tuple[Stage, ...]) -> None:
    gate, readiness = await waiting(100.0)
    for stage in stages:
        say(gate, stage, [WEB])
    await pass_(readiness, 100.0)
    assert readiness.may_serve(WEB.key, KEY)
    assert readiness.is_ready_or_overdue(WEB.key) == (len(stages) == 2)


async def test_a_newer_plan_has_waited_for_as_long_as_the_one_before() -> None:
    _, readiness = await waiting(100.0)
    readiness.add(plan("web", 2, server("10.96.0.1", 80, "10.1.0.2")))
    await pass_(readiness, 104.0)
    assert readiness.next_due() == 100.0 + PATIENCE
    assert not readiness.is_ready_or_overdue(ObjectKey("default", "web"))


async def test_patience_does_not_begin_before_the_controllers_that_prepare_have_ended_their_passes() -> None:
    gate, readiness = await waiting(100.0)
    is_at_work = True
    gate.join(asyncio.Event(), says={Stage("slow"): lambda _: False}, is_busy=lambda: is_at_work)
    for now in (105.0, 120.0):
        await pass_(readiness, now)
        assert readiness.next_due() == now + PATIENCE
    is_at_work = False
    await pass_(readiness, 120.0 + PATIENCE - 0.1)
    assert not readiness.is_ready_or_overdue(WEB.key)
    await pass_(readiness, 120.0 + PATIENCE)
    assert readiness.is_ready_or_overdue(WEB.key)


async def test_patience_begins_anew_after_a_time_in_which_nobody_had_a_turn() -> None:
    _, readiness = await waiting(100.0)
    await pass_(readiness, 130.0)
    assert not readiness.is_ready_or_overdue(WEB.key)
    assert readiness.next_due() == 130.0 + PATIENCE
    await pass_(readiness, 130.0 + PATIENCE)
    assert readiness.is_ready_or_overdue(WEB.key)


async def test_patience_has_an_end_whoever_is_at_work() -> None:
    gate, readiness = await waiting(100.0)
    gate.join(asyncio.Event(), says={Stage("slow"): lambda _: False}, is_busy=lambda: True)
    await pass_(readiness, 100.0 + LONGEST_PATIENCE)
    assert readiness.is_ready_or_overdue(WEB.key)
