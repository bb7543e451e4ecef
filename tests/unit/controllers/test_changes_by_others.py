"""A firewall that reports changes is repaired at once, and is not read while nobody has changed it."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from kroute.kernel.errors import KernelError
from kroute.reconcile.controller import FIRST_PAUSE, LONGEST_PAUSE
from kroute.reconcile.resync_schedule import Pace
from tests.unit.controllers.test_any_firewall import CLUSTER_IPS, PORT, SETTINGS, WEB, Node
from tests.unit.watching import running


@asynccontextmanager
async def serving(node: Node) -> AsyncIterator[None]:
    """Run the controller with one Service, which is written when the block begins."""
    node.publish(WEB)
    async with running(node.masquerade.run()):
        await settle()
        yield


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.005)


async def test_what_somebody_changes_is_put_right_without_waiting_for_the_resync() -> None:
    node = Node()
    async with serving(node):
        node.firewall.sets[CLUSTER_IPS].clear()
        node.firewall.written_for = None
        node.firewall.disturb()
        await settle()
        assert node.firewall.sets[CLUSTER_IPS] == {PORT}
        assert node.firewall.written_for is not None
    assert node.masquerade.statistics().repairs == 2


async def test_without_a_report_it_waits_for_the_resync() -> None:
    node = Node()
    async with serving(node):
        node.firewall.sets[CLUSTER_IPS].clear()
        await settle()
        assert node.firewall.sets[CLUSTER_IPS] == set()


async def test_an_untouched_firewall_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await Node().start(WEB)
    node.firewall.knows_untouched = True
    node.firewall.sets[CLUSTER_IPS].clear()  # nobody can do that unnoticed: it shows whether the sets are read
    await node.resync()
    assert node.firewall.sets[CLUSTER_IPS] == set()
    assert node.masquerade.statistics().repairs == 0
    node.firewall.knows_untouched = False
    await node.resync()
    assert node.firewall.sets[CLUSTER_IPS] == {PORT}


async def test_after_a_pass_that_failed_it_is_read_though_it_seems_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await Node().start(WEB)
    node.firewall.knows_untouched = True

    async def fails() -> list[str]:
        raise KernelError("the kernel does not answer; trying later")

    with monkeypatch.context() as patch:
        patch.setattr(node.firewall, "is_untouched", fails)
        await node.resync()
    node.firewall.sets[CLUSTER_IPS].clear()
    await node.resync()
    assert node.firewall.sets[CLUSTER_IPS] == {PORT}


async def test_a_firewall_that_cannot_be_followed_is_resynced_and_followed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    follow, attempts = node.firewall.follow, []

    async def at_second_attempt(changed: object) -> None:
        attempts.append(changed)
        if len(attempts) == 1:
            raise KernelError("cannot follow the firewall; trying later")
        await follow(changed)

    monkeypatch.setattr(node.firewall, "follow", at_second_attempt)
    monkeypatch.setattr(node.masquerade, "settings", msgspec.structs.replace(SETTINGS, resync_period=0.01))
    async with serving(node):
        assert len(attempts) == 2
        node.firewall.sets[CLUSTER_IPS].clear()
        node.clock.now += LONGEST_PAUSE + 1
        node.firewall.disturb()
        await settle()
        assert node.firewall.sets[CLUSTER_IPS] == {PORT}


def test_the_first_change_is_answered_at_once_and_a_quarrel_ever_more_slowly() -> None:
    pace, now, dues = Pace(FIRST_PAUSE, LONGEST_PAUSE), 1000.0, []
    for _ in range(200):
        dues.append(pace.next(now))
        now += 0.1
    answers = sorted(set(dues))
    assert answers[0] == 1000.0
    pauses = [later - earlier for earlier, later in itertools.pairwise(answers)]
    assert pauses[0] == pytest.approx(FIRST_PAUSE, abs=0.11)
    assert pauses == sorted(pauses)
    assert max(pauses) <= LONGEST_PAUSE + 0.11
    assert pace.next(now + LONGEST_PAUSE + 1) == now + LONGEST_PAUSE + 1
