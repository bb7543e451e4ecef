"""Ejections: real servers that do not answer get no new connections for a while, and never more than a third.

Nobody is ejected who accepts a connection of the node's own, whatever the counters say.
"""

import asyncio
import errno
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kroute.controllers.ipvs.confirmations import (
    CONNECTS_WITHIN,
    MOST_A_SECOND,
    Confirmations,
)
from kroute.controllers.ipvs.ejections import LONGEST_HOLD, Ejections
from kroute.kernel.ipvs.objects import RealServerKey, RealServerTraffic, SetRealServer, Traffic
from kroute.model.plan import SLOW_START_STEPS, Ejection, Protocol, RealServer, VirtualServer, VirtualServerKey
from kroute.model.probes import Probe
from kroute.reconcile.comparison.virtual_servers import differences
from tests.unit.fake_node import FakeNode, plan
from tests.unit.watching import eventually, running
from tests.virtual_time import virtual

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


class Connections:
    """The node's own connections: who does not accept them, and to whom they were made."""

    def __init__(self) -> None:
        self.dead: dict[str, str | OSError] = {}
        self.made: list[str] = []

    async def check(self, probe: Probe, _timeout: float) -> str | None:
        self.made.append(probe.address)
        outcome = self.dead.get(probe.address)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    found = Connections()
    monkeypatch.setattr("kroute.http.probes.check", found.check)
    monkeypatch.setattr(Clients, "connections", found, raising=False)
    return found


class Clients:
    """Clients of a node's virtual server, and how its real servers answer them, and the node itself."""

    connections: Connections

    def __init__(self, node: FakeNode) -> None:
        self.node = node

    async def call(self, seconds: float, **answers: tuple[int, ...]) -> None:
        """Let clients call for so long. Every two seconds each real server that takes connections answers so.

        One that does not answer clients accepts no connection of the node's own either.
        """
        self.connections.dead = {f"10.1.0.{name[3:]}": "Connection refused" for name in answers}
        await self.pretend(seconds, **answers)

    async def pretend(self, seconds: float, **answers: tuple[int, ...]) -> None:
        """The same, but the connections of the node's own are as they are."""
        weights = self.node.service_proxy.weights
        for _ in range(int(seconds) // 2):
            self.node.clock.now += 2
            self._pass(answers)
            async with running(weights.confirm()):
                await self.node.settle()
                if weights._has_nominated.is_set():
                    await eventually(
                        lambda: (it := weights._confirmations) is not None and (not it._unknown or it._is_lacking)
                    )

    def _pass(self, answers: Mapping[str, tuple[int, ...]]) -> None:
        kernel = self.node.kernel
        table = {
            (key, server): it for key, one in kernel.virtual_servers.items() for server, it in one.real_servers.items()
        }
        for key, state in table.items():
            answer = answers.get(f"pod{key[1][0].rpartition('.')[2]}", GOOD)
            if state.weight or not answer[0]:
                before = kernel.traffic.get(key, Traffic())
                kernel.traffic[key] = Traffic(*(a + b for a, b in zip(before, answer, strict=True)))

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


@pytest.mark.parametrize("forged", [SILENT, REFUSED], ids=["silence", "refusals"])
async def test_one_that_accepts_the_nodes_own_connection_is_never_ejected(
    tmp_path: Path, connections: Connections, forged: tuple[int, ...]
) -> None:
    clients = await serving(tmp_path, web(3))
    for _ in range(30):
        await clients.pretend(2, pod2=forged)
        assert clients.weights() == [1, 1, 1]
    assert (clients.node.problems, clients.node.kernel.writes) == ([], [])
    assert {*connections.made} == {"10.1.0.2"}
    assert clients.node.wiring.ejections() == 0
    refuted = clients.node.wiring.refuted_ejections()
    assert refuted == len(connections.made) == 7, "one each time that there has been evidence for long enough"
    await clients.call(10, pod2=forged)
    assert clients.weights() == [1, 0, 1], "and once it really fails, it is ejected"


async def test_a_connection_is_made_a_look_before_the_ejection_and_to_no_more_than_may_be_ejected(
    tmp_path: Path, connections: Connections
) -> None:
    clients = await serving(tmp_path, web(8))
    await clients.call(6, pod2=SILENT, pod3=REFUSED, pod4=SILENT)
    assert connections.made == []
    await clients.call(2, pod2=SILENT, pod3=REFUSED, pod4=SILENT)
    assert len({*connections.made}) == len(connections.made) == 2
    assert sum(clients.weights()) == 8
    await clients.call(2, pod2=SILENT, pod3=REFUSED, pod4=SILENT)
    assert sum(clients.weights()) == 6


async def test_forged_evidence_does_not_keep_one_in_that_is_dead(tmp_path: Path, connections: Connections) -> None:
    clients = await serving(tmp_path, web(5))
    connections.dead = {"10.1.0.3": "no answer within 1.5 s"}
    await clients.pretend(4, pod2=SILENT)
    await clients.pretend(10, pod2=SILENT, pod3=SILENT)
    assert clients.weights() == [1, 1, 0, 1, 1]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRNOTAVAIL])
async def test_a_connection_that_cannot_be_made_ejects_nobody(
    tmp_path: Path, connections: Connections, number: int
) -> None:
    clients = await serving(tmp_path, web(3))
    connections.dead = {"10.1.0.2": OSError(number, "lacking")}
    with capture_logs() as logs:
        await clients.pretend(20, pod2=SILENT)
    assert clients.weights() == [1, 1, 1]
    assert [line["event"] for line in logs] == ["resources.exhausted"]


async def test_one_connection_is_made_for_all_virtual_servers_and_none_once_they_are_gone(
    tmp_path: Path, connections: Connections
) -> None:
    other = msgspec.structs.replace(web(3), key=WEB._replace(address="10.96.0.2"))
    node = await FakeNode(tmp_path).start(plan("web", 1, web(3)), plan("other", 1, other))
    clients = Clients(node)
    await clients.pretend(8, pod2=SILENT)
    assert connections.made == ["10.1.0.2"]
    await node.apply(plan("web", 2), plan("other", 2))
    assert node.service_proxy.weights._confirmations is not None
    assert not node.service_proxy.weights._confirmations.wanted


@virtual(settles_within=0)
async def test_connections_are_few_at_one_time_and_few_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[float] = []
    open_at_once = [0]

    async def look(_probe: Probe, seconds: float) -> str | None:
        began.append(asyncio.get_running_loop().time())
        open_at_once.append(open_at_once[-1] + 1)
        await asyncio.sleep(seconds)
        open_at_once.append(open_at_once[-1] - 1)
        return "no answer"

    monkeypatch.setattr("kroute.http.probes.check", look)
    confirmations = Confirmations()
    async with running(confirmations.run()):
        confirmations.nominate({(f"10.1.{one >> 8}.{one & 255}", 80): {"greedy"} for one in range(5000)})
        await asyncio.sleep(5)
        confirmations.nominate({("10.2.0.1", 80): {"victim"}, ("10.2.0.2", 80): {"greedy"}})
        await asyncio.sleep(2)
    assert all(sum(at <= other < at + 1 for other in began) <= MOST_A_SECOND + 1 for at in began)
    assert max(open_at_once) <= CONNECTS_WITHIN * MOST_A_SECOND + 2
    assert confirmations.accepts(("10.2.0.1", 80)) is False


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
        for key in ejections.to_poll(now):
            ejections.judge({key: {it: RealServerTraffic(counts[it]) for it in there}}, now, lambda _: False)
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
