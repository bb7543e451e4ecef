"""Slow starts: the weights of new real servers climb, and those that were there keep theirs."""

from ipaddress import ip_address
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.controllers.ipvs import slow_starts as module
from kroute.controllers.ipvs.slow_starts import FIRST_STEP, SlowStarts
from kroute.kernel.ipvs.objects import SetRealServer
from kroute.model.plan import SLOW_START_STEPS, Protocol, RealServer, VirtualServer, VirtualServerKey
from kroute.reconcile.comparison.virtual_servers import differences
from tests.unit.fake_node import FakeNode, plan

WEB = VirtualServerKey(Protocol.TCP, "10.96.0.1", 80)
POD1, POD2 = ("10.1.0.1", 8080), ("10.1.0.2", 8080)
SECONDS = 100
WHOLE = SLOW_START_STEPS


def web(*weights: int, slow_start: int = SECONDS) -> VirtualServer:
    """A virtual server; its real servers have these weights, and those with None are not there."""
    real_servers = tuple(RealServer(f"10.1.0.{number}", 8080, weight) for number, weight in enumerate(weights, 1))
    return VirtualServer(WEB, "wrr", 0, None, real_servers, slow_start)


def weights(node: FakeNode) -> list[int]:
    return [
        it.weight
        for _, it in sorted(node.kernel.virtual_servers[WEB].real_servers.items(), key=lambda it: ip_address(it[0][0]))
    ]


async def serving(tmp_path: Path, *given: int) -> FakeNode:
    node = FakeNode(tmp_path)
    await node.start(plan("web", 1, web(*given)))
    node.kernel.writes.clear()
    return node


async def climb(node: FakeNode, seconds: float) -> None:
    """Let so much time pass, in which the controller is woken when it asks for it."""
    end = node.clock.now + seconds
    while (due := node.service_proxy.next_due()) is not None and due <= end:
        node.clock.now = max(due, node.clock.now)
        await node.controllers[node.controllers.index(node.service_proxy)].step()
        await node.settle()
    node.clock.now = end
    await node.settle()


async def test_the_first_real_servers_have_their_whole_weights(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE, 3 * WHOLE)
    assert weights(node) == [WHOLE, 3 * WHOLE]


async def test_a_new_one_climbs_from_a_tenth_to_its_weight_and_the_others_keep_theirs(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE, WHOLE)
    await node.apply(plan("web", 2, web(WHOLE, WHOLE, WHOLE)))
    seen = [weights(node)]
    for _ in range(SLOW_START_STEPS):
        await climb(node, SECONDS / SLOW_START_STEPS)
        seen.append(weights(node))
    assert all(it[:2] == [WHOLE, WHOLE] for it in seen)
    assert [it[2] for it in seen] == [2, 2, *range(2, WHOLE + 1)]
    changes = [it for it in node.kernel.writes if isinstance(it, SetRealServer)]
    assert len(changes) == SLOW_START_STEPS - FIRST_STEP, "one message for each step"
    assert node.service_proxy._servers.next_due() is None


