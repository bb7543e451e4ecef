"""Ejections: real servers that do not answer get no new connections for a while, and never more than a third."""

from collections.abc import Mapping
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kroute.comparison.virtual_servers import differences
from kroute.controllers.service_proxy.effective_weights.ejections import LONGEST_HOLD, Ejections
from kroute.kernel.ipvs.client import RealServerKey, RealServerTraffic, SetRealServer, Traffic
from kroute.model.plan import SLOW_START_STEPS, Ejection, Protocol, RealServer, VirtualServer, VirtualServerKey
from tests.unit.fake_node import FakeNode, plan

WEB = VirtualServerKey(Protocol.TCP, "10.96.0.1", 80)
EJECTION = Ejection(after=5, hold=30)
GOOD, SILENT, REFUSED, QUIET = (1, 6, 4, 349, 349), (1, 2, 0, 120, 0), (1, 1, 1, 60, 40), (0, 0, 0, 0, 0)
AGAIN = (0, 1, 1, 60, 60)
"""A client sends its SYN once more, and is answered."""


def pod(number: int) -> RealServerKey:
    return f"10.1.0.{number}", 8080


def web(count: int, *, weight: int = 1, slow_start: int = 0, ejection: Ejection | None = EJECTION) -> VirtualServer:
    real_servers = tuple(RealServer(*pod(number), weight) for number in range(1, count + 1))
    return VirtualServer(WEB, "wrr", 0, None, real_servers, slow_start, ejection=ejection)


