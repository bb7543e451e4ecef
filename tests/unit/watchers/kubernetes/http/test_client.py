"""The HTTP client against servers and proxies that say exactly what each test writes."""

import asyncio
import errno
import gzip
import ssl
import subprocess
import sys
import tracemalloc
from asyncio import sslproto
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from kroute.watchers.kubernetes.authentication.configuration import READ_AT_ONCE, Configuration, context_for
from kroute.watchers.kubernetes.http import client as module
from kroute.watchers.kubernetes.http.client import HttpClient, proxy_to
from kroute.watchers.kubernetes.http.connection import INFLATED_AT_ONCE, LONGEST_HEAD, Answer, HttpError
from tests.unit.watchers.kubernetes.test_api import make_certificate
from tests.unit.watching import PATIENCE

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server; yields its port."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)

    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def saying(answer: bytes, heads: list[str] | None = None) -> Serve:
    """Answer the first request of each connection, and close."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head.decode())
        writer.write(answer)
        await writer.drain()

    return serve


async def get(client: HttpClient, path: str = "/x") -> Answer:
    return await client.request("GET", path, {}, {}, read_timeout=5.0)


async def body_of(answer: Answer) -> bytes:
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return b"".join(pieces)


@asynccontextmanager
async def asked(answer: bytes) -> AsyncIterator[Answer]:
    """The answer of a server that says these bytes."""
    async with listening(saying(answer)) as port:
        client = HttpClient(f"http://127.0.0.1:{port}", None)
        try:
            yield await get(client)
        finally:
            await client.close()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        pytest.param(OK, b"ok", id="of a length"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nall of it", b"all of it", id="to the end of the connection"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            b"abcde",
            id="chunked",
        ),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok", id="after an interim answer"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"", id="without a body"),
    ],
)
async def test_bodies_of_every_framing_are_read(answer: bytes, body: bytes) -> None:
    async with asked(answer) as got:
        assert await body_of(got) == body


async def test_chunks_that_have_come_together_are_read_together() -> None:
    chunks = b"".join(b"5\r\nline\n\r\n" for _ in range(1000))
    async with asked(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n") as answer:
        pieces = []
        while piece := await answer.read():
            pieces.append(piece)
    assert b"".join(pieces) == b"line\n" * 1000
    assert len(pieces) < 100


async def test_a_compressed_answer_is_unpacked_in_pieces_of_a_bounded_size() -> None:
    content = b"0" * (5 * INFLATED_AT_ONCE)
    packed = gzip.compress(content)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    async with asked(head + packed) as got:
        pieces = []
        while piece := await got.read():
            pieces.append(piece)
        assert b"".join(pieces) == content
        assert max(map(len, pieces)) <= INFLATED_AT_ONCE


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(CHUNKED + b"\r\n5\r\nab", id="within a chunk"),
        pytest.param(CHUNKED + b"\r\n2\r\nab\r\n", id="before the last chunk"),
        pytest.param(CHUNKED + b"\r\nwhat\r\n", id="a chunk without a size"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", id="within the length"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"abc")[:-9], id="within gzip"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nnothing of it", id="no gzip"),
    ],
)
async def test_a_body_that_ends_too_early_is_an_error(answer: bytes) -> None:
    async with asked(answer) as got:
        with pytest.raises(HttpError):
            await body_of(got)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200", id="half a line"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2 * LONGEST_HEAD, id="an endless head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\n", id="an encoding that was not asked for"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", id="two lengths"),
    ],
)
async def test_what_is_no_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises((HttpError, ConnectionError)):
        async with asked(answer):
            pass


class TestConnections:
    @staticmethod
    def counting(connections: list[int], answers: int) -> Serve:
        """Answer so many requests on each connection, then close it without a word; count its requests."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            mine = len(connections)
            connections.append(0)
            for _ in range(answers):
                await reader.readuntil(b"\r\n\r\n")
                connections[mine] += 1
                writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")

        return serve

    async def test_a_connection_is_kept_for_the_next_request(self) -> None:
        connections: list[int] = []
        async with listening(self.counting(connections, 9)) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            for _ in range(3):
                assert await body_of(await get(client)) == b"ok"
            await client.close()
        assert connections == [3]

    async def test_it_is_not_kept_for_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "KEPT_FOR", 0.0)
        connections: list[int] = []
        async with listening(self.counting(connections, 9)) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            for _ in range(2):
                await body_of(await get(client))
                await asyncio.sleep(0.01)
            await client.close()
        assert connections == [1, 1]

    async def test_one_that_the_server_closes_meanwhile_is_replaced_but_a_write_is_not_repeated(self) -> None:
        connections: list[int] = []
        async with listening(self.counting(connections, 1)) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            await body_of(await get(client))
            assert await body_of(await get(client)) == b"ok"
            with pytest.raises((HttpError, ConnectionError)):
                await client.request("POST", "/x", {}, {}, b"{}", read_timeout=5.0)
            await client.close()
        assert connections == [1, 1]

    async def test_closing_ends_requests_that_are_underway(self) -> None:
        async with listening(saying(CHUNKED + b"\r\n2\r\nab\r\n")) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            answer = await get(client)
            assert await answer.read() == b"ab"
            reading = asyncio.create_task(answer.read())
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises((HttpError, ConnectionError)):
                await asyncio.wait_for(reading, PATIENCE)

    async def test_silence_ends_a_request_after_its_time(self) -> None:
        over = asyncio.Event()

        async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await over.wait()

        async with listening(silent) as port:
            client = HttpClient(f"http://127.0.0.1:{port}", None)
            with pytest.raises(TimeoutError, match=r"nothing came for 0\.05 s"):
                await client.request("GET", "/x", {}, {}, read_timeout=0.05)
            over.set()
            await client.close()

    async def test_a_server_that_refuses_on_all_addresses_is_one_refusal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with listening(saying(OK)) as port:
            pass

        async def both(*_: object, **__: object) -> object:
            raise OSError(
                f"Multiple exceptions: [Errno 111] Connect call failed ('::1', {port}, 0, 0), "
                f"[Errno 111] Connect call failed ('127.0.0.1', {port})"
            )

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", both)
        with pytest.raises(ConnectionRefusedError) as raised:
            await get(HttpClient(f"http://localhost:{port}", None))
        assert raised.value.errno == errno.ECONNREFUSED


