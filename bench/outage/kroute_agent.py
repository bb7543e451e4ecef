"""An agent's watches as they are, API client included, on a transport that leads to the server in virtual time."""

import asyncio
import errno
import json
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from bench.outage.server import Answer, RefusedError, Server
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.http.connection import HttpError
from kroute.watchers.kubernetes.server_presence import ServerPresence
from kroute.watchers.kubernetes.timing import Timing
from kroute.watchers.kubernetes.watcher import KubernetesWatcher

_BEFORE, _AFTER = "3380", "3390"
"""The resourceVersions of the recorded restart."""


BOOKMARK_PERIOD = 60.0
"""Seconds, as recorded."""


def _bookmark(version: str, **metadata: Any) -> bytes:
    item = {"metadata": {"resourceVersion": version, **metadata}}
    return json.dumps({"type": "BOOKMARK", "object": item}).encode() + b"\n"


def _end_of_list(version: str) -> bytes:
    return _bookmark(version, annotations={"k8s.io/initial-events-end": "true"})


_EXPIRED = b'{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410,"message":"too old"}}\n'


class _Response:
    """The part of `Answer` that `Api` uses."""

    transport = None

    def __init__(self, status: int, retry_after: int, content: AsyncIterator[bytes]) -> None:
        self.status = status
        self.ok = status == 200
        self.headers = {"retry-after": str(retry_after)} if retry_after else {}
        self._content = content
        self.url = "https://server"

    async def read(self) -> bytes:
        return await anext(self._content, b"")

    def close(self) -> None: ...


class _Transport:
    """The part of `HttpClient` that `Api` uses; `recovered` is called after each list of the restart."""

    url = "https://server"

    def __init__(self, server: Server, recovered: Callable[[], None]) -> None:
        self._server = server
        self._recovered = recovered

    async def request(self, _method: str, _path: str, query: dict[str, str], *_: Any, **_named: Any) -> _Response:
        lists = "sendInitialEvents" in query
        if asyncio.get_running_loop().time() == 0.0:
            return _Response(200, 0, self._watched_until_the_end())
        try:
            answer = await self._server.ask(lists=lists)
        except RefusedError:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed") from None
        if answer.status in {403, 429}:
            return _Response(answer.status, answer.retry_after, _body(answer))
        return _Response(200, 0, self._listed() if lists else _once(_EXPIRED))

    def leave_idle(self) -> None: ...

    def give_up(self, begun_before: float) -> None: ...

    async def _watched_until_the_end(self) -> AsyncIterator[bytes]:
        yield _end_of_list(_BEFORE)
        await self._server.has_ended.wait()
        raise HttpError("the connection ended too early")

    async def _listed(self) -> AsyncIterator[bytes]:
        self._recovered()
        yield _end_of_list(_AFTER)
        while True:
            await asyncio.sleep(BOOKMARK_PERIOD)
            yield _bookmark(_AFTER)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _body(answer: Answer) -> AsyncIterator[bytes]:
    return _once(json.dumps({"kind": "Status", "code": answer.status}).encode())


class _Api(Api):
    """kroute's client, whose session is the transport."""

    def __init__(self, transport: _Transport, rng: random.Random) -> None:
        super().__init__(SimpleNamespace(configuration=SimpleNamespace(host="https://server:6443")))  # type: ignore[arg-type]
        self.presence = ServerPresence(rng)
        self._transport = transport

    async def _session(self) -> tuple[Any, dict[str, str]]:
        return self._transport, {}


def watcher(server: Server, rng: random.Random, recovered: Callable[[], None]) -> KubernetesWatcher:
    """The watches of one agent."""
    timing = Timing(clock=asyncio.get_running_loop().time, rng=rng)
    return KubernetesWatcher(_Api(_Transport(server, recovered), rng), lambda _changes: None, timing)
