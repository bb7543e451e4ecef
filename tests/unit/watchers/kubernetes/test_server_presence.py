"""While the server is away one asks for all, and its first answer ends the waiting of all. Times are virtual."""

import asyncio
import errno
from pathlib import Path

import pytest

from kroute.settings import Settings
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.errors import ApiError
from kroute.watchers.kubernetes.server_presence import (
    FIRST_SILENT_PAUSE,
    LAST_SILENT_PAUSE,
    REFUSED_PAUSE,
    ServerPresence,
    costs_nothing,
)
from tests.apiserver import ApiServer
from tests.unit.test_apiserver_refusals import EVENT, EVENTS
from tests.unit.watching import NoJitter, running
from tests.virtual_time import in_virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


class Asking:
    """Some that ask a server, and when they did."""

    def __init__(self, presence: ServerPresence, *, refused: bool) -> None:
        self.asked: list[float] = []
        self.went_on: list[float] = []
        self._presence = presence
        self._refused = refused

    async def follow(self) -> None:
        """Ask until there is an answer."""
        while self._presence.is_away:
            await self._presence.turn()
            if self._presence.is_away:
                self.asked.append(now())
                self._presence.missed("nobody", refused=self._refused)
        self.went_on.append(now())


def test_of_many_that_wait_one_asks_at_a_time() -> None:
    async def run() -> None:
        presence = ServerPresence(NoJitter())
        presence.missed("nobody", refused=True)
        asking = Asking(presence, refused=True)
        async with running(*(asking.follow() for _ in range(5))):
            await asyncio.sleep(10 * REFUSED_PAUSE + 0.1)
            assert asking.asked == pytest.approx([REFUSED_PAUSE * number for number in range(1, 11)])
            presence.answered()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert asking.went_on == [now()] * 5

    in_virtual_time(run())


def test_who_is_not_answered_at_all_asks_more_rarely() -> None:
    async def run() -> None:
        presence = ServerPresence(NoJitter())
        presence.missed("silence", refused=False)
        asking = Asking(presence, refused=False)
        async with running(asking.follow()):
            await asyncio.sleep(60)
        pauses = [after - before for before, after in zip([0.0, *asking.asked], asking.asked, strict=False)]
        assert pauses[0] == pytest.approx(FIRST_SILENT_PAUSE)
        assert pauses[-1] == pytest.approx(LAST_SILENT_PAUSE)
        assert [round(pause, 6) for pause in pauses] == sorted(round(pause, 6) for pause in pauses)

    in_virtual_time(run())


def test_a_request_that_hangs_holds_nobody_up() -> None:
    async def run() -> None:
        presence = ServerPresence(NoJitter())
        presence.missed("nobody", refused=True)
        await presence.turn()  # this caller's request is never answered, and never fails
        asked_at = now()
        await presence.turn()
        assert now() == pytest.approx(asked_at + REFUSED_PAUSE)

    in_virtual_time(run())


def test_who_was_asked_before_another_was_answered_says_nothing_about_the_server() -> None:
    async def run() -> None:
        presence = ServerPresence()
        asked = now()
        await asyncio.sleep(1)
        presence.answered()
        presence.missed("that one hung", refused=False, asked=asked)
        assert not presence.is_away
        await asyncio.sleep(1)
        presence.missed("but this one is the newest", refused=False, asked=now())
        assert presence.is_away

    in_virtual_time(run())


def test_nobody_waits_for_a_server_that_is_there() -> None:
    async def run() -> None:
        presence = ServerPresence()
        await presence.turn()
        await presence.returned()
        assert now() == 0.0

    in_virtual_time(run())


def test_a_pause_ends_when_the_server_comes_back() -> None:
    async def run() -> None:
        presence = ServerPresence()
        presence.missed("nobody", refused=True)
        asyncio.get_running_loop().call_later(3, presence.answered)
        await presence.sleep(100)
        assert now() == pytest.approx(3)
        await presence.sleep(100)
        assert now() == pytest.approx(103)

    in_virtual_time(run())


def test_only_what_no_server_has_worked_for_costs_nothing() -> None:
    refused = RuntimeError("as a client wraps it")
    refused.__cause__ = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    assert costs_nothing(refused)
    assert not costs_nothing(ConnectionResetError(errno.ECONNRESET, "reset"))
    assert not costs_nothing(TimeoutError())


def test_an_event_is_written_when_the_server_is_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with ApiServer() as server:
            settings = Settings(node_name="node1", kubeconfig=server.kubeconfig(tmp_path / "config"))
            async with await Api.open(settings) as api, asyncio.TaskGroup() as group:
                async with server.out_of_reach():
                    writing = group.create_task(api.when_up.create(EVENTS, EVENT))
                    await asyncio.sleep(30)
                    assert not writing.done()
                    assert api.presence.is_away
                with pytest.raises(ApiError):  # an answer, of any kind: somebody else has found the server
                    await api.get("/nowhere")
            assert [seen.method for seen in server.requests] == ["GET", "POST"]

    in_virtual_time(run())
