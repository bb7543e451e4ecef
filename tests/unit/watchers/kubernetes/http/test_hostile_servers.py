"""The HTTP client against servers that hang, vanish or lie: nothing waits for long, and nothing is left behind."""

import asyncio
import ctypes
import gc
import gzip
import itertools
import os
import socket
import ssl
import struct
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kroute.settings import Settings
from kroute.watchers.kubernetes.api import ANSWER_TIMEOUT, LEAST_RATE, READ_TIMEOUT, Api
from kroute.watchers.kubernetes.errors import UnreachableError
from kroute.watchers.kubernetes.http import client as client_module
from kroute.watchers.kubernetes.http import connection as connection_module
from kroute.watchers.kubernetes.http.client import HttpClient
from kroute.watchers.kubernetes.http.connection import MOST_INFORMATIONAL, HttpError
from tests.unit.watchers.kubernetes.http.test_client import OK, body_of, get, listening
from tests.unit.watching import PATIENCE, eventually
from tests.virtual_time import virtual

SO_ATTACH_FILTER = 26
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""BPF: return 0 bytes of every packet."""


@pytest.fixture
def unaccepted() -> Iterator[int]:
    """The port of a socket whose process has stopped: the kernel accepts connections, and nobody reads them."""
    with socket.create_server(("127.0.0.1", 0)) as it:
        yield it.getsockname()[1]


async def stay(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Take a connection, and say nothing on it."""
    await asyncio.sleep(60)


async def test_a_tls_handshake_that_nobody_answers_ends_with_the_time_to_connect(
    unaccepted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 0.05)
    client = HttpClient(f"https://127.0.0.1:{unaccepted}", ssl.create_default_context())
    with pytest.raises(TimeoutError, match=r"no connection within 0\.05 s"):
        await get(client)
    await client.close()


async def test_a_head_that_does_not_come_ends_with_its_time(unaccepted: int) -> None:
    client = HttpClient(f"http://127.0.0.1:{unaccepted}", None)
    with pytest.raises(TimeoutError):
        await client.request("GET", "/x", {}, {}, read_timeout=None, head_timeout=0.05)
    await client.close()


