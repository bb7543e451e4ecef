"""An HTTP server for requests from anybody: one request per connection, and no connection for long.

A connection has a few seconds. When there are too many, the oldest is closed. A malformed request gets a 400 and no
line in the log.

Importing this module loads aiohttp.web, which takes a third of a second.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus

import structlog
from aiohttp import web

from kroute.backoff import exhaustion
from kroute.http.fair_listener import FairListener

CONNECTION_SECONDS = 5.0
"""Seconds that a client may take from connecting to reading the answer."""

MOST_CONNECTIONS = 256
"""Open connections on all ports together: far below the usual limit of 1,024 file descriptors of a process."""

log = structlog.get_logger(__name__)

_UNHEARD = logging.getLogger(__name__)
_UNHEARD.setLevel(logging.CRITICAL)  # aiohttp logs a traceback for each malformed request

Answer = Callable[[web.BaseRequest], Awaitable[web.Response]]


class BriefHttpServer:
    """Answers on any number of ports. A connection is cut after `seconds`, by default CONNECTION_SECONDS."""

    def __init__(self, answer: Answer, seconds: float | None = None) -> None:
        self._connections = _BriefConnections(answer, seconds)

    async def listen(self, address: str, port: int) -> asyncio.Server:
        """Answer on this port of `address`, or of every address if it is empty.

        Raises OSError if it cannot be bound.
        """
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.create_server((address, port), family=family)
        elif socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            listener = socket.create_server(("", port))
        return await asyncio.get_running_loop().create_server(self._connections, sock=FairListener(listener))

    async def close(self, servers: Collection[asyncio.Server]) -> None:
        """Stop listening. Clients that are connected still get their answer.

        `asyncio.Server.close` fails, and leaks a connection that was accepted in the same turn of the event loop
        (python/cpython#109564). So nothing is accepted for one turn before the close.
        """
        loop = asyncio.get_running_loop()
        for listener in (listener for server in servers for listener in server.sockets):
            loop.remove_reader(listener.fileno())
        await asyncio.sleep(0)
        for server in servers:
            server.close()

    def cut_connections(self) -> None:
        """Close all connections at once, whether answered or not."""
        self._connections.cut_all()


class _BriefConnections(web.Server):
    """Limits how many connections there are and how long they last, whatever the clients do."""

    def __init__(self, answer: Answer, seconds: float | None) -> None:
        super().__init__(self._answer, access_log=None, logger=_UNHEARD, lingering_time=0)
        self._ask = answer
        self._is_lacking = False
        self._seconds = seconds
        self._open: dict[web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        try:
            response = await self._ask(request)
            self._is_lacking = False
        except Exception as error:  # noqa: BLE001  a defect ends neither the server nor kroute; aiohttp would not log it
            response = self._failure(request, error)
        response.force_close()
        return response

    def _failure(self, request: web.BaseRequest, error: Exception) -> web.Response:
        """The answer to a request that failed. Want of a resource is no defect, and is one line however many ask."""
        next_step = exhaustion(error)
        if next_step is None:
            log.exception("request.failed", path=request.path)
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR)
        if not self._is_lacking:
            log.warning("resources.exhausted", what=f"answering {request.path}", error=str(error), next_step=next_step)
        self._is_lacking = True
        return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._open) == MOST_CONNECTIONS:
            self._cut(next(iter(self._open)))
        seconds = CONNECTION_SECONDS if self._seconds is None else self._seconds
        deadline = asyncio.get_running_loop().call_later(seconds, self._cut, handler)
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
