"""Slow starts: the weights of new real servers climb, and those that were there keep theirs."""

from ipaddress import ip_address
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kroute.comparison.virtual_servers import differences
from kroute.controllers.service_proxy.effective_weights.slow_starts import FIRST_STEP, SlowStarts
from kroute.kernel.ipvs.client import SetRealServer
from kroute.model.plan import SLOW_START_STEPS, Protocol, RealServer, VirtualServer, VirtualServerKey
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