async def test_a_connection_with_tls_holds_a_small_buffer(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate, key)
    configuration = Configuration("https://127.0.0.1", authority=certificate)
    kept = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000
    tracemalloc.start()
    try:
        async with listening(saying(kept), serving) as port:
            client = HttpClient(f"https://127.0.0.1:{port}", context_for(configuration))
            assert await body_of(await get(client)) == b"x" * 200_000
            traced = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, sslproto.__file__)])
            await client.close()
    finally:
        tracemalloc.stop()
    assert max(trace.size for trace in traced.traces) <= READ_AT_ONCE + 1024


async def test_a_request_has_what_a_server_needs() -> None:
    heads: list[str] = []
    async with listening(saying(OK, heads)) as port:
        client = HttpClient(f"http://me:pa%20ss@127.0.0.1:{port}/k8s/c 1/".replace(" ", "%20"), None)
        answer = await client.request(
            "PATCH", "/api/ä", {"a": "b c"}, {"Accept": "application/json"}, b"{}", read_timeout=5.0
        )
        assert await body_of(answer) == b"ok"
        await client.close()
    line, *fields = heads[0].splitlines()
    assert line == "PATCH /k8s/c%201/api/%C3%A4?a=b+c HTTP/1.1"
    assert {field.lower() for field in fields} >= {
        f"host: 127.0.0.1:{port}",
        "accept: application/json",
        "accept-encoding: gzip",
        "authorization: basic bwu6cgegc3m=",
        "content-length: 2",
    }


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


