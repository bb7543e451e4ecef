"""An HTTP server for requests from anybody: one request per connection, and no connection for long.

A client has a few seconds to ask, and as many to read the answer. When there are too many connections, the oldest of
the client that has the most is closed. A malformed request gets a 400 and no line in the log. The body of a request is
not read.
"""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from errno import EADDRINUSE
from functools import partial
from http import HTTPStatus
from typing import cast

import structlog

from kroute.base.backoff import Backoff, exhaustion
from kroute.http.fair_listener import Budget, FairListener, client_of
from kroute.http.messages import MalformedError, Request, Response, ServerExchange, text
from kroute.model.addresses import Family
from kroute.model.plan import Problem
from kroute.settings import ListenAddress

log = structlog.get_logger(__name__)

CONNECTION_SECONDS = 5.0
"""Seconds that a client may take from connecting to asking, and from there to reading the answer. A request that has
arrived in time is answered, however late this process comes to it."""
MOST_CONNECTIONS = 256
"""Open connections on all ports together: far below the usual limit of 1,024 file descriptors of a process."""
Answer = Callable[[Request], Awaitable[Response]]
MOST_A_SECOND = 500
"""Connections a second of all clients to one of these ports. Each has a budget of its own: health check node ports,
which users make, take nothing of it."""
FIRST_RETRY, LAST_RETRY = 1.0, 30.0
"""Seconds until a port that cannot be bound is tried again. The pause doubles each time."""
Report = Callable[[Problem], None]
"""Called with a problem of the node."""


class BriefHttpServer:
    """Answers on any number of ports, and limits how many connections there are and how long they last.

    `seconds` is in place of CONNECTION_SECONDS. `budget` is that of all these ports together; by default no other
    server has it.
    """

    def __init__(self, answer: Answer, seconds: float | None = None, budget: Budget | None = None) -> None:
        self._make_answer = answer
        self._seconds = seconds
        self._budget = budget or Budget()
        self._is_lacking = False
        self._open: dict[_Connection, asyncio.TimerHandle] = {}

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
        fair = FairListener(listener, self._budget)
        return await asyncio.get_running_loop().create_server(partial(_Connection, self), sock=fair)

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
        for connection in list(self._open):
            self._cut(connection)

    async def answer(self, request: Request) -> Response:
        """The answer, also if making it fails: lack of a resource is no defect, and is one line however many ask."""
        try:
            response = await self._make_answer(request)
            self._is_lacking = False
        except Exception as error:  # a defect ends neither the server nor kroute
            next_step = exhaustion(error)
            if next_step is None:
                log.exception("request.failed", path=request.path)
                return Response(HTTPStatus.INTERNAL_SERVER_ERROR)
            if not self._is_lacking:
                what = f"answering {request.path}"
                log.warning("resources.exhausted", what=what, error=str(error), next_step=next_step)
            self._is_lacking = True
            return Response(HTTPStatus.SERVICE_UNAVAILABLE)
        return response

    def opened(self, connection: "_Connection") -> None:
        """Take a connection in. If there are too many, the oldest one of the client that has the most is closed."""
        if len(self._open) == MOST_CONNECTIONS:
            [(client, _)] = Counter(known.client for known in self._open).most_common(1)
            self._cut(next(known for known in self._open if known.client == client))
        self._give_time(connection)

    def asked(self, connection: "_Connection") -> None:
        """Give a connection whose request has arrived the time to read the answer."""
        self._open[connection].cancel()
        self._give_time(connection)

    def closed(self, connection: "_Connection") -> None:
        """Forget a connection that has ended."""
        if connection in self._open:
            self._open.pop(connection).cancel()

    def _give_time(self, connection: "_Connection") -> None:
        seconds = CONNECTION_SECONDS if self._seconds is None else self._seconds
        self._open[connection] = asyncio.get_running_loop().call_later(seconds, self._cut, connection)

    def _cut(self, connection: "_Connection") -> None:
        self._open.pop(connection).cancel()
        connection.abort()


class _Connection(asyncio.Protocol):
    """One client's connection: reads the head of one request, answers, and closes."""

    client: str
    _transport: asyncio.Transport
    _exchange: ServerExchange

    def __init__(self, server: BriefHttpServer) -> None:
        self._server = server
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.client = client_of(transport.get_extra_info("peername", ("::1", 0))[0])
        address, port, *_ = transport.get_extra_info("sockname", ("::1", 0))
        family = Family.IPV4 if "." in address else Family.IPV6  # a socket of both families has ::ffff:10.0.0.1
        self._exchange = ServerExchange(port, family)
        self._server.opened(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        try:
            request = self._exchange.receive(data)
        except MalformedError:
            self._end(text(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1.1\n"))
            return
        if request is not None:
            self._transport.pause_reading()
            self._server.asked(self)
            self._answering = asyncio.get_running_loop().create_task(self._answer(request))

    def eof_received(self) -> bool:
        """Whether to stay open for the answer: a client may end its side after the request."""
        return self._answering is not None

    async def _answer(self, request: Request) -> None:
        self._end(await self._server.answer(request))

    def _end(self, response: Response) -> None:
        self._transport.write(self._exchange.answer(response))
        self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever was not sent yet."""
        self._transport.abort()
        if self._answering is not None:
            self._answering.cancel()


async def serve(
    what: str,
    where: ListenAddress,
    answer: Answer,
    report: Report,
    *,
    seconds: float | None = None,
    held: set[int] | None = None,
) -> None:
    """Answer HTTP until cancelled.

    `what` names the server to operators. A connection lives at most `seconds`, by default the server's limit. A port
    that cannot be bound, because another program has it for example, is reported and waited for. `held` contains the
    port while it is bound.
    """
    held = set() if held is None else held
    server = BriefHttpServer(answer, seconds, Budget(MOST_A_SECOND))
    listening = await _listen(server, what, where, report)
    log.info("port.listening", purpose=what, address=str(where))
    held.add(where.port)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        held.discard(where.port)
        with suppress(OSError):
            await server.close([listening])
        server.cut_connections()


async def _listen(server: BriefHttpServer, what: str, where: ListenAddress, report: Report) -> asyncio.Server:
    backoff = Backoff(FIRST_RETRY, LAST_RETRY)
    while True:
        try:
            return await server.listen(where.host, where.port)
        except OSError as error:
            report(Problem("PortUnavailable", f"{what} {where}", _sentence(what, where, error)))
        await asyncio.sleep(backoff.delay())


def _sentence(what: str, where: ListenAddress, error: OSError) -> str:
    if (next_step := exhaustion(error)) is None:
        holder = f"`ss -ltnp sport = :{where.port}` shows which process has it"
        next_step = f"{holder if error.errno == EADDRINUSE else 'give another'} (--{what}-bind-address)"
    return (
        f"{what} cannot be served on {where}: {os.strerror(error.errno or 0)}; {next_step}. "
        "kroute serves without it and tries again, later and later."
    )