class Clients:
    """Clients of a node's virtual server, and how its real servers answer them."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node

    async def call(self, seconds: float, **answers: tuple[int, ...]) -> None:
        """Let clients call for so long. Every two seconds each real server that takes connections answers so."""
        for _ in range(int(seconds) // 2):
            self.node.clock.now += 2
            self._pass(answers)
            await self.node.settle()

    def _pass(self, answers: Mapping[str, tuple[int, ...]]) -> None:
        kernel = self.node.kernel
        for server, state in kernel.virtual_servers[WEB].real_servers.items():
            answer = answers.get(f"pod{server[0].rpartition('.')[2]}", GOOD)
            if state.weight or not answer[0]:
                before = kernel.traffic.get((WEB, server), Traffic())
                kernel.traffic[WEB, server] = Traffic(*(a + b for a, b in zip(before, answer, strict=True)))

    def weights(self) -> list[int]:
        servers = self.node.kernel.virtual_servers[WEB].real_servers
        return [servers[pod(number)].weight for number in range(1, 10) if pod(number) in servers]


async def serving(tmp_path: Path, server: VirtualServer) -> Clients:
    node = FakeNode(tmp_path)
    await node.start(plan("web", 1, server))
    node.kernel.writes.clear()
    return Clients(node)


async def test_one_that_is_silent_is_ejected_and_the_event_says_why(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3))
    await clients.call(4, pod2=SILENT)
    assert clients.weights() == [1, 1, 1]
    await clients.call(6, pod2=SILENT)
    assert clients.weights() == [1, 0, 1]
    (problem,) = [problem for _, problem in clients.node.problems]
    assert problem.reason == "RealServerEjected"
    assert problem.message == (
        "10.1.0.2:8080 of TCP 10.96.0.1:80 gets no new connections on this node for 30 s: "
        "4 new connections within 6 s were not answered."
    )
    assert clients.node.wiring.ejections() == 1
    await clients.call(2)
    (told,) = clients.node.wiring.ejected([WEB])
    assert told == (
        "RealServerEjected: 10.1.0.2:8080 of TCP 10.96.0.1:80 is ejected for 2 s now: 4 new connections within 6 s "
        "were not answered; tried again in 28 s"
    )


async def test_one_that_refuses_is_ejected_and_after_its_time_it_is_tried_again(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3))
    await clients.call(10, pod2=REFUSED)
    assert clients.weights() == [1, 0, 1]
    await clients.call(31)
    assert clients.weights() == [1, 1, 1]
    await clients.call(300)
    assert [it.weight for it in clients.node.kernel.writes if isinstance(it, SetRealServer)] == [0, 1]


async def test_one_that_fails_its_trial_is_held_for_longer_each_time_up_to_a_bound(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3))
    holds = []
    for _ in range(7):
        while clients.weights() == [1, 1, 1]:
            await clients.call(2, pod2=REFUSED)
        began = clients.node.clock.now
        while clients.weights() == [1, 0, 1]:
            await clients.call(2, pod2=REFUSED)
        holds.append(clients.node.clock.now - began)
    assert holds == [30, 60, 120, 240, 480, 480, 480]
    assert holds[-1] == LONGEST_HOLD * EJECTION.hold


async def test_one_that_has_served_for_as_long_as_it_was_held_begins_anew(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3))
    await clients.call(10, pod2=REFUSED)
    await clients.call(29 + 40)
    assert clients.weights() == [1, 1, 1]
    await clients.call(10, pod2=REFUSED)
    assert clients.node.problems[-1][1].message.count("for 30 s") == 1


async def test_one_that_answers_a_client_who_still_tries_is_back_at_once(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3))
    await clients.call(10, pod2=SILENT)
    await clients.call(4, pod2=(0, 1, 0, 60, 0))
    assert clients.weights() == [1, 0, 1]
    await clients.call(2, pod2=AGAIN)
    assert clients.weights() == [1, 1, 1]


async def test_errors_that_come_late_are_no_answer(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3))
    await clients.call(10, pod2=SILENT)
    await clients.call(14, pod2=(0, 0, 1, 0, 88))
    assert clients.weights() == [1, 0, 1]


async def test_at_most_a_third_is_ejected_and_nobody_of_two(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(8))
    await clients.call(20, pod1=SILENT, pod2=REFUSED, pod3=SILENT)
    assert sorted(clients.weights()) == [0] * 2 + [1] * 6
    few = await serving(tmp_path / "few", web(2))
    await few.call(20, pod1=SILENT)
    assert few.weights() == [1, 1]


async def test_when_others_leave_the_bound_holds_at_once(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(6))
    await clients.call(10, pod1=SILENT, pod2=SILENT)
    assert clients.weights() == [0, 0, 1, 1, 1, 1]
    await clients.node.apply(plan("web", 2, web(3)))
    assert sum(clients.weights()) == 2
    await clients.node.apply(plan("web", 3, web(2)))
    assert clients.weights()[:2] == [1, 1]


async def test_a_restart_keeps_who_is_ejected_and_writes_nothing(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3, weight=SLOW_START_STEPS, slow_start=100))
    await clients.call(10, pod2=SILENT)
    again = clients.node.restarted()
    await again.start(plan("web", 1, web(3, weight=SLOW_START_STEPS, slow_start=100)))
    assert again.kernel.writes == []
    clients = Clients(again)
    await clients.call(28)
    assert clients.weights() == [20, 0, 20]
    await clients.call(4)
    assert clients.weights() == [20, 2, 20]
    await clients.call(100)
    assert clients.weights() == [20, 20, 20]


async def test_a_resync_leaves_an_ejected_one_and_repairs_what_others_changed(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3))
    await clients.call(10, pod2=SILENT)
    node = clients.node
    assert differences(WEB, web(3), node.kernel.virtual_servers[WEB]) == []
    servers = node.kernel.virtual_servers[WEB].real_servers
    servers[pod(1)] = servers[pod(1)]._replace(weight=0)
    servers[pod(2)] = servers[pod(2)]._replace(weight=1)
    node.service_proxy.resync_soon()
    await node.settle()
    assert clients.weights() == [1, 0, 1]


async def test_one_that_comes_back_climbs_if_the_service_has_a_slow_start(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3, weight=SLOW_START_STEPS, slow_start=100))
    await clients.call(10, pod3=SILENT)
    assert clients.weights() == [20, 20, 0]
    await clients.call(31)
    assert clients.weights() == [20, 20, 2]
    await clients.call(50)
    assert clients.weights() == [20, 20, 10]


async def test_without_the_annotation_all_have_their_weights_and_nothing_is_looked_at(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(3))
    await clients.call(10, pod2=SILENT)
    await clients.node.apply(plan("web", 2, web(3, ejection=None)))
    assert clients.weights() == [1, 1, 1]
    assert clients.node.service_proxy._servers.next_due() is None


async def test_one_that_leaves_while_it_is_ejected_comes_back_as_a_new_one(tmp_path: Path) -> None:
    clients = await serving(tmp_path, web(4))
    await clients.call(10, pod4=SILENT)
    await clients.node.apply(plan("web", 2, web(3)))
    await clients.node.apply(plan("web", 3, web(4)))
    assert clients.weights() == [1, 1, 1, 1]


@given(
    st.lists(
        st.tuples(st.integers(2, 9), st.lists(st.sampled_from((GOOD, SILENT, REFUSED, QUIET)), min_size=9, max_size=9)),
        min_size=1,
        max_size=60,
    )
)
def test_whatever_happens_the_bound_holds_and_all_come_back(
    history: list[tuple[int, list[tuple[int, ...]]]],
) -> None:
    ejections, now = Ejections(), 0.0
    counts = {pod(number): Traffic() for number in range(1, 10)}
    ejections.adopt({}, now)

    def step(server: VirtualServer, answers: list[tuple[int, ...]]) -> None:
        ejections.want(server)
        ejections.advance(now)
        for real_server, answer in zip(counts, answers, strict=True):
            if real_server not in ejections.of(WEB):
                counts[real_server] = Traffic(*(a + b for a, b in zip(counts[real_server], answer, strict=True)))
        there = [(it.address, it.port) for it in server.real_servers]
        for key in ejections.to_look_at(now):
            ejections.judge({key: {it: RealServerTraffic(counts[it]) for it in there}}, now)
        out = ejections.of(WEB)
        assert len(out) <= len(there) // 3
        assert out.keys() <= set(there)
        weights = [it.weight for it in ejections.effective(server).real_servers]
        assert weights.count(0) == len(out)

    for count, answers in history:
        for _ in range(3):
            now += 2
            step(web(count), answers)
    end = now + 2 * LONGEST_HOLD * EJECTION.hold
    while ejections.of(WEB) and now < end:
        now += 2
        step(web(9), [GOOD] * 9)
    for _ in range(EJECTION.hold):
        now += 2
        step(web(9), [GOOD] * 9)
        assert not ejections.of(WEB)
