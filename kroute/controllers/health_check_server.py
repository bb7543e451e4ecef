"""The HTTP server behind every `healthCheckNodePort`: one question a connection, and no connection for long.

What is asked here comes from outside the cluster. So a connection has a few seconds, the oldest makes room when there
are too many of them, and what is no HTTP gets a 400 and no line in the log. Whoever asks for a path, and how, does not
matter: a load balancer may be configured to ask for any.

Importing this module loads aiohttp.web, which takes a third of a second.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus

import msgspec
from aiohttp import web

from kroute.planning.objects import ObjectKey
from kroute.planning.plan import HealthCheck

CheckedAt = Callable[[int], tuple[ObjectKey, HealthCheck] | None]
"""Which Service, and what of it, a port tells of."""

CONNECTION_SECONDS = 5.0
"""How long a client may take from connecting to reading the answer."""

MOST_CONNECTIONS = 256
"""Open connections on all ports together: far below the file descriptors that a process may have (usually 1,024)."""

_UNHEARD = logging.getLogger(__name__)
_UNHEARD.setLevel(logging.CRITICAL)  # aiohttp logs a traceback for each malformed request


class HealthCheckServer:
    """Answers as kube-proxy does (kubernetes, pkg/proxy/healthcheck/service_health.go).

    The status is 200 when the Service has ready endpoints on this node and the proxy is `healthy`, else 503; weight and
    body say how many there are.
    """

    def __init__(self, checked_at: CheckedAt, healthy: Callable[[], bool]) -> None:
        self._checked_at = checked_at
        self._healthy = healthy
        self._connections = _BriefConnections(self._answer)

    async def listen(self, address: str, port: int) -> asyncio.Server:
        """Answer on this port of an address, or of every address if it is empty; OSError when it cannot be bound."""
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.create_server((address, port), family=family)
        elif socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            listener = socket.create_server(("", port))
        return await asyncio.get_running_loop().create_server(self._connections, sock=listener)

    async def close(self, servers: Collection[asyncio.Server]) -> None:
        """Listen no longer. Who is connected still gets the answer.

        `asyncio.Server.close` fails, and leaves open, a connection that was accepted in the same turn of the event loop
        (python/cpython#109564). So nothing is accepted for a turn before it.
        """
        loop = asyncio.get_running_loop()
        for listener in (listener for server in servers for listener in server.sockets):
            loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)
        for server in servers:
            server.close()

    def cut_connections(self) -> None:
        """Close all connections at once, whatever is still to be said on them."""
        self._connections.cut_all()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        checked = self._checked_at(request.get_extra_info("sockname", ("", 0))[1])
        response = self._health(*checked) if checked else web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
        response.force_close()
        return response

    def _health(self, key: ObjectKey, check: HealthCheck) -> web.Response:
        is_healthy = self._healthy()
        body = {
            "service": {"namespace": key.namespace, "name": key.name},
            "localEndpoints": check.local_endpoints,
            "serviceProxyHealthy": is_healthy,
        }
        return web.Response(
            status=HTTPStatus.OK if is_healthy and check.local_endpoints else HTTPStatus.SERVICE_UNAVAILABLE,
            body=msgspec.json.encode(body),
            headers={
                "Content-Type": "application/json",
                "X-Content-Type-Options": "nosniff",
                "X-Load-Balancing-Endpoint-Weight": str(check.local_endpoints),
            },
        )


class _BriefConnections(web.Server):
    """An HTTP server whose connections are few and short, whatever the clients do."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(answer, access_log=None, logger=_UNHEARD, lingering_time=0)
        self._open: dict[web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._open) == MOST_CONNECTIONS:
            self._cut(next(iter(self._open)))
        deadline = asyncio.get_running_loop().call_later(CONNECTION_SECONDS, self._cut, handler)
        self._open[handler] = (transport, deadline)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        if handler in self._open:
            self._open.pop(handler)[1].cancel()

    def cut_all(self) -> None:
        for handler in list(self._open):
            self._cut(handler)

    def _cut(self, handler: web.RequestHandler) -> None:
        transport, deadline = self._open.pop(handler)
        deadline.cancel()
        transport.abort()
