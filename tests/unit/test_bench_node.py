"""The bench and the node under test: no answer is taken for another one, and no connection without a request counts."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from bench.phases.changes import time_taken
from bench.place import runner
from bench.place.node import NodeUnderTest


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def test_the_answer_to_a_cancelled_request_is_not_taken_for_the_next_ones(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = json.loads(await reader.readline())
        asked.set()
        second = json.loads(await reader.readline())
        for request in (first, second):
            writer.write(json.dumps({"number": request["number"], "answer": request["command"]}).encode() + b"\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        node = NodeUnderTest(reader, writer, tmp_path, 0)
        cancelled = asyncio.create_task(node.ask("memory"))
        await asked.wait()
        cancelled.cancel()
        assert await node.ask("clock") == "clock"
        writer.close()


async def test_the_runner_waits_for_a_connection_that_asks_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = a_free_port()
    monkeypatch.setattr(runner, "PORT", port)
    serving = asyncio.create_task(runner.main(tmp_path, tmp_path))
    for requests in ([], [{"number": 1, "command": "clock"}, {"number": 2, "command": "memory"}]):
        reader, writer = await a_connection(port, serving)
        for request in requests:
            writer.write(json.dumps(request).encode() + b"\n")
            assert json.loads(await reader.readline())["number"] == request["number"]
        writer.close()
        await writer.wait_closed()
    await serving


async def a_connection(port: int, serving: asyncio.Task[None]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while not serving.done():
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:  # it does not listen yet
            await asyncio.sleep(0.01)
    pytest.fail("the runner has ended")


def test_each_change_has_its_own_completion_however_late_it_comes() -> None:
    sent = [10.0, 20.0, 30.0]
    assert time_taken(sent, [9.0, 25.0, 32.0, 35.0]) == [15.0, 12.0, 5.0]
    assert time_taken(sent, [9.0, 12.0, 35.0]) == [2.0, 5.0], "two were completed at once"
