"""Calls to a Service or a server of the lab from inside a namespace, as the kernel routes them.

A refusal raises ConnectionRefusedError, an unreachable host another OSError, no answer TimeoutError. Which of them a
client sees is part of what the tests check.
"""

# ruff: noqa: ASYNC109 - how long a call is given is part of what a test says

import asyncio
import contextlib
import errno
import itertools
import socket
import time
from typing import Self

import msgspec

from tests.lab.patience import patience
from tests.lab.servers import Answer, SocketFactory, reset_on_close

PATIENCE = 5.0
"""Seconds after which a call without an answer fails, stalls of the machine not counted. Two lost SYNs take 3 s."""

_SOURCE_PORTS = itertools.cycle(range(33000, 61000))
"""No call has the source port of another that is open or has ended a moment ago, to whatever address.

IPVS confuses two connections of one client that have the same source port and reach the same real server by way of two
virtual servers (docs/kernel-facts.md). The kernel's choice of a source port allows that: it asks for another port only
if the destination is the same, too.
"""


class Connection:
    """An HTTP connection that stays open for several requests to one server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(
        cls, namespace: SocketFactory, address: str, port: int, protocol: int, source: tuple[str, int] | None = None
    ) -> Self:
        """Connect to `address`; the kernel chooses the source address, unless `source` (address, port or 0) is."""
        made = namespace.socket(_family(address), socket.SOCK_STREAM, protocol)
        try:
            _bind(made, source)
            await asyncio.get_running_loop().sock_connect(made, (address, port))
        except BaseException:
            made.close()
            raise
        return cls(*await asyncio.open_connection(sock=made))

    async def ask(self) -> Answer:
        """Send one request and return its answer. Raises ConnectionError if the connection has ended."""
        head = await self.request("/")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        return msgspec.json.decode(await self._reader.readexactly(length), type=Answer)

    async def request(self, path: str, host: str = "lab") -> bytes:
        """Send a request for `path` at `host` and return the head of the answer."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        try:
            return await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server closed the connection before it answered") from error

    async def exchange(self, octet: bytes) -> bytes:
        """Send a byte to a server that echoes, and return the reply; b"" if the connection has ended."""
        self._writer.write(octet)
        return await self._reader.read(1)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        reset_on_close(self._writer)
        self._writer.close()


async def ask_http(
    namespace: SocketFactory, address: str, port: int, protocol: int, source: tuple[str, int] | None, timeout: float
) -> Answer:
    """Send one request over a new connection."""
    async with patience(timeout):
        connection = await Connection.open(namespace, address, port, protocol, source)
        with contextlib.closing(connection):
            return await connection.ask()


async def ask_status(namespace: SocketFactory, address: str, port: int, path: str, timeout: float) -> int:
    """Return the status of the answer to a GET over TCP."""
    async with patience(timeout):
        connection = await Connection.open(namespace, address, port, socket.IPPROTO_TCP)
        with contextlib.closing(connection):
            head = await connection.request(path, f"[{address}]" if ":" in address else address)
    return int(head.split()[1])


async def ask_udp(
    namespace: SocketFactory, address: str, port: int, source: tuple[str, int] | None, timeout: float, size: int = 0
) -> Answer:
    """Send one datagram, of at least `size` bytes, and return the answer.

    An ICMP error raises ConnectionRefusedError or another OSError.
    """
    loop = asyncio.get_running_loop()
    with namespace.socket(_family(address), socket.SOCK_DGRAM) as made:
        _bind(made, source)
        async with patience(timeout):
            await loop.sock_connect(made, (address, port))
            await loop.sock_sendall(made, b"who are you?".ljust(size, b"."))
            return msgspec.json.decode(await loop.sock_recv(made, 2048), type=Answer)


class Stream:
    """A long connection that sends one byte after another and waits for each echo.

    `echoed` counts the bytes that came back. When the connection breaks, or an echo takes longer than `patience`
    seconds, `failure` says how.
    """

    def __init__(self, connection: Connection, interval: float, patience: float) -> None:
        self._connection = connection
        self._interval = interval
        self._patience = patience
        self.echoed = 0
        self.longest = 0.0
        """Seconds that the slowest echo took."""
        self.failure: str | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name="lab-stream")

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or has failed."""
        return self._task.done()

    async def _run(self) -> None:
        try:
            while True:
                octet, sent = bytes([self.echoed % 251]), time.monotonic()
                async with patience(self._patience):
                    received = await self._connection.exchange(octet)
                if received != octet:
                    self.failure = f"byte {self.echoed} came back as {received!r}"
                    return
                self.echoed += 1
                self.longest = max(self.longest, time.monotonic() - sent)
                await asyncio.sleep(self._interval)
        except TimeoutError:
            self.failure = f"byte {self.echoed} did not come back within {self._patience} s"
        except OSError as error:
            self.failure = f"broke at byte {self.echoed}: {error}"

    async def close(self, *, reset: bool = False) -> None:
        """End the stream, in order or with a TCP reset. `failure` keeps its value."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if reset:
            self._connection.reset()
        else:
            self._connection.close()


def _bind(made: socket.socket, source: tuple[str, int] | None) -> None:
    """Give a socket its source: the port that is asked for, or one of `_SOURCE_PORTS` that is free."""
    address, port = source or ("", 0)
    if port:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        return
    for port in _SOURCE_PORTS:
        try:
            made.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