class TestGivingUp:
    """A server that was away answers again: who waits on connections from before asks anew."""

    @staticmethod
    def deaf_at_first(calls: list[str]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        """Say nothing on the first connection, and answer on the next ones."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            calls.append((await reader.readuntil(b"\r\n\r\n")).decode().split()[0])
            if len(calls) == 1:
                await stay(reader, writer)
            writer.write(OK)
            await writer.drain()

        return serve

    async def test_a_request_without_an_answer_is_made_again(self) -> None:
        calls: list[str] = []
        async with listening(self.deaf_at_first(calls)) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            asking = asyncio.create_task(client.request("GET", "/x", {}, {}, read_timeout=30, head_timeout=30))
            await eventually(lambda: calls == ["GET"])
            client.give_up(asyncio.get_running_loop().time())
            assert await body_of(await asyncio.wait_for(asking, PATIENCE)) == b"ok"
            assert calls == ["GET", "GET"]
            await client.close()

    async def test_so_is_one_whose_connection_does_not_open(
        self, unaccepted: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A load balancer without a server accepts, for example."""
        client = HttpClient(f"https://127.0.0.1:{unaccepted}", ssl.create_default_context())
        asking = asyncio.create_task(get(client))
        await asyncio.sleep(0.02)
        monkeypatch.setattr(client, "_tls", None)  # now there is a server
        async with listening(self.deaf_at_first(["from before"])) as port:
            monkeypatch.setattr(client, "_port", port)
            client.give_up(asyncio.get_running_loop().time())
            assert await body_of(await asyncio.wait_for(asking, PATIENCE)) == b"ok"
        await client.close()

    async def test_but_not_a_write_nor_what_began_later(self) -> None:
        calls: list[str] = []
        async with listening(self.deaf_at_first(calls)) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            before = asyncio.get_running_loop().time()
            asking = asyncio.create_task(client.request("POST", "/x", {}, {}, b"{}", read_timeout=30))
            await eventually(lambda: calls == ["POST"])
            client.give_up(asyncio.get_running_loop().time())
            other = asyncio.create_task(get(client))
            await eventually(lambda: len(calls) == 2)
            client.give_up(before)
            assert await body_of(await asyncio.wait_for(other, PATIENCE)) == b"ok"
            assert (asking.done(), calls) == (False, ["POST", "GET"])
            await client.close()
            with pytest.raises((HttpError, ConnectionError)):
                await asking


class TestKeptConnections:
    @staticmethod
    async def keeping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer every request."""
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)

    async def test_they_can_be_left(self) -> None:
        async with listening(self.keeping) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            await body_of(await get(client))
            [first] = client._open
            client.leave_idle()
            await eventually(lambda: not client._open)
            await body_of(await get(client))
            assert client._open
            assert first not in client._open
            await client.close()

    async def test_what_must_not_wait_gets_a_new_one(self) -> None:
        peers: list[object] = []

        async def first_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Answer the first request of each connection, and stay."""
            peers.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await stay(reader, writer)

        async with listening(first_only) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            await body_of(await get(client))
            answer = await client.request("GET", "/x", {}, {}, read_timeout=5.0, on_kept=False)
            assert await body_of(answer) == b"ok"
            assert len(peers) == 2
            await client.close()

    async def test_those_of_watches_that_have_ended_do_not_pile_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing else may be asked for hours."""
        monkeypatch.setattr(client_module, "KEPT_FOR", 0.0)
        async with listening(self.keeping) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            for _ in range(5):
                answer = await client.request("GET", "/x", {}, {}, read_timeout=None, on_kept=False)
                assert await body_of(answer) == b"ok"
                await asyncio.sleep(0.001)
            assert len(client._idle) == 1
            await eventually(lambda: len(client._open) == 1)
            await client.close()

    async def test_one_with_more_than_its_answer_is_not_used(self) -> None:
        """Nobody knows what the rest belongs to (RFC 9112, 6.3), though it came together with the answer."""
        connections = 0

        async def surplus(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(OK + OK[:9])
                await asyncio.sleep(0.01)
                writer.write(OK[9:])

        async with listening(surplus) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            for _ in range(3):
                assert await body_of(await get(client)) == b"ok"
            assert connections == 3
            await client.close()

    @pytest.mark.parametrize("how", ["half-closed", "reset", "closed"])
    async def test_one_that_ended_meanwhile_is_not_used(self, how: str) -> None:
        connections = 0

        async def ending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await writer.drain()
            if how == "half-closed":
                writer.write_eof()
                await reader.read()
            elif how == "reset":
                connection = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()

        async with listening(ending) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            for _ in range(3):
                assert await body_of(await get(client)) == b"ok"
            assert connections == 3
            await client.close()


async def test_a_connection_whose_other_end_has_vanished_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No packet says so, as when a machine loses its power or the way to it breaks."""
    monkeypatch.setattr(connection_module, "PROBED_AFTER", 1)
    monkeypatch.setattr(connection_module, "PROBED_EVERY", 1)
    monkeypatch.setattr(connection_module, "DEAD_AFTER", 2)

    async def vanishing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfirst")
        await writer.drain()
        _drop_all(writer.get_extra_info("socket").fileno())
        await stay(reader, writer)

    async with listening(vanishing) as port:
        client = HttpClient(f"http://127.0.0.1:{port}", None)
        answer = await client.request("GET", "/x", {}, {}, read_timeout=None)
        assert await answer.read() == b"first"
        with pytest.raises(TimeoutError, match="timed out"):
            await asyncio.wait_for(answer.read(), 15)
        assert not client._open


def _drop_all(descriptor: int) -> None:
    """Have a socket receive nothing more, not even what its kernel would answer by itself."""
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    with socket.socket(fileno=os.dup(descriptor)) as it:
        it.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_many_outages_leave_nothing_behind(unaccepted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 0.05)

    async def fickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal number
        number += 1
        if number % 4 == 0:
            return  # before anything was read: perhaps before the client knows that it has connected
        await reader.readuntil(b"\r\n\r\n")
        if number % 4 == 1:
            writer.transport.abort()
        elif number % 4 == 2:
            writer.write(OK[:20])
        else:
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")

    number = 0
    async with listening(fickle) as port:
        clients = HttpClient(f"http://127.0.0.1:{port}", None), HttpClient(f"http://127.0.0.1:{unaccepted}", None)
        tls = HttpClient(f"https://127.0.0.1:{unaccepted}", ssl.create_default_context())
        tasks, files = len(asyncio.all_tasks()), open_files()
        for _ in range(20):
            for client in (*clients, *clients, tls):
                with suppress(HttpError, OSError):
                    await body_of(await client.request("GET", "/x", {}, {}, read_timeout=0.02))
                client.leave_idle()
        await eventually(lambda: not any(client._open or client._unanswered for client in (*clients, tls)))
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
        await eventually(lambda: open_files() <= files)


async def test_a_request_that_is_cancelled_leaves_no_socket(unaccepted: int) -> None:
    """In whatever round of the loop that is; asyncio's race of addresses loses what it has just won."""

    async def cancelled_after(rounds: int) -> None:
        client = HttpClient(f"http://127.0.0.1:{unaccepted}", None)
        before = open_files()
        asking = [asyncio.create_task(get(client)) for _ in range(5)]
        for _ in range(rounds):
            await asyncio.sleep(0)
        for it in asking:
            it.cancel()
        await asyncio.wait(asking)
        await asyncio.sleep(0)
        await client.close()
        await eventually(lambda: open_files() <= before)

    with warnings.catch_warnings(action="error"):
        for rounds in range(12):
            await cancelled_after(rounds)
        gc.collect()


async def test_what_follows_a_compressed_answer_is_not_collected() -> None:
    """zlib keeps all that comes after its stream, and gives nothing back that anybody could count."""
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}"))
        while sent < 64:
            writer.write(bytes(1 << 20))
            await writer.drain()
            sent += 1

    async with listening(endless) as port:
        client = HttpClient(f"http://127.0.0.1:{port}", None)
        answer = await get(client)
        with pytest.raises(HttpError, match="goes on after its end"):
            await body_of(answer)
        await client.close()
    assert sent < 64


