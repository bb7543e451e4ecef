"""Requests to the Kubernetes API: bytes and typed errors.

kubernetes-asyncio provides the authentication, `http/` the transport. Bodies are left undecoded, for msgspec.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Self

import msgspec

from kroute import __version__
from kroute.backoff import exhaustion
from kroute.settings import Settings
from kroute.settings.wording import in_words
from kroute.watchers.kubernetes.authentication.configuration import Credentials, fingerprint
from kroute.watchers.kubernetes.credentials import load_credentials
from kroute.watchers.kubernetes.errors import AnswerTooLongError, ApiError, ConfigurationError, UnreachableError
from kroute.watchers.kubernetes.http.client import HttpClient
from kroute.watchers.kubernetes.http.connection import Answer, HttpError
from kroute.watchers.kubernetes.http.tls import context_for
from kroute.watchers.kubernetes.lines import LineBuffer
from kroute.watchers.kubernetes.peers import Peers
from kroute.watchers.kubernetes.requests import RequestStatistics
from kroute.watchers.kubernetes.server_presence import ServerPresence, WritesWhenUp, costs_nothing

HEADERS_TIMEOUT = 30.0
"""Seconds until the headers of a stream must be there. The API server sends them before the first object; a request may
wait for 15 s in the queue of its priority level (a quarter of --request-timeout)."""
READ_TIMEOUT = 60.0
"""Seconds that an ordinary answer may pause. The API server's own limit is as long."""

LONGEST_ANSWER = 128 << 20
"""Bytes of a list, decompressed: some 80,000 Services. A longer list is requested in smaller pages. The bytes are in
memory twice."""
LONGEST_REFUSAL = 1 << 20
"""Bytes of the body of an error."""

_CONTENT_TYPE = {
    "POST": {"Content-Type": "application/json"},
    "PUT": {"Content-Type": "application/json"},
    "PATCH": {"Content-Type": "application/merge-patch+json"},
}

_METADATA_LIST, _METADATA = (
    f"application/json;as={kind};g=meta.k8s.io;v=v1,application/json"
    for kind in ("PartialObjectMetadataList", "PartialObjectMetadata")
)
"""What to accept instead of whole objects, in lists and in watches (Kubernetes 1.15). A server that has no metadata
alone answers with whole objects, of which the same is read."""

_FAILURES = (HttpError, OSError, MemoryError, RuntimeError)
"""Errors with which a request ends. RuntimeError: there is no thread in which to resolve the server's name."""

Parameters = Mapping[str, str]