class TestProxies:
    async def test_tls_goes_through_a_tunnel(self, tmp_path: Path, no_proxy: pytest.MonkeyPatch) -> None:
        del no_proxy
        certificate, key = make_certificate(tmp_path, "server")
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(certificate, key)
        trusting = ssl.create_default_context(cafile=certificate)
        heads: list[str] = []

        async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            host, _, port = heads[-1].split()[1].rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

            async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                with closing(sink):
                    while data := await source.read(65536):
                        sink.write(data)

            await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

        async with listening(saying(OK), serving) as server, listening(tunnel) as proxy:
            configured = f"http://user:word@127.0.0.1:{proxy}"
            client = HttpClient(f"https://127.0.0.1:{server}", trusting, proxy=configured)
            assert await body_of(await get(client)) == b"ok"
            await client.close()
        assert heads[0].startswith(f"CONNECT 127.0.0.1:{server} HTTP/1.1\r\n")
        assert "Proxy-Authorization: Basic dXNlcjp3b3Jk" in heads[0]

    async def test_a_proxy_that_refuses_is_named(self, no_proxy: pytest.MonkeyPatch) -> None:
        del no_proxy
        async with listening(saying(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")) as proxy:
            client = HttpClient("https://10.0.0.1", ssl.create_default_context(), proxy=f"http://127.0.0.1:{proxy}")
            with pytest.raises(HttpError, match=r"the proxy 127\.0\.0\.1 refuses the way to 10\.0\.0\.1:443: 407"):
                await get(client)

    async def test_without_tls_the_proxy_gets_the_whole_address(self, no_proxy: pytest.MonkeyPatch) -> None:
        del no_proxy
        heads: list[str] = []
        async with listening(saying(OK, heads)) as proxy:
            client = HttpClient("http://10.0.0.1:81", None, proxy=f"http://127.0.0.1:{proxy}")
            assert await body_of(await get(client)) == b"ok"
            await client.close()
        assert heads[0].startswith("GET http://10.0.0.1:81/x HTTP/1.1\r\n")

    @pytest.mark.parametrize(
        ("variables", "configured", "found"),
        [
            pytest.param({}, None, None, id="none"),
            pytest.param({"HTTPS_PROXY": "http://p:3128"}, None, ("p", 3128), id="of the environment"),
            pytest.param({"https_proxy": "p"}, None, ("p", 80), id="without a scheme"),
            pytest.param({"HTTP_PROXY": "http://p"}, None, None, id="of another scheme"),
            pytest.param({"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.1"}, None, None, id="but not for this one"),
            pytest.param({"HTTPS_PROXY": "http://p"}, "https://q", ("q", 443), id="the configured one first"),
        ],
    )
    def test_which_proxy_is_used(
        self,
        variables: dict[str, str],
        configured: str | None,
        found: tuple[str, int] | None,
        no_proxy: pytest.MonkeyPatch,
    ) -> None:
        for name, value in variables.items():
            no_proxy.setenv(name, value)
        proxy = proxy_to("https://10.0.0.1:6443", configured)
        assert (proxy and (proxy.host, proxy.port)) == found

    @pytest.mark.parametrize(
        ("url", "left_out", "is_used"),
        [
            pytest.param("https://10.1.2.3:6443", "10.0.0.0/8", False, id="in a network"),
            pytest.param("https://11.1.2.3:6443", "10.0.0.0/8", True, id="in none of the networks"),
            pytest.param("https://[fd00::1]:6443", "fd00::/8", False, id="in a network of IPv6"),
            pytest.param("https://[fd00::1]:6443", "x, fd00:0::1", False, id="an address of IPv6"),
            pytest.param("https://api.example.com", "*.example.com", False, id="a name below one with a star"),
            pytest.param("https://example.com", "*.example.com", True, id="the name itself"),
            pytest.param("https://api.example.com", ".example.com", False, id="a name below one with a dot"),
            pytest.param("https://api.example.com", "10.0.0.0/8,example.org/x", True, id="another name"),
            pytest.param("https://127.0.0.1:6443", "", False, id="loopback"),
            pytest.param("https://[::1]:6443", "", False, id="loopback of IPv6"),
            pytest.param("https://localhost:6443", "", False, id="localhost"),
        ],
    )
    def test_what_is_reached_without_a_proxy_is_as_in_go(
        self, url: str, left_out: str, is_used: bool, no_proxy: pytest.MonkeyPatch
    ) -> None:
        no_proxy.setenv("HTTPS_PROXY", "http://p:3128")
        no_proxy.setenv("NO_PROXY", left_out)
        assert (proxy_to(url, None) is not None) is is_used
        assert proxy_to(url, "http://q") is not None, "what is configured counts always"


@pytest.mark.parametrize(("headers", "sent"), [({}, "Basic dXNlcjp3b3Jk"), ({"authorization": "Bearer t"}, "Bearer t")])
async def test_a_token_goes_before_a_password_in_the_url(headers: dict[str, str], sent: str) -> None:
    heads: list[str] = []
    async with listening(saying(OK, heads)) as server:
        client = HttpClient(f"http://user:word@127.0.0.1:{server}", None)
        assert await body_of(await client.request("GET", "/", {}, headers, read_timeout=5.0)) == b"ok"
        await client.close()
    named = [line.partition(": ")[2] for line in heads[0].splitlines() if line.lower().startswith("authorization:")]
    assert named == [sent]


class TestNameOfTheServer:
    """The certificate has to name the server, whose name is encoded only where it needs to be."""

    async def test_an_ascii_name_does_not_load_the_tables_of_unicode(self, tmp_path: Path) -> None:
        certificate, key = make_certificate(tmp_path, "server")
        program = f"""
from kroute.base import logs  # without rich, which loads them
import asyncio, ssl, sys
from pathlib import Path
from kroute.watchers.kubernetes.api_facts import resolved
from kroute.watchers.kubernetes.authentication.configuration import Configuration
from kroute.watchers.kubernetes.http.client import HttpClient
from kroute.watchers.kubernetes.authentication.configuration import context_for

async def serve(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write({OK!r})
    await writer.drain()
    writer.close()

async def main():
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain({str(certificate)!r}, {str(key)!r})
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=own)
    url = f"https://127.0.0.1:{{server.sockets[0].getsockname()[1]}}"
    client = HttpClient(url, context_for(Configuration(url, authority=Path({str(certificate)!r}))))
    answer = await client.request("GET", "/", {{}}, {{}}, read_timeout=5.0)
    print(answer.status, *await resolved(url), "encodings.idna" in sys.modules, "unicodedata" in sys.modules)

asyncio.run(main())
"""
        shown = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert shown.stdout.split() == ["200", "127.0.0.1", "False", "False"]

    @pytest.mark.parametrize("name", ["other.example", "bücher.example", "127.0.0.2"])
    async def test_a_certificate_that_does_not_name_it_is_refused(self, tmp_path: Path, name: str) -> None:
        certificate, key = make_certificate(tmp_path, "server")
        own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        own.load_cert_chain(certificate, key)
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with listening(saying(OK), own) as port:
            client = HttpClient(f"https://127.0.0.1:{port}", trusting, server_name=name)
            with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
                await get(client)