class TestSlowAnswers:
    """A server, or a proxy before it, that always sends a little more. Times are virtual."""

    OK = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"
    HINTS = b"HTTP/1.1 103 Early Hints\r\n\r\n"

    @staticmethod
    async def asked(*sent: bytes, every: float, last: bytes = b"") -> tuple[str, float]:
        """What a GET ends with, and after how many seconds. After `sent`, `last` is sent again and again, if any."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                for piece in itertools.chain(sent, itertools.repeat(last) if last else ()):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(every)

        async with (
            listening(serve) as port,
            await Api.open(Settings(node_name="node1", master=(f"http://127.0.0.1:{port}",))) as api,
        ):
            clock = asyncio.get_running_loop().time
            began = clock()
            try:
                async with asyncio.timeout(3600):
                    return f"{len(await api.get('/api/v1/nodes'))} bytes", clock() - began
            except (TimeoutError, UnreachableError) as error:
                return str(error) or "an hour", clock() - began

    @virtual()
    async def test_a_list_that_trickles_is_given_up(self) -> None:
        said, after = await self.asked(self.OK, every=25, last=b" ")
        assert "was cut short: no more than 2 bytes came in 60 s" in said
        assert after < READ_TIMEOUT + 1

    @virtual()
    async def test_at_the_least_rate_a_list_may_take_longer(self) -> None:
        size = 20 * 50 * LEAST_RATE
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode()
        said, after = await self.asked(head, *[b" " * (size // 8)] * 8, every=50)
        assert said == f"{size} bytes"
        assert after > 2 * READ_TIMEOUT

    @virtual()
    async def test_but_not_for_ever(self) -> None:
        said, after = await self.asked(self.OK, every=10, last=b" " * 20 * LEAST_RATE)
        assert "came in 600 s" in said
        assert after < ANSWER_TIMEOUT + 1

    @virtual()
    async def test_a_head_that_trickles_is_given_up(self) -> None:
        said, after = await self.asked(b"HTTP/1.1 200 OK\r\nX: ", every=25, last=b"x")
        assert "does not answer: nothing whole came within 60 s" in said
        assert after < READ_TIMEOUT + 1

    @virtual()
    async def test_informational_answers_do_not_count_as_one(self) -> None:
        said, after = await self.asked(every=25, last=self.HINTS)
        assert "does not answer: nothing whole came within 60 s" in said
        assert after < READ_TIMEOUT + 1

    @virtual()
    async def test_few_informational_answers_are_read(self) -> None:
        ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        assert await self.asked(self.HINTS * MOST_INFORMATIONAL + ok, every=1) == ("2 bytes", 0.0)
        said, after = await self.asked(self.HINTS * (MOST_INFORMATIONAL + 1) + ok, every=1)
        assert "more than 10 answers with a status of 1xx came" in said
        assert after == 0.0
