"""The stand-in API server itself."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from aiohttp import web
from multidict import CIMultiDict

from tests.apiserver import kubeconfig, metadata_only, options, pods, status, writes
from tests.apiserver.access import ANONYMOUS, REVIEWS, USER, Access
from tests.apiserver.answers import LineWriter, abort, end_idle, error_answer, fault_answer, send_body
from tests.apiserver.encoding import EventEncoder, encode, nested
from tests.apiserver.faults import Fault, Faults, Where
from tests.apiserver.lists import list_objects
from tests.apiserver.resources import BY_KIND, Object, Target, object_key, parse_path
from tests.apiserver.selectors import Selection, select_fields, select_labels
from tests.apiserver.status import StatusError
from tests.apiserver.store import Store
from tests.apiserver.watches import Watch

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "go1.27.3",
    "compiler": "gc",
    "platform": "linux/amd64",
}
"""The answer to /version, by a kube-apiserver 1.36.2."""


@dataclass(frozen=True)
class Features:
    """What a server of some version or configuration offers."""

    streaming_lists: bool = True
    watch_cache: bool = True
    """Without it, a list from resourceVersion 0 is paged like any other."""
    service_fields: bool = True
    """Select Services by spec.clusterIP (1.32 and later)."""


class RequestSeen(NamedTuple):
    """A request, and the Unix time at which it came."""

    at: float
    method: str
    path: str
    query: dict[str, str]
    headers: CIMultiDict[str]


class ApiServer:
    """An API server on a port of 127.0.0.1 (0: any), as an async context manager.

    With a token, requests without one are anonymous (403), with another one unauthorized (401). `second` is how long a
    second of the API (timeoutSeconds, bookmarks, Fault.seconds) takes here. Servers with one `store` are those of one
    cluster.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        second: float = 1.0,
        features: Features | None = None,
        store: Store | None = None,
    ) -> None:
        self.store = Store() if store is None else store
        self.faults = Faults()
        self.access = Access()
        self.token = token
        self.features = features or Features()
        self.is_ready = True
        self.requests: list[RequestSeen] = []
        self._host, self._port, self._tls, self._second = host, port, tls, second
        self._watches: dict[Watch, web.Request] = {}
        self._encoder = EventEncoder()
        self._runner: web.AppRunner
        self._site: web.TCPSite

    async def __aenter__(self) -> Self:
        application = web.Application()
        posts = {"/forbidden": self._forbid, "/deep": self._store_deep, "/clear": self._clear, REVIEWS: self._review}
        for path, handler in {"/faults": self._add_fault, **posts}.items():
            application.router.add_post(path, handler)
        pods.add_routes(application.router, self)
        application.router.add_get("/readyz", self._ready)
        application.router.add_get("/version", self._version)
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        await self.open_port()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.end_watches()
        await self._runner.cleanup()

    async def open_port(self) -> None:
        """Listen. `close_port` ends that; watches that are open stay open."""
        self._site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls, reuse_address=True)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    async def close_port(self, *, deaf: bool = False) -> None:
        """Refuse connections, and end those that are idle; `deaf`: they stay open, and nobody listens any more."""
        await self._site.stop()
        end_idle(self._runner.server, deaf=deaf)

    def break_watches(self) -> None:
        """Reset the connection of every watch."""
        for request in self._watches.values():
            abort(request)

    @asynccontextmanager
    async def out_of_reach(self) -> AsyncIterator[None]:
        """Refuse connections; those that are there are reset."""
        await self.close_port()
        self.break_watches()
        try:
            yield
        finally:
            await self.open_port()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    def kubeconfig(self, path: Path, authority: Path | None = None, **user: str) -> Path:
        """Write a kubeconfig file for this server; `user` are fields of the user (default: the server's token)."""
        credentials = user or ({"token": self.token} if self.token else {})
        return kubeconfig.write(path, self.url, credentials, authority)

    # Changes, as some other client would make them

    def apply(self, item: Object) -> Object:
        """Create or replace an object."""
        return self.store.put(item)

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        self.store.delete(BY_KIND[kind], object_key(namespace, name))

    def objects(self, kind: str) -> list[Object]:
        return list(self.store.current(BY_KIND[kind]).values())

    def compact(self, revision: int | None = None) -> None:
        """Forget the history up to a revision (default: now): older versions and continue tokens are expired."""
        self.store.compact(revision)
        self._encoder.clear()

    def encode_ahead(self) -> None:
        """Encode every object now, so that whoever lists them does not wait for it."""
        for kind in BY_KIND:
            for item in self.objects(kind):
                self._encoder.keep(item)

    def end_watches(self) -> None:
        """End every watch in good order; with `compact` before it, a storm of relists."""
        for watch in self._watches:
            watch.end()
        self.store.wake()

    @property
    def watching(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    # Requests

    async def _ready(self, request: web.Request) -> web.Response:
        """Whoever has no token may ask, but a wrong one is refused, as kube-apiserver does."""
        try:
            self.authenticate(request)
        except StatusError as error:
            return error_answer(error)
        if self.access.denies_everything:
            return error_answer(status.forbidden_path("/readyz", USER))
        return web.Response(text="ok") if self.is_ready else web.Response(status=500, text="[+]ping ok\n")

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response(VERSION)

    async def _add_fault(self, request: web.Request) -> web.Response:
        """POST /faults {"kind": "answer", "status": 503, "where": "list", "times": 3}: for a server of its own."""
        how: dict[str, Any] = await request.json()
        self.faults.add(**how)
        return web.json_response({"due": len(self.faults.due)}, status=201)

    async def _store_deep(self, request: web.Request) -> web.Response:
        """POST /deep {"levels": 10000, "item": …}: store an object with `managedFields` nested so deep."""
        wanted: dict[str, Any] = await request.json()
        item = wanted["item"]
        self.apply({**item, "metadata": {**item["metadata"], "managedFields": nested(wanted["levels"])}})
        return web.json_response({}, status=201)

    async def _clear(self, _request: web.Request) -> web.Response:
        """POST /clear: forget every object and the history; for a server of its own."""
        self.store.restore([], self.store.revision + 1)
        self._encoder.clear()
        return web.json_response({}, status=201)

    async def _forbid(self, request: web.Request) -> web.Response:
        """POST /forbidden [["watch", "services"]]: these verbs, and no others; for a server of its own."""
        self.access.allow_all()
        for verb, plural in await request.json():
            self.access.forbid(verb, plural)
        return web.json_response({}, status=201)

    async def _review(self, request: web.Request) -> web.StreamResponse:
        try:
            self.authenticate(request)
        except StatusError as error:
            return error_answer(error)
        return await send_body(request, encode(await self.access.review(request)), None, 201)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        seen = RequestSeen(time.time(), request.method, request.path, dict(request.query), CIMultiDict(request.headers))
        self.requests.append(seen)
        try:
            self.authenticate(request)
            target = parse_path(request.path)
            if target is None:
                raise status.no_such_path()
            self._authorize(request, target)
            return await self._answer_or_fail(request, target)
        except StatusError as error:
            return error_answer(error)

    def authenticate(self, request: web.Request) -> None:
        """Raises StatusError for a client with another token."""
        given = request.headers.get("Authorization")
        if self.token is not None and given is not None and given != f"Bearer {self.token}":
            raise status.unauthorized()

    def _authorize(self, request: web.Request, target: Target) -> None:
        if self.token is not None and "Authorization" not in request.headers:
            raise status.forbidden(target, _verb(request, target), ANONYMOUS)
        self.access.check(target, _verb(request, target))

    async def _answer_or_fail(self, request: web.Request, target: Target) -> web.StreamResponse:
        where = _where(request)
        fault = self.faults.take(where, target.type.plural)
        if fault is not None:
            if fault.kind == "answer":
                return fault_answer(fault)
            if fault.kind == "delay":
                await asyncio.sleep(fault.seconds * self._second)
                fault = None
            elif fault.kind == "drop" and where != "watch":
                abort(request)
        if where == "write":
            code, item = await writes.write(self.store, request, target)
            return await send_body(request, encode(item), fault, code)
        if target.name is not None:
            return await send_body(request, encode(self._get(target)), fault)
        options.check(request.query, streaming_lists=self.features.streaming_lists)
        selection = self._selection(request, target)
        if where == "watch":
            return await self._send_watch(request, target, selection, fault)
        items = list_objects(self.store, target, request.query, selection, watch_cache=self.features.watch_cache)
        return await send_body(request, encode(metadata_only.answer(request.headers, items)), fault)

    def _get(self, target: Target) -> Object:
        try:
            return self.store.current(target.type)[target.key]
        except KeyError:
            raise status.no_such_object(target.type, target.name or "") from None

    def _selection(self, request: web.Request, target: Target) -> Selection:
        labels = select_labels(request.query.get("labelSelector", ""))
        fields = select_fields(request.query.get("fieldSelector", ""), target.type, self.features.service_fields)
        return lambda item: labels(item) and fields(item)

    async def _send_watch(
        self, request: web.Request, target: Target, selection: Selection, fault: Fault | None
    ) -> web.StreamResponse:
        line = metadata_only.line_of(request.headers, self._encoder.encode)
        watch = Watch(self.store, target, request.query, selection, self._second)
        writer = LineWriter(request, fault)
        self._watches[watch] = request
        try:
            if await writer.start():
                async with aclosing(watch.events()) as events:
                    async for some in events:
                        if not await writer.write([line(event) for event in some]):
                            break
        except ConnectionResetError:
            pass  # the client hung up
        finally:
            del self._watches[watch]
        return writer.response


def _where(request: web.Request) -> Where:
    if request.method != "GET":
        return "write"
    return "watch" if request.query.get("watch") in options.TRUE else "list"


def _verb(request: web.Request, target: Target) -> str:
    if request.method != "GET":
        return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]
    if _where(request) == "watch":
        return "watch"
    return "get" if target.name else "list"