class Api:
    """The API server of one cluster. Create it with `open`, then `close` it, or use it as an async context manager."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._rejected = False
        self._tls: tuple[Any, ...] = ()
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
        api = cls(await load_credentials(settings))
        try:
            await api._session()
        except ConfigurationError:
            await api.close()
            raise
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
    def server(self) -> str:
        return str(self._credentials.configuration.host)

    async def get(self, path: str, params: Parameters | None = None, *, only_metadata: bool = False) -> bytes:
        """The body of an answer, decompressed. `only_metadata`: a list whose objects are their metadata alone.

        Raises:
            ApiError: the server answered with an error, or (`UnreachableError`) did not answer completely.
        """
        return await self._exchange("GET", path, params or {}, accept=_METADATA_LIST if only_metadata else None)

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        """POST an object into the collection at `path`. Raises as `get` does."""
        await self._exchange("POST", path, {}, body=body)

    async def patch(self, path: str, patch: Mapping[str, Any]) -> None:
        """PATCH the object at `path` with a JSON merge patch (RFC 7396). Raises as `get` does."""
        await self._exchange("PATCH", path, {}, body=patch)

    async def review(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST a `…Review` to `path`. Returns it with the server's answer. Raises as `get` does."""
        return await self._exchange("POST", path, {}, body=body)

    async def server_time(self) -> float:
        """The server's clock, in Unix seconds with a resolution of one second. Raises as `get` does.

        It is the header `Date` of the server's `/readyz`, which needs no permission.
        """
        from email.utils import parsedate_to_datetime  # noqa: PLC0415  0.01 s, and no agent asks

        response = await self._request("GET", "/readyz", {}, read_timeout=READ_TIMEOUT)
        response.close()
        try:
            return parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError) as error:
            raise ApiError(0, "", f"the answer of {self.server} has no date: {error}") from error

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        """PUT the object at `path`, if it still has the resourceVersion of `body`. Returns it. Raises as `get` does."""
        return await self._exchange("PUT", path, {}, body=body)

    async def stream(
        self, path: str, params: Parameters, *, only_metadata: bool = False
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """The lines of an answer, of any length, in batches as they arrive. `only_metadata` as at `get`.

        Close the iterator to end the request (`contextlib.aclosing`). Raises as `get` does.
        """
        accept = _METADATA if only_metadata else None
        response = await self._request("GET", path, params, read_timeout=None, accept=accept)
        try:
            buffer = LineBuffer()
            while piece := await response.read():
                if lines := buffer.take(piece):
                    yield lines
        except _FAILURES as error:
            raise self._unreachable(f"the stream from {self.server} broke", error) from error
        finally:
            response.close()
        if buffer.is_within_line:
            raise UnreachableError(f"the stream from {self.server} ended within a line")

    async def _exchange(
        self,
        method: str,
        path: str,
        params: Parameters,
        *,
        body: Mapping[str, Any] | None = None,
        accept: str | None = None,
    ) -> bytes:
        response = await self._request(method, path, params, read_timeout=READ_TIMEOUT, body=body, accept=accept)
        try:
            return await _read(response, LONGEST_ANSWER)
        except _FAILURES as error:
            raise self._unreachable(f"the answer from {self.server} was cut short", error) from error

    async def _request(
        self,
        method: str,
        path: str,
        params: Parameters,
        *,
        read_timeout: float | None,
        body: Mapping[str, Any] | None = None,
        accept: str | None = None,
    ) -> Answer:
        """Send a request. Returns when the headers of an answer without error have arrived."""
        try:
            client, headers = await self._session()
        except (ConfigurationError, *_FAILURES) as error:
            raise UnreachableError(_what(error)) from error  # a rotation may be half done: the next try finds the rest
        began = asyncio.get_running_loop().time()
        with self.requests.measured(self.server, method) as request:
            try:
                response = await client.request(
                    method,
                    path,
                    params,
                    {**headers, **_CONTENT_TYPE.get(method, {}), **({"Accept": accept} if accept else {})},
                    msgspec.json.encode(body) if body is not None else b"",
                    read_timeout=read_timeout,
                    head_timeout=HEADERS_TIMEOUT if read_timeout is None else None,
                    on_kept=read_timeout is not None,  # a watch lasts for minutes: a connection of its own is cheap
                )
            except _FAILURES as error:
                unreachable = self._unreachable(f"{self.server} does not answer", error)
                self.presence.missed(str(unreachable), refused=costs_nothing(error), asked=began)
                raise unreachable from error
            except ValueError as error:
                raise UnreachableError(f"{self.server} cannot be asked: {_what(error)}") from error
            request.status = response.status
        if self.presence.answered():
            client.give_up(begun_before=began)  # what was asked of the server that has gone
        self.peers.saw(response.transport)
        if response.ok:
            return response
        try:
            text = await _read(response, LONGEST_REFUSAL)
        except _FAILURES as error:
            raise self._unreachable(f"the answer from {self.server} was cut short", error) from error
        self._rejected = response.status == 401
        raise ApiError.from_status(text, response.status, response.headers.get("retry-after"))

    def _unreachable(self, what: str, error: BaseException) -> UnreachableError:
        """The error of a connection that failed. What is kept leads to where it did, perhaps to nobody, and is left."""
        if self._client is not None:
            self._client.leave_idle()
        return UnreachableError(f"{what}: {_what(error)}")

    async def _session(self) -> tuple[HttpClient, dict[str, str]]:
        """The session to use and the headers that authenticate, both up to date.

        A changed certificate needs a new session. The old one is closed at once, as in client-go, so that no request
        continues with credentials that were replaced.
        """
        async with self._renewing:
            await self._credentials.refresh(rejected=self._rejected)
            self._rejected = False
            configuration = self._credentials.configuration
            tls = _tls_settings(configuration)
            if self._client is None or tls != self._tls:
                await self.close()
                self._client = _new_client(configuration)
                self._tls = tls
            headers = {"Accept": "application/json", "User-Agent": f"kroute/{__version__}"}
            return self._client, headers | await self._credentials.headers()


def _new_client(configuration: Any) -> HttpClient:
    try:
        tls = context_for(configuration) if str(configuration.host).startswith("https:") else None
    except OSError as error:  # ssl.SSLError is an OSError
        files = [file for file in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file) if file]
        raise ConfigurationError(f"certificates {', '.join(files)} cannot be used: {_what(error)}") from error
    try:
        return HttpClient(
            configuration.host,
            tls,
            server_name=configuration.tls_server_name,
            proxy=configuration.proxy,
            proxy_headers=configuration.proxy_headers,
        )
    except ValueError as error:
        raise ConfigurationError(f"{configuration.host} cannot be asked: {_what(error)}") from error


async def _read(response: Answer, longest: int) -> bytes:
    """The body of an answer. Raises AnswerTooLongError if it has more than `longest` bytes."""
    body = bytearray()
    try:
        while piece := await response.read():
            body += piece
            if len(body) > longest:
                raise AnswerTooLongError(
                    f"the answer from {response.url} has more than {longest >> 20} MiB: it is not read"
                )
    finally:
        response.close()
    return bytes(body)


def _tls_settings(configuration: Any) -> tuple[Any, ...]:
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return (
        *(fingerprint(file) for file in files),
        *files,
        configuration.host,
        configuration.verify_ssl,
        configuration.tls_server_name,
        configuration.proxy,
    )


def _what(error: BaseException) -> str:
    words, next_step = in_words(error), exhaustion(error)
    return f"{words}; {next_step}" if next_step else words
