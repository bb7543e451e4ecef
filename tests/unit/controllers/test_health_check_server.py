"""What a health check port answers, and when it closes a connection. The sockets are real ones, on loopback."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from kroute.controllers.health_checks import HealthCheckServer
from kroute.http import server as http_server
from kroute.model.addresses import Family
from kroute.model.objects import ObjectKey
from kroute.model.plan import HealthCheck
from tests.unit.load_balancer import LOCALHOST, ask, connected, say, until


class Node:
    """One port, which reports on Service default/web."""

    def __init__(self) -> None:
        self.local_endpoints = {Family.IPV4: 1}
        self.is_healthy = True
        self.has_service = True
        self.server = HealthCheckServer(self.checked_at, lambda: self.is_healthy)

    def checked_at(self, port: int) -> tuple[ObjectKey, HealthCheck] | None:
        return (ObjectKey("default", "web"), HealthCheck(port, self.local_endpoints)) if self.has_service else None


@pytest.fixture
async def node() -> Node:
    return Node()


@pytest.fixture
async def port(node: Node) -> AsyncIterator[int]:
    listener = await node.server.listen(LOCALHOST, 0)
    yield listener.sockets[0].getsockname()[1]
    await node.server.close([listener])
    node.server.cut_connections()


@pytest.mark.parametrize(
    ("local_endpoints", "is_healthy", "status"),
    [
        pytest.param(2, True, 200, id="endpoints here"),
        pytest.param(0, True, 503, id="no endpoint here"),
        pytest.param(2, False, 503, id="endpoints here, kroute is not healthy"),
        pytest.param(0, False, 503, id="neither"),
    ],
)
async def test_what_a_load_balancer_is_told(
    node: Node, port: int, local_endpoints: int, is_healthy: bool, status: int
) -> None:
    node.local_endpoints, node.is_healthy = {Family.IPV4: local_endpoints}, is_healthy
    answer = await ask(port)
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Load-Balancing-Endpoint-Weight"] == str(local_endpoints)
    assert answer.headers["Connection"] == "close"
    assert json.loads(answer.body) == {
        "service": {"namespace": "default", "name": "web"},
        "localEndpoints": local_endpoints,
        "serviceProxyHealthy": is_healthy,
    }


@pytest.mark.parametrize(
    ("local_endpoints", "expected"),
    [
        ({Family.IPV4: 2, Family.IPV6: 0}, [(200, 2), (503, 0)]),
        ({Family.IPV4: 0, Family.IPV6: 1}, [(503, 0), (200, 1)]),
        ({Family.IPV6: 1}, [(200, 1), (200, 1)]),
        ({Family.IPV4: 0}, [(503, 0), (503, 0)]),
    ],
    ids=["IPv4 here", "IPv6 here", "no IPv4 at all", "no IPv6 at all"],
)
async def test_one_socket_tells_each_family_that_the_service_has_of_its_own_endpoints(
    node: Node, local_endpoints: dict[Family, int], expected: list[tuple[int, int]]
) -> None:
    node.local_endpoints = local_endpoints
    listener = await node.server.listen("", 0)
    port = listener.sockets[0].getsockname()[1]
    answers = [await ask(port, host=host) for host in (LOCALHOST, "::1")]
    await node.server.close([listener])
    assert [(it.status, json.loads(it.body)["localEndpoints"]) for it in answers] == expected
    assert [it.headers["X-Load-Balancing-Endpoint-Weight"] for it in answers] == [str(count) for _, count in expected]


async def test_a_service_that_goes_while_it_is_asked_for_is_not_served(node: Node, port: int) -> None:
    node.has_service = False
    assert (await ask(port)).status == 503


@pytest.mark.parametrize("path", ["/", "/healthz", "/a/b?c=d"])
async def test_the_path_does_not_matter(port: int, path: str) -> None:
    assert (await ask(port, path)).status == 200


async def test_head_gets_the_same_headers_and_no_body(port: int) -> None:
    got, head = await ask(port), await ask(port, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(got.body))
    assert head.headers["X-Load-Balancing-Endpoint-Weight"] == "1"


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="TLS"),
        pytest.param(b"GET\r\n\r\n", id="no path"),
        pytest.param(b"HEAD / HTTP/1.2\r\nHost: node\r\n\r\n", id="another version"),
        pytest.param(b"CONNECT node:80 HTTP/1.1\r\nHost: node\r\n\r\n", id="a tunnel"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", id="a header of 100 kB"),
        pytest.param(b"GET / HTTP/1.1\r\nno colon\r\n\r\n", id="a malformed header"),
    ],
)
async def test_what_is_no_http_is_refused_in_silence(
    port: int, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        assert (await say(port, request_bytes)).startswith(b"HTTP/1.1 400 ")
    except ConnectionResetError:
        assert len(request_bytes) > 8190  # unread bytes make the server's close a reset
    assert not caplog.records
    assert (await ask(port)).status == 200


async def test_a_body_that_never_comes_is_not_waited_for(port: int) -> None:
    said = await say(port, b"POST / HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX-Slow: "], ids=["silent", "slow"])
async def test_a_slow_client_is_cut_off(port: int, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_SECONDS", 0.2)
    assert await say(port, sent) == b""


async def test_clients_that_hold_connections_keep_nobody_else_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(http_server, "CONNECTION_SECONDS", 3600.0)  # a busy machine stands still for longer than 5 s
    async with AsyncExitStack() as stack:
        held = [await stack.enter_async_context(connected(port)) for _ in range(20)]
        assert (await ask(port)).status == 200
        await until(lambda: [reader.at_eof() for reader, _ in held] == [True] * 13 + [False] * 7)
