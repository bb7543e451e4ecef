"""A load balancer that polls a node's health: an HTTP client of real sockets, on loopback."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import NamedTuple

from tests.unit.watching import PATIENCE

LOCALHOST = "127.0.0.1"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def free_ports(count: int = 1) -> list[int]:
    listeners = [socket.create_server((LOCALHOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in listeners]
    for each in listeners:
        each.close()
    return ports


@asynccontextmanager
async def connected(
    port: int, host: str = LOCALHOST
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def say(port: int, request: bytes, host: str = LOCALHOST) -> bytes:
    """Send the bytes and return everything that comes back until the server closes the connection."""
    async with asyncio.timeout(PATIENCE), connected(port, host) as (reader, writer):
        writer.write(request)
        return await reader.read()


async def ask(
    port: int,
    path: str = "/",
    method: str = "GET",
    host: str = LOCALHOST,
    host_header: str = "node",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Answer:
    lines = [f"{name}: {value}" for name, value in {"Host": host_header, **headers}.items()]
    said = await say(port, "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode(), host)
    head, body = said.split(b"\r\n\r\n", 1)
    first, *lines = head.decode().split("\r\n")
    return Answer(int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body)


async def ask_soon(port: int, host: str = LOCALHOST) -> Answer:
    """Return the answer, once the port is open."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await ask(port, host=host)
            except ConnectionError:
                await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  nothing signals what the controller remembers
            await asyncio.sleep(0.01)
