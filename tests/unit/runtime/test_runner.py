"""How a program of kroute is stopped, and how it reports why it cannot go on."""

import asyncio
import errno
import os
import signal
import socket

import pytest
from structlog.testing import capture_logs

from kroute.reconcile.ledger import LedgerError
from kroute.runtime.runner import run_to_the_end, stop_signal, unless
from kroute.watchers.kubernetes.errors import ConfigurationError


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_in_order_when_it_is_told_to(number: signal.Signals) -> None:
    async def serve() -> int:
        stop = stop_signal()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(60):
            await stop.wait()
        return 0

    assert run_to_the_end(serve()) == 0


@pytest.mark.parametrize(("refusal", "code"), [(ConfigurationError("no such file"), 2), (LedgerError("is full"), 1)])
def test_a_refusal_in_any_task_is_one_line(refusal: Exception, code: int) -> None:
    async def refuse() -> int:
        raise refusal

    async def serve() -> int:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refuse())
        return 0

    with capture_logs() as logs:
        assert run_to_the_end(serve()) == code
    assert [(it["event"], it["reason"]) for it in logs] == [("kroute.refused", str(refusal))]


def test_connections_that_cannot_be_accepted_are_one_line_and_other_troubles_what_asyncio_says() -> None:
    async def serve() -> int:
        loop = asyncio.get_running_loop()
        for _ in range(5):  # as asyncio does each second (selector_events.py, _accept_connection)
            message = "socket.accept() out of system resource"
            loop.call_exception_handler({"message": message, "exception": OSError(errno.EMFILE, "Too many open files")})
        return 0

    with capture_logs() as logs:
        assert run_to_the_end(serve()) == 0
    assert [(it["event"], it["what"]) for it in logs] == [("resources.exhausted", "accepting connections")]
    assert "LimitNOFILE" in logs[0]["next_step"]


def test_a_listener_that_is_closed_before_asyncio_tries_again_to_accept_is_no_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve() -> int:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.close()
        loop.call_soon(loop._start_serving, asyncio.Protocol, listener)  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        return 0

    assert run_to_the_end(serve()) == 0
    assert caplog.records == []


class TestUnless:
    """A start that waits is left as soon as it is no longer wanted."""

    async def test_what_ends_before_gives_its_result_and_its_errors(self) -> None:
        stop = asyncio.Event()

        async def fail(error: Exception) -> None:
            raise error

        assert await unless(stop, asyncio.sleep(0, 7)) == 7
        for error in (TimeoutError("its own"), ConfigurationError("no such file")):
            with pytest.raises(type(error)) as raised:
                await unless(stop, fail(error))
            assert raised.value is error
        stop.set()
        await asyncio.sleep(0)

    async def test_what_does_not_end_is_left_and_cleans_up(self) -> None:
        stop, cleaned = asyncio.Event(), asyncio.Event()

        async def wait() -> int:
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.set()
            return 1

        asyncio.get_running_loop().call_soon(stop.set)
        async with asyncio.timeout(60):
            assert await unless(stop, wait()) is None
            assert cleaned.is_set()
            assert await unless(stop, wait()) is None
        await asyncio.sleep(0)

    async def test_cancelling_the_caller_is_no_stop(self) -> None:
        task = asyncio.create_task(unless(asyncio.Event(), asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
