"""Requests to the Kubernetes API: bytes and typed errors.

`authentication/` has the credentials, `http/` the transport. Bodies are left undecoded, for msgspec.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from kroute import __version__
from kroute.base.backoff import Backoff, exhaustion
from kroute.base.wording import in_words
from kroute.settings import Settings
from kroute.watchers.kubernetes.authentication import load_credentials
from kroute.watchers.kubernetes.authentication.configuration import Configuration, Credentials, Pem, context_for
from kroute.watchers.kubernetes.decoding import LineBuffer
from kroute.watchers.kubernetes.errors import (
    AnswerTooLongError,
    ApiError,
    ConfigurationError,
    NoServerError,
    UnreachableError,
    UntrustedStreamError,
)
from kroute.watchers.kubernetes.http.client import HttpClient
from kroute.watchers.kubernetes.http.connection import Answer, HttpError, SilenceError
from kroute.watchers.kubernetes.requests import ApiUse, RequestStatistics
from kroute.watchers.kubernetes.server_presence import Peers, ServerPresence, WritesWhenUp, costs_nothing

if TYPE_CHECKING:
    from kroute.watchers.kubernetes.server_choice import Look, ServerChoice

HEADERS_TIMEOUT = 30.0
"""Seconds until the headers of a stream must be there. The API server sends them before the first object; a request may
wait for 15 s in the queue of its priority level (a quarter of --request-timeout)."""
READ_TIMEOUT = 60.0
"""Seconds within which the head of an ordinary answer must be there, and that its body may pause. The API server's own
limit (--request-timeout) is as long."""
LEAST_RATE = 10 << 10
"""Bytes a second, decompressed, of a body that takes longer than READ_TIMEOUT."""
ANSWER_TIMEOUT = 600.0
"""Seconds that the body of an ordinary answer may take, at any rate."""

LONGEST_ANSWER = 128 << 20
"""Bytes of a list, decompressed: some 80,000 Services. A longer list is requested in smaller pages. The bytes are in
memory twice."""
LONGEST_REFUSAL = 1 << 20
"""Bytes of the body of an error."""

_JSON, _MERGE_PATCH = {"Content-Type": "application/json"}, {"Content-Type": "application/merge-patch+json"}
_CONTENT_TYPE = {"POST": _JSON, "PUT": _JSON, "PATCH": _MERGE_PATCH}

_METADATA_LIST, _METADATA = (
    f"application/json;as={kind};g=meta.k8s.io;v=v1,application/json"
    for kind in ("PartialObjectMetadataList", "PartialObjectMetadata")
)
"""What to accept instead of whole objects, in lists and in watches (Kubernetes 1.15). A server that has no metadata
alone answers with whole objects, of which the same is read."""

_FAILURES = (HttpError, OSError, MemoryError, RuntimeError)
"""Errors with which a request ends. RuntimeError: there is no thread in which to resolve the server's name."""

Parameters = Mapping[str, str]
LineStream = AsyncGenerator[Sequence[bytes], None]


