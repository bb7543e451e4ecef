"""An agent's watches as they are, API client included, on a transport that leads to the server in virtual time."""

import asyncio
import errno
import json
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp

from bench.outage.server import Answer, RefusedError, Server
from kroute.watchers.kubernetes.api import Api
from kroute.watchers.kubernetes.server_presence import ServerPresence
from kroute.watchers.kubernetes.timing import Timing
from kroute.watchers.kubernetes.watcher import KubernetesWatcher

_KEY = SimpleNamespace(host="server", port=6443, ssl=True, is_ssl=True)
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
    """The part of aiohttp's response that `Api` uses."""

    connection = None

    def __init__(self, status: int, retry_after: int, content: AsyncIterator[bytes]) -> None:
        self.status = status
        self.ok = status == 200
        self.headers = {"Retry-After": str(retry_after)} if retry_after else {}
        self.content = SimpleNamespace(iter_any=lambda: content)
        self.url = "https://server"

    async def __aenter__(self) -> "_Response":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


class _Transport:
    """The part of kubernetes-asyncio's client that `Api` uses; `recovered` is called after each list of the restart."""

    def __init__(self, server: Server, recovered: Callable[[], None]) -> None:
        self._server = server
        self._recovered = recovered

    async def request(self, _method: str, _url: str, *, query_params: dict[str, str], **_: Any) -> _Response:
        lists = "sendInitialEvents" in query_params
        if asyncio.get_running_loop().time() == 0.0:
            return _Response(200, 0, self._watched_until_the_end())
        try:
            answer = await self._server.ask(lists=lists)
        except RefusedError:
            refusal = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")
            raise aiohttp.ClientConnectorError(_KEY, refusal) from refusal  # type: ignore[arg-type]
        if answer.status in {403, 429}:
            return _Response(answer.status, answer.retry_after, _body(answer))
        return _Response(200, 0, self._listed() if lists else _once(_EXPIRED))

    async def _watched_until_the_end(self) -> AsyncIterator[bytes]:
        yield _end_of_list(_BEFORE)
        await self._server.has_ended.wait()
        raise aiohttp.ClientPayloadError("Response payload is not completed")

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
