"""Connections to a server, and the answers that come on them."""

import asyncio
import socket
import zlib
from collections.abc import Callable, Mapping
from typing import cast

import h11

from kroute.base.alarm import Alarm

READ_AHEAD = 64 << 10
"""Bytes that may wait to be taken before the socket is read no further. asyncio reads up to 256 KiB at once."""
LONGEST_HEAD = 64 << 10
"""Bytes of an answer's status line and headers."""
MOST_INFORMATIONAL = 10
"""Answers with a status of 1xx that may come before the answer. An API server sends none."""
INFLATED_AT_ONCE = 1 << 20
"""Bytes of a compressed answer that are made at once: a few compressed ones may stand for very many."""

PROBED_AFTER, PROBED_EVERY, DEAD_AFTER = 15, 5, 30
"""Seconds of silence after which the kernel asks the other end whether it is there, and how often then; and the seconds
without a sign of it, of what was sent too, after which it has gone (SO_KEEPALIVE, TCP_USER_TIMEOUT). client-go asks by
a ping of HTTP/2 after 30 s, and waits for 15 s."""


class HttpError(Exception):
    """What the server sent is not HTTP/1.1, or ended too early."""


class SilenceError(TimeoutError):
    """Nothing has come for as long as a wait for it may take."""


class HttpConnection(asyncio.Protocol):
    """The bytes of one connection. While it is open, it is in `all_open`."""

    transport: asyncio.Transport

    def __init__(self, all_open: set["HttpConnection"]) -> None:
        self._all_open = all_open
        self._received = bytearray()
        self._has_ended = False
        self._error: Exception | None = None
        self._has_news = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._alarm = Alarm(self._has_news, self._clock)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._all_open.add(self)
        _probe(self.transport.get_extra_info("socket"))

    def continue_on(self, transport: asyncio.Transport) -> None:
        """Speak TLS from now on, on a transport that leads through this connection's."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > READ_AHEAD:
            self.transport.pause_reading()
        self._has_news.set()

    def eof_received(self) -> None:
        self._has_ended = True
        self._has_news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended, self._error = True, exc
        self._alarm.stop()
        self._has_news.set()
        self._all_open.discard(self)

    @property
    def is_quiet(self) -> bool:
        """Whether it is open and nothing has come that nobody asked for."""
        return not (self._has_ended or self._received or self.transport.is_closing())

    async def receive(self, within: float | None) -> bytes:
        """What has come, as soon as there is something; nothing at the end.

        Raises OSError: the connection broke, or (SilenceError) nothing has come within so many seconds.
        """
        due: float | None = None
        while not (self._received or self._has_ended):
            self._has_news.clear()
            if within is not None:
                now = self._clock()
                due = now + within if due is None else due
                if now >= due:
                    raise SilenceError(f"nothing came for {within:g} s")
                self._alarm.set(due)
            await self._has_news.wait()
        if not self._received and self._error is not None:
            raise self._error
        received, self._received = bytes(self._received), bytearray()
        self.transport.resume_reading()
        return received


def _probe(connection: socket.socket) -> None:
    """Have the kernel find out that the other end has gone: no packet says so when a machine or a way to it dies."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBED_AFTER)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBED_EVERY)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER * 1000)


class ClientExchange:
    """One request on a connection, and its answer. `within` limits each wait for bytes of it, in seconds."""

    def __init__(self, connection: HttpConnection, within: float | None) -> None:
        self.connection = connection
        self._machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._within = within
        self.has_begun = False

    def send(self, request: h11.Request, body: bytes) -> None:
        """Write the request. Raises HttpError: HTTP cannot carry it."""
        try:
            events = [request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
            self.connection.transport.write(b"".join(self._machine.send(event) or b"" for event in events))
        except h11.LocalProtocolError as error:
            raise HttpError(str(error)) from error

    async def head(self) -> h11.Response:
        """The answer's head. Raises HttpError, OSError."""
        for _ in range(MOST_INFORMATIONAL + 1):
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise HttpError("the connection ended before an answer")
        raise HttpError(f"more than {MOST_INFORMATIONAL} answers with a status of 1xx came, and no other")

    async def body(self) -> bytes | None:
        """The bytes of the body that have come, once there are some; None at its end. Raises HttpError, OSError.

        A watch has a chunk for each object, and what follows costs less for several together than for each.
        """
        pieces: list[bytes] = []
        while self._machine.their_state is h11.SEND_BODY:
            event = self._event() if pieces else await self._next()
            if not isinstance(event, h11.Data):
                break
            pieces.append(event.data)
        return b"".join(pieces) if pieces else None

    @property
    def leaves_connection_open(self) -> bool:
        """Whether the whole answer and no more was read, and another request may follow on the connection."""
        is_done = self._machine.our_state is h11.DONE and self._machine.their_state is h11.DONE
        return is_done and not self._machine.trailing_data[0]

    async def _next(self) -> object:
        event, has_ended = self._event(), False
        while event is h11.NEED_DATA:
            if has_ended:
                raise HttpError("the connection ended too early")
            received = await self.connection.receive(self._within)
            has_ended = not received
            self.has_begun = self.has_begun or not has_ended
            self._machine.receive_data(received)
            event = self._event()
        return event

    def _event(self) -> object:
        """What follows in the bytes that have come, or NEED_DATA."""
        try:
            return self._machine.next_event()
        except h11.RemoteProtocolError as error:
            raise HttpError(str(error)) from error


class Answer:
    """An answer whose head has come. Read its body to the end, or close it. Names of headers are in lower case."""

    def __init__(
        self, exchange: ClientExchange, head: h11.Response, url: str, over: Callable[[HttpConnection], None]
    ) -> None:
        self.status: int = head.status_code
        self.headers: Mapping[str, str] = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        self.url = url
        self._exchange = exchange
        self._over = over
        self._is_over = False
        encoding = self.headers.get("content-encoding", "")
        if encoding not in {"", "identity", "gzip"}:
            raise HttpError(f"the answer has the encoding {encoding!r}, which was not asked for")
        self._inflater = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None
        self._received = b""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def transport(self) -> asyncio.Transport:
        return self._exchange.connection.transport

    async def read(self) -> bytes:
        """The next bytes of the body, decompressed, as soon as there are some; nothing at its end.

        Raises HttpError, OSError: it ended too early.
        """
        while not self._is_over:
            if self._received and (piece := self._unpacked()):
                return piece
            received = await self._exchange.body()
            if received is not None:
                self._received = received
            elif self._inflater is not None and not self._inflater.eof:
                raise HttpError("the compressed answer ended too early")
            else:
                self._end()
        return b""

    def close(self) -> None:
        """End the request. The connection of an answer that was not read to its end is cut."""
        if not self._is_over:
            self._is_over = True
            self.transport.abort()

    def _end(self) -> None:
        self._is_over = True
        if self._exchange.leaves_connection_open:
            self._over(self._exchange.connection)
        else:
            self.transport.abort()

    def _unpacked(self) -> bytes:
        """Some of what was received, decompressed. Raises HttpError."""
        if self._inflater is None:
            piece, self._received = self._received, b""
            return piece
        if self._inflater.eof:  # zlib would keep all of it, however much comes
            raise HttpError("the compressed answer goes on after its end")
        try:
            piece = self._inflater.decompress(self._received, INFLATED_AT_ONCE)
        except zlib.error as error:
            raise HttpError(f"the compressed answer cannot be read: {error}") from error
        self._received = self._inflater.unconsumed_tail
        return piece