class Api:
    """The API server of one cluster. Create it with `open`, then `close` it, or use it as an async context manager.

    `addresses` are URLs that take precedence over that of the credentials. With several, all requests go to the one
    that `server_choice` chooses.
    """

    def __init__(self, credentials: Credentials, addresses: Sequence[str] = ()) -> None:
        self._credentials = credentials
        self._given = tuple(addresses)
        self._choice: ServerChoice | None = None
        if len(addresses) > 1:
            from kroute.watchers.kubernetes import server_choice  # noqa: PLC0415  most have one address

            self._choice = server_choice.ServerChoice(addresses)
        self._client_of: Callable[[str], HttpClient]
        self._rejected = False
        self._tls: tuple[object, ...] = ()
        self._client: HttpClient | None = None
        self._renewing = asyncio.Lock()
        self.peers = Peers()
        self.presence = ServerPresence()
        self.requests = RequestStatistics()
        self.when_up = WritesWhenUp(self, self.presence)

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Find the server and the credentials. The first request connects.

        Raises:
            ConfigurationError: the file, URL, certificate or service account cannot be used.
        """
        api = cls(await load_credentials(settings), settings.master)
        _clients(api._credentials.configuration, api.addresses)(api.server)
        return api

    async def close(self) -> None:
        """End every request."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The URLs of all servers that may be asked."""
        return self._given or (self._credentials.configuration.host,)

    @property
    def server(self) -> str:
        """The URL of the server that is asked."""
        return self._choice.in_use if self._choice is not None else self.addresses[0]

    def use(self) -> ApiUse:
        """The server that is asked, and the counts of the requests."""
        failovers = self._choice.failovers if self._choice is not None else 0
        return ApiUse(self.server, failovers, self.requests.series())

    async def get(self, path: str, params: Parameters | None = None, *, only_metadata: bool = False) -> bytes:
        """The body of an answer, decompressed. `only_metadata`: a list whose objects are their metadata alone.

        Raises:
            ApiError: the server answered with an error, or (`UnreachableError`) did not answer completely.
        """
        return await self._exchange("GET", path, params or {}, accept=_METADATA_LIST if only_metadata else None)

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST an object, or a `…Review`, into the collection at `path`. Returns the answer. Raises as `get` does."""
        return await self._exchange("POST", path, {}, body=body)

    async def patch(self, path: str, patch: Mapping[str, Any]) -> None:
        """PATCH the object at `path` with a JSON merge patch (RFC 7396). Raises as `get` does."""
        await self._exchange("PATCH", path, {}, body=patch)

    async def server_time(self) -> float:
        """The server's clock, in Unix seconds with a resolution of one second. Raises as `get` does.

        It is the header `Date` of the server's `/readyz`, which needs no permission.
        """
        from email.utils import parsedate_to_datetime  # noqa: PLC0415  0.01 s, and no agent asks

        _, response = await self._request("GET", "/readyz", {}, READ_TIMEOUT)
        response.close()
        try:
            return parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError) as error:
            raise ApiError(0, "", f"the answer of {self.server} has no date: {error}") from error

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        """PUT the object at `path`, if it still has the resourceVersion of `body`. Returns it. Raises as `get` does."""
        return await self._exchange("PUT", path, {}, body=body)

    async def stream(
        self, path: str, params: Parameters, *, silent: float | None = None, only_metadata: bool = False
    ) -> LineStream:
        """The lines of an answer, of any length, in batches as they arrive. `only_metadata` as at `get`.

        Close the iterator to end the request (`contextlib.aclosing`). Raises as `get` does, and UntrustedStreamError
        after `silent` seconds without a byte.
        """
        accept = _METADATA if only_metadata else None
        client, response = await self._request("GET", path, params, silent, is_stream=True, accept=accept)
        try:
            buffer = LineBuffer()
            while piece := await response.read():
                if lines := buffer.take(piece):
                    yield lines
        except SilenceError as error:
            raise UntrustedStreamError(f"the server is silent: {error}") from error
        except _FAILURES as error:
            raise await self._failure(client, f"the stream from {client.url} broke", error) from error
        finally:
            response.close()
        if buffer.is_within_line:
            raise UnreachableError(f"the stream from {self.server} ended within a line")

    async def stay_reachable(self) -> None:
        """Look after the server in use until cancelled, where there are several; with one address, return at once."""
        if self._choice is None:
            return
        from kroute.watchers.kubernetes.server_choice import LAST_PAUSE, LOOK_EVERY  # noqa: PLC0415  as above

        pauses = Backoff(LOOK_EVERY, LAST_PAUSE)
        while True:
            await (self.presence.turn() if self.presence.is_away else asyncio.sleep(pauses.delay()))
            if await self._look_after(self._choice):
                pauses.reset()

    async def faults(self) -> dict[str, str]:
        """What is wrong with each of the servers that are not in use, by their URLs; an empty text: it is ready.

        Raises as `get` does.
        """
        if self._choice is None:
            return {}
        _, headers = await self._session()
        found = {}
        for address in self.addresses:
            if address != self.server:
                client = self._client_of(address)
                found[client.url] = (await self._choice.look(address, client, headers)).said
                await client.close()
        return found

    async def _exchange(
        self,
        method: str,
        path: str,
        params: Parameters,
        *,
        body: Mapping[str, Any] | None = None,
        accept: str | None = None,
    ) -> bytes:
        client, response = await self._request(method, path, params, READ_TIMEOUT, body=body, accept=accept)
        return await self._body(client, response, LONGEST_ANSWER)

    async def _request(
        self,
        method: str,
        path: str,
        params: Parameters,
        read_timeout: float | None,
        *,
        body: Mapping[str, Any] | None = None,
        accept: str | None = None,
        is_stream: bool = False,
    ) -> tuple[HttpClient, Answer]:
        """Send a request. Returns when the headers of an answer without error have arrived.

        What was not sent, or only reads, is sent to the server that takes the place of one that fails.
        """
        moves_left = len(self.addresses) - 1
        while True:
            began = asyncio.get_running_loop().time()
            try:
                client, headers = await self._session()
            except (ConfigurationError, *_FAILURES) as error:
                # a rotation may be half done: the next try finds the rest
                raise UnreachableError(_what(error)) from error
            try:
                request = client.request(
                    method,
                    path,
                    params,
                    {**headers, **_CONTENT_TYPE.get(method, {}), **({"Accept": accept} if accept else {})},
                    msgspec.json.encode(body) if body is not None else b"",
                    read_timeout=read_timeout,
                    head_timeout=HEADERS_TIMEOUT if is_stream else read_timeout,
                    on_kept=not is_stream,  # a watch lasts for minutes: its own connection is cheap
                )
                response = await self.requests.measured(client.url, method, request)
            except _FAILURES as error:
                failure = await self._failure(client, f"{client.url} does not answer", error)
                if failure.moved and moves_left and (method == "GET" or costs_nothing(error)):
                    moves_left -= 1
                    continue
                if self._choice is None:
                    self.presence.missed(str(failure), refused=costs_nothing(error), asked=began)
                raise failure from error
            except ValueError as error:
                raise UnreachableError(f"{client.url} cannot be asked: {_what(error)}") from error
            if self.presence.answered():
                client.give_up(begun_before=began)  # what was asked of the server that has gone
            return client, await self._without_error(client, response)

    async def _without_error(self, client: HttpClient, response: Answer) -> Answer:
        """The answer, unless it is an error."""
        self.peers.saw(response.transport)
        if response.ok:
            return response
        text = await self._body(client, response, LONGEST_REFUSAL)
        self._rejected = response.status == 401
        raise ApiError.from_status(text, response.status, response.headers.get("retry-after"))

    async def _body(self, client: HttpClient, response: Answer, longest: int) -> bytes:
        try:
            return await _read(response, longest)
        except _FAILURES as error:
            raise await self._failure(client, f"the answer from {client.url} was cut short", error) from error

    async def _failure(self, client: HttpClient, what: str, error: BaseException) -> UnreachableError:
        """The error of a connection that failed. What is kept leads to where it did, perhaps to nobody, and is left."""
        client.leave_idle()
        said = f"{what}: {_what(error)}"
        has_moved = await self._has_moved(client, said, is_silent=isinstance(error, TimeoutError))
        return UnreachableError(said, moved=has_moved)

    async def _session(self) -> tuple[HttpClient, dict[str, str]]:
        """The session to use and the headers that authenticate, both up to date.

        A changed certificate needs a new session. The old one is closed at once, as in client-go, so that no request
        continues with credentials that were replaced.

        Raises:
            NoServerError: none of several servers answers.
        """
        async with self._renewing:
            await self._credentials.refresh(rejected=self._rejected)
            self._rejected = False
            configuration = self._credentials.configuration
            tls = _tls_settings(configuration)
            if self._client is None or tls != self._tls:
                await self.close()
                self._client_of = _clients(configuration, self.addresses)
                self._client = await self._new_client()
                self._tls = tls
            elif self._choice is not None and self.presence.is_away:
                await self._compare(self._choice, self._client, "it did not answer")
            return self._client, self._headers()

    def _headers(self) -> dict[str, str]:
        own = {"Accept": "application/json", "User-Agent": f"kroute/{__version__}"}
        return own | self._credentials.configuration.headers

    async def _new_client(self) -> HttpClient:
        """A client of the server in use; before one is, of the best of several."""
        if self._choice is None or self._tls:
            return self._client_of(self.server)
        best = await self._best(self._choice)
        self._choice.use(best, None)
        return best.client

    # Several servers

    async def _look_after(self, choice: "ServerChoice") -> bool:
        """Look at the server in use, and leave one that fails for a better one. Returns whether a server is ready."""
        client = self._client
        try:
            if client is None or self.presence.is_away:
                client, headers = await self._session()
            else:  # nothing is refreshed for a look: a plugin that gives tokens would run every minute
                headers = self._headers()
        except (ConfigurationError, NoServerError, *_FAILURES):
            return False  # the next request says it
        look = await choice.look(choice.in_use, client, headers)
        if look.is_ready:
            return True
        client.leave_idle()
        return await self._has_moved(client, look.said, is_silent=look.timed_out)

    async def _has_moved(self, client: HttpClient, because: str, *, is_silent: bool) -> bool:
        """Whether another client has taken the place of this one, which has failed. With one address, none does.

        `is_silent`: nothing came on its connections, in time; so even the same server is asked by new ones.
        """
        if self._choice is None:
            return False
        failed_at = asyncio.get_running_loop().time()
        async with self._renewing:
            if self._client is client and self._choice.compared_at < failed_at:
                try:
                    await self._compare(self._choice, client, because, is_silent=is_silent)
                except (ConfigurationError, NoServerError):
                    return False
            return self._client is not client

    async def _compare(
        self, choice: "ServerChoice", client: HttpClient, because: str, *, is_silent: bool = False
    ) -> None:
        """Ask all servers, and use the best. Raises NoServerError, and leaves everything as it is."""
        best = await self._best(choice, in_use_last=is_silent)
        if best.address == choice.in_use and not is_silent:
            await best.client.close()
        else:
            choice.use(best, because)
            self._client = best.client
            await client.close()
        if self.presence.answered():
            client.give_up(begun_before=asyncio.get_running_loop().time())

    async def _best(self, choice: "ServerChoice", *, in_use_last: bool = False) -> "Look":
        """The best of all servers. Notes it, and raises NoServerError, if none answers."""
        asked = asyncio.get_running_loop().time()
        try:
            return await choice.best(self._client_of, self._headers(), in_use_last=in_use_last)
        except NoServerError as error:
            self.presence.missed(str(error), refused=error.refused, asked=asked)
            raise


def _clients(configuration: Configuration, servers: Sequence[str]) -> Callable[[str], HttpClient]:
    """What makes a client of a server, with the certificates as they are now."""

    def client_of(server: str) -> HttpClient:
        try:
            return HttpClient(server, tls, server_name=configuration.tls_server_name, proxy=configuration.proxy)
        except ValueError as error:
            raise ConfigurationError(f"{server} cannot be asked: {_what(error)}") from error

    try:
        tls = context_for(configuration) if any(server.startswith("https:") for server in servers) else None
    except OSError as error:  # ssl.SSLError is an OSError
        files = [str(pem) for pem in configuration.pems if isinstance(pem, Path)]
        raise ConfigurationError(f"certificates {', '.join(files)} cannot be used: {_what(error)}") from error
    return client_of


async def _read(response: Answer, longest: int) -> bytes:
    """The body of an answer.

    Raises AnswerTooLongError if it has more than `longest` bytes, TimeoutError if it comes too slowly.
    """
    body = bytearray()
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(READ_TIMEOUT) as limit:
            while piece := await response.read():
                body += piece
                if len(body) > longest:
                    too_long = f"has more than {longest >> 20} MiB: it is not read"
                    raise AnswerTooLongError(f"the answer from {response.url} {too_long}")
                limit.reschedule(began + min(ANSWER_TIMEOUT, READ_TIMEOUT + len(body) / LEAST_RATE))
    except TimeoutError as error:
        seconds = asyncio.get_running_loop().time() - began
        raise TimeoutError(str(error) or f"no more than {len(body):,} bytes came in {seconds:.0f} s") from error
    finally:
        response.close()
    return bytes(body)


def _tls_settings(configuration: Configuration) -> tuple[object, ...]:
    """What a client is made with: another one is needed when it differs.

    With each new token the kubelet also writes the authority's file again: what is in it counts, and not its age.
    """
    return *map(_content, configuration.pems), msgspec.structs.replace(configuration, headers={})


def _content(pem: Pem | None) -> bytes | None:
    """What is in a file; None if there is no file, or it cannot be read."""
    try:
        return pem.read_bytes() if isinstance(pem, Path) else None
    except (OSError, ValueError):  # ValueError: NUL in its name
        return None


def _what(error: BaseException) -> str:
    words, next_step = in_words(error), exhaustion(error)
    return f"{words}; {next_step}" if next_step else words
