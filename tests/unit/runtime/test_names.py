"""Silent DNS servers hold up look-ups alone: neither what else needs a thread, nor the end of the process."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kroute.runtime import runner
from kroute.runtime.runner import run_to_the_end
from tests.unit.watching import PATIENCE


class SilentServers:
    """No name is resolved before `release` is set."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked: list[object] = []
        self.ended: list[object] = []

    def getaddrinfo(self, host: object, *_: object, **__: object) -> list[Any]:
        self.asked.append(host)
        self.release.wait(PATIENCE)
        self.ended.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 443))]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServers]:
    servers = SilentServers()
    monkeypatch.setattr(socket, "getaddrinfo", servers.getaddrinfo)
    yield servers
    servers.release.set()


def test_others_get_their_threads_while_very_many_names_are_looked_up(silent: SilentServers) -> None:
    async def serve() -> int:
        loop = asyncio.get_running_loop()
        look_ups = [asyncio.ensure_future(loop.getaddrinfo(f"server-{number}", 443)) for number in range(100)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), PATIENCE / 2) == 7
        asked = len(silent.asked)
        silent.release.set()
        found = await asyncio.gather(*look_ups)
        assert {addresses[0][4] for addresses in found} == {("192.0.2.1", 443)}
        assert len(silent.asked) == 100
        return asked

    assert run_to_the_end(serve()) <= runner.MOST_LOOK_UPS


def test_a_look_up_has_a_limited_time_and_no_thread_too_many(
    silent: SilentServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOOK_UP_WITHIN", 0.01)

    async def serve() -> int:
        loop = asyncio.get_running_loop()
        for number in range(10):
            with pytest.raises(socket.gaierror, match="was not resolved within") as refused:
                await loop.create_connection(asyncio.Protocol, f"server-{number}", 443)
            assert refused.value.errno == socket.EAI_AGAIN
        return len(silent.asked)

    assert run_to_the_end(serve()) == runner.MOST_LOOK_UPS


def test_the_process_ends_before_a_look_up_does(silent: SilentServers) -> None:
    async def serve() -> int:
        look_up = asyncio.ensure_future(asyncio.get_running_loop().getaddrinfo("server", 443))
        while not silent.asked:  # noqa: ASYNC110  a thread sets no event of the loop
            await asyncio.sleep(0.001)
        look_up.cancel()
        return 0

    assert run_to_the_end(serve()) == 0
    assert silent.ended == []


@pytest.mark.parametrize("error", [socket.gaierror(socket.EAI_NONAME, "no such name"), MemoryError(), UnicodeError()])
def test_results_and_errors_are_those_of_the_library(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    async def serve() -> int:
        loop = asyncio.get_running_loop()
        assert ("127.0.0.1", 443) in [it[4] for it in await loop.getaddrinfo("localhost", 443, type=socket.SOCK_STREAM)]
        monkeypatch.setattr(socket, "getaddrinfo", fail)
        for _ in range(2 * runner.MOST_LOOK_UPS):
            with pytest.raises(type(error)):
                await loop.getaddrinfo("localhost", 443)
        return 0

    assert run_to_the_end(serve()) == 0


def test_a_thread_that_cannot_be_started_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def serve() -> int:
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(2 * runner.MOST_LOOK_UPS):
                with pytest.raises(RuntimeError):
                    await loop.getaddrinfo("localhost", 443)
        return len(await loop.getaddrinfo("localhost", 443))

    assert run_to_the_end(serve()) > 0
