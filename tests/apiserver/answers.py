"""HTTP answers as kube-apiserver writes them, whole or spoilt by a fault."""

import asyncio
import gzip
from collections.abc import Sequence

from aiohttp import web

from tests.apiserver.encoding import encode
from tests.apiserver.faults import Fault
from tests.apiserver.status import StatusError

HEADERS = {"Cache-Control": "no-cache, private", "Content-Type": "application/json"}
CHUNKED_FROM = 2048
"""Bytes from which Go's server sends an answer in chunks."""
GZIP_FROM = 128 * 1024
"""Bytes from which the API server compresses for a client that accepts it."""


def abort(request: web.Request) -> None:
    """Reset the connection."""
    if request.transport is not None:
        request.transport.abort()


def end_idle(server: web.Server | None, *, deaf: bool) -> None:
    """Close the connections without a request, and each other one after its answer.

    `deaf`: only have aiohttp read nothing more on them, which is all that it does by itself.
    """
    if server is not None:
        server.pre_shutdown()
        for connection in server.connections:
            if not deaf and connection._current_request is None:
                connection.force_close()


def error_answer(error: StatusError) -> web.Response:
    headers = dict(HEADERS)
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return web.Response(status=error.code, body=encode(error.body), headers=headers)


def fault_answer(fault: Fault) -> web.Response:
    return error_answer(StatusError(fault.status, "", f"injected: {fault.status}", retry_after=fault.retry_after))


async def send_body(request: web.Request, body: bytes, fault: Fault | None, code: int = 200) -> web.StreamResponse:
    """Send an answer that is not a stream."""
    headers = dict(HEADERS)
    chunked = len(body) >= CHUNKED_FROM
    if len(body) >= GZIP_FROM and "gzip" in request.headers.get("Accept-Encoding", ""):
        body = gzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    if fault is None or fault.kind not in {"truncate", "cut", "stall"}:
        response = web.Response(status=code, body=body, headers=headers)
        if chunked:
            response.enable_chunked_encoding()
        return response
    stream = web.StreamResponse(status=code, headers=headers)
    stream.enable_chunked_encoding()
    await stream.prepare(request)
    await stream.write(body[: len(body) // 2])
    await _spoil(request, stream, fault)
    return stream


class LineWriter:
    """Writes the lines of a watch, until a fault strikes."""

    def __init__(self, request: web.Request, fault: Fault | None) -> None:
        self._request = request
        self._fault = fault
        self._written = 0
        self.response = web.StreamResponse(headers=HEADERS)
        self.response.enable_chunked_encoding()

    async def start(self) -> bool:
        """Send the headers; False when the stream is over already."""
        await self.response.prepare(self._request)
        return not await self._struck(b"")

    async def write(self, lines: Sequence[bytes]) -> bool:
        """Write lines; False when the stream is over."""
        if self._fault is None:
            await self.response.write(b"".join(lines))
            return True
        for line in lines:
            if await self._struck(line):
                return False
            await self.response.write(line)
            self._written += 1
        return True

    async def _struck(self, line: bytes) -> bool:
        fault = self._fault
        if fault is None or self._written < fault.after or (fault.kind in {"truncate", "cut"} and not line):
            return False
        if fault.kind == "expire":
            error = StatusError(410, "Expired", "injected: too old resource version")
            await self.response.write(encode({"type": "ERROR", "object": error.body}))
        else:
            await self.response.write(line[: len(line) // 2])
            await _spoil(self._request, self.response, fault)
        return True


async def _spoil(request: web.Request, response: web.StreamResponse, fault: Fault) -> None:
    if fault.kind == "cut":
        await response.write_eof()
    elif fault.kind == "stall":
        await asyncio.Event().wait()  # until the client or the server hangs up
    else:
        abort(request)