async def test_many_new_ones_climb_together(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE)
    await node.apply(plan("web", 2, web(*[WHOLE] * 40)))
    await climb(node, SECONDS / 2)
    assert weights(node) == [WHOLE, *[WHOLE // 2] * 39]
    await climb(node, SECONDS / 2)
    assert weights(node) == [WHOLE] * 40


async def test_another_time_counts_at_once_for_those_that_climb_and_none_goes_back(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE)
    await node.apply(plan("web", 2, web(WHOLE, WHOLE)))
    await climb(node, SECONDS / 4)
    assert weights(node) == [WHOLE, WHOLE // 4]
    await node.apply(plan("web", 3, web(WHOLE, WHOLE, slow_start=10 * SECONDS)))
    await climb(node, SECONDS)
    assert weights(node) == [WHOLE, WHOLE // 4]
    await node.apply(plan("web", 4, web(WHOLE, WHOLE, slow_start=2 * SECONDS)))
    await climb(node, 0)
    assert weights(node) == [WHOLE, WHOLE * 5 // 8]
    await climb(node, SECONDS)
    assert weights(node) == [WHOLE, WHOLE]


async def test_when_nobody_is_left_who_is_not_new_none_is_spared(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE)
    await node.apply(plan("web", 2, web(WHOLE, WHOLE)))
    only_new = web(WHOLE, WHOLE)
    await node.apply(plan("web", 3, VirtualServer(WEB, "wrr", 0, None, only_new.real_servers[1:], SECONDS)))
    assert [it.weight for it in node.kernel.virtual_servers[WEB].real_servers.values() if it.weight] == [WHOLE]


async def test_one_that_comes_back_while_it_drains_is_not_new(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE, WHOLE)
    servers = node.kernel.virtual_servers[WEB].real_servers
    servers[POD2] = servers[POD2]._replace(active=1)
    await node.apply(plan("web", 2, web(WHOLE)))
    assert weights(node) == [WHOLE, 0]
    await node.apply(plan("web", 3, web(WHOLE, WHOLE)))
    assert weights(node) == [WHOLE, WHOLE]


async def test_a_restart_goes_on_where_the_kernel_is_and_writes_nothing(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE, WHOLE)
    await node.apply(plan("web", 2, web(WHOLE, WHOLE, WHOLE)))
    await climb(node, 0.42 * SECONDS)
    before = weights(node)
    assert before == [WHOLE, WHOLE, 8]
    again = node.restarted()
    await again.start(plan("web", 1, web(WHOLE, WHOLE, WHOLE)))
    assert again.kernel.writes == []
    await climb(again, 0.3 * SECONDS)
    assert weights(again)[2] == 8 + 6
    await climb(again, SECONDS)
    assert weights(again) == [WHOLE] * 3


async def test_a_resync_leaves_a_climbing_one_and_repairs_what_others_changed(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE, WHOLE)
    await node.apply(plan("web", 2, web(WHOLE, WHOLE, WHOLE)))
    await node.resync()
    assert weights(node) == [WHOLE, WHOLE, 6], "31 s have passed"
    assert node.service_proxy.status.counters.repairs == 0
    assert differences(WEB, web(WHOLE, WHOLE, WHOLE), node.kernel.virtual_servers[WEB]) == []
    servers = node.kernel.virtual_servers[WEB].real_servers
    servers[POD1] = servers[POD1]._replace(weight=5)
    await node.resync()
    assert weights(node) == [WHOLE, WHOLE, 12]


async def test_a_weight_that_changes_on_the_way_is_obeyed_at_once(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE)
    await node.apply(plan("web", 2, web(WHOLE, WHOLE)))
    await climb(node, SECONDS / 2)
    await node.apply(plan("web", 3, web(WHOLE, 4 * WHOLE)))
    assert weights(node) == [WHOLE, 2 * WHOLE]
    await node.apply(plan("web", 4, web(WHOLE, 0)))
    assert weights(node) == [WHOLE, 0]


async def test_without_slow_start_a_new_one_has_its_weight_at_once(tmp_path: Path) -> None:
    node = await serving(tmp_path, WHOLE)
    await node.apply(plan("web", 2, web(WHOLE, WHOLE)))
    await node.apply(plan("web", 3, web(WHOLE, WHOLE, slow_start=0)))
    assert weights(node) == [WHOLE, WHOLE]


@given(
    st.integers(1, 65535),
    st.integers(1, 3600),
    st.lists(st.floats(0, 1), min_size=1, max_size=30).map(sorted),
)
def test_a_weight_is_never_further_from_the_curve_than_a_step_and_never_falls(
    whole: int, seconds: int, moments: list[float]
) -> None:
    starts = SlowStarts()
    before, after = web(whole, slow_start=seconds), web(whole, whole, slow_start=seconds)
    starts.begin(before, after, (), 50.0)
    last = 0
    for part in moments:
        starts.advance(50.0 + part * seconds)
        weight = starts.effective(after).real_servers[1].weight
        curve = whole * max(FIRST_STEP / SLOW_START_STEPS, part)
        assert abs(weight - curve) <= whole / SLOW_START_STEPS + 1
        assert last <= weight <= whole
        assert starts.effective(starts.effective(after)) == starts.effective(after)
        last = weight
    starts.advance(50.0 + seconds + 1e-3)
    assert starts.effective(after) == after


class TestManyClimbs:
    """A Service within the limits may have thousands of climbs; other passes of the controller pay nothing for them."""

    COUNT = 1000

    @pytest.fixture
    def looked_at(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        """The climbs that were looked at."""
        found: list[object] = []
        reached = module._reached
        monkeypatch.setattr(module, "_reached", lambda *given: (found.append(given), reached(*given))[1])
        return found

    def begin(self, starts: SlowStarts, number: int, now: float, slow_start: int = SECONDS) -> VirtualServer:
        """Five real servers of one virtual server begin beside one that serves."""
        key = VirtualServerKey(Protocol.TCP, f"10.97.{number // 250}.{number % 250}", 80)
        after = msgspec.structs.replace(web(*[WHOLE] * 6, slow_start=slow_start), key=key)
        starts.begin(msgspec.structs.replace(after, real_servers=after.real_servers[:1]), after, (), now)
        return after

    def test_a_pass_looks_only_at_those_that_are_due(self, looked_at: list[object]) -> None:
        starts = SlowStarts()
        for number in range(self.COUNT):
            self.begin(starts, number, now=1000.0 + number / 100)
        first = SECONDS * (FIRST_STEP + 1) / SLOW_START_STEPS
        assert starts.next_due() == 1000.0 + first
        assert starts.advance(1000.0) == []
        assert len(looked_at) == 0
        assert len(starts.advance(1000.0 + first + 0.015)) == 2
        assert len(looked_at) == 2 * 5
        assert starts.next_due() == pytest.approx(1000.0 + first + 0.02)

    def test_when_all_are_due_at_once_passes_share_them(self, looked_at: list[object]) -> None:
        starts = SlowStarts()
        servers = [self.begin(starts, number, now=1000.0) for number in range(self.COUNT)]
        changed: list[VirtualServerKey] = []
        now = 1000.0 + SECONDS / 2
        while (due := starts.next_due()) is not None and due <= now:
            before = len(looked_at)
            changed += starts.advance(now)
            assert 0 < len(looked_at) - before < module.CLIMBS_A_PASS + 5
        assert sorted(changed) == sorted(it.key for it in servers), "each once"
        assert len(looked_at) > module.CLIMBS_A_PASS
        assert {it.weight for server in servers for it in starts.effective(server).real_servers} == {10, WHOLE}

    def test_what_is_out_of_date_does_not_pile_up(self) -> None:
        starts = SlowStarts()
        server = self.begin(starts, 0, now=1000.0)
        for number in range(1000):
            starts.want(msgspec.structs.replace(server, slow_start=50 + number % 7))
        assert len(starts._in_order) < 50
        starts.forget(server.key)
        assert starts.next_due() is None
        assert (starts._climbs, starts._seconds, starts._due, starts._in_order) == ({}, {}, {}, [])
