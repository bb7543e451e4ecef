"""Requests to the Kubernetes API: bytes out, typed errors.

kubernetes-asyncio makes the TLS session and the authentication; what it would decode is left as it came, for msgspec.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Self

import aiohttp

from kroute import __version__
from kroute.settings import Settings
from kroute.watchers.kubernetes.client_package import RESTClientObject
from kroute.watchers.kubernetes.credentials import Credentials, fingerprint, load_credentials
from kroute.watchers.kubernetes.errors import AnswerTooLongError, ApiError, ConfigurationError, UnreachableError
from kroute.watchers.kubernetes.lines import LineBuffer

CONNECT_TIMEOUT = 30.0
"""Seconds until a connection must be there."""
READ_TIMEOUT = 60.0
"""Seconds for which the answer to an ordinary request may be silent; the API server gives up after as many."""

READ_AHEAD = 64 << 10
"""Bytes of an answer after which the next ones are left to the socket (twice as many at most are here). A line may be
longer: `Api.stream` puts it together. kubernetes-asyncio's 2 MiB are for those who read line by line; with them a large
list is here in pieces of 4 MiB, three times over, which costs 15 MiB and more page faults than all that is kept."""

LONGEST_ANSWER = 128 << 20
"""Bytes of a list, decompressed: some 80,000 Services. What is longer is asked for in pages. It is held twice."""
LONGEST_REFUSAL = 1 << 20
"""Bytes of an answer that says no."""

Parameters = Mapping[str, str]


class Api:
    """The API server of one cluster. Open it with `open`, and `close` it, or use it as an async context manager."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._rejected = False
        self._tls: tuple[Any, ...] = ()
        self._rest: Any = None
        self._renewing = asyncio.Lock()

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        """Find the server and the credentials; the first request connects.

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
        if self._rest is not None:
            await self._rest.close()
            self._rest = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    @property
    def server(self) -> str:
        return str(self._credentials.configuration.host)

    async def get(self, path: str, params: Parameters | None = None) -> bytes:
        """The body of an answer, decompressed.

        Raises:
            ApiError: the server said no, or (`UnreachableError`) did not answer to the end.
        """
        return await self._exchange("GET", path, params or {})

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        """POST an object into the collection at `path`. Raises as `get` does."""
        await self._exchange("POST", path, {}, body=body)

    async def review(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST a question (a `…Review`) to `path`; returns it with its answer. Raises as `get` does."""
        return await self._exchange("POST", path, {}, body=body)

    async def server_time(self) -> float:
        """The server's clock, in Unix seconds with a resolution of one second. Raises as `get` does.

        It is that of the header `Date` of its health check, which everybody may ask for.
        """
        response = await self._request("GET", "/readyz", {}, read_timeout=READ_TIMEOUT)
        response.close()
        try:
            return parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (KeyError, ValueError) as error:
            raise ApiError(0, "", f"the answer of {self.server} has no date: {error}") from error

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        """PUT the object at `path`, if it has the resourceVersion of `body`; returns it. Raises as `get` does."""
        return await self._exchange("PUT", path, {}, body=body)

    async def stream(self, path: str, params: Parameters) -> AsyncGenerator[Sequence[bytes], None]:
        """The lines of an answer, of any length, as many at a time as have arrived.

        Close the iterator to end the request (`contextlib.aclosing`). Raises as `get` does.
        """
        response = await self._request("GET", path, params, read_timeout=None)
        try:
            buffer = LineBuffer()
            async for piece in response.content.iter_any():
                if lines := buffer.take(piece):
                    yield lines
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"the stream from {self.server} broke: {_what(error)}") from error
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
    ) -> bytes:
        response = await self._request(method, path, params, read_timeout=READ_TIMEOUT, body=body)
        try:
            async with response:
                return await _read(response, LONGEST_ANSWER)
        except (aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"the answer from {self.server} was cut short: {_what(error)}") from error

    async def _request(
        self,
        method: str,
        path: str,
        params: Parameters,
        *,
        read_timeout: float | None,
        body: Mapping[str, Any] | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request; return when the answer's headers are there and say that it is good."""
        try:
            rest, headers = await self._session()
        except ConfigurationError as error:  # a rotation half done: the next try finds the other half
            raise UnreachableError(str(error)) from error
        try:
            response: aiohttp.ClientResponse = await rest.request(
                method,
                self.server + path,
                query_params=params,
                headers=headers,
                body=body,
                _preload_content=False,
                _request_timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT, sock_read=read_timeout),
            )
            if response.ok:
                return response
            async with response:
                text = await _read(response, LONGEST_REFUSAL)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: what cannot be sent
            raise UnreachableError(f"{self.server} does not answer: {_what(error)}") from error
        self._rejected = response.status == 401
        raise ApiError.from_status(text, response.status, response.headers.get("Retry-After"))

    async def _session(self) -> tuple[Any, dict[str, str]]:
        """The session to use and the headers that authenticate, both fresh.

        A changed certificate means a new session; the old one is closed at once, as client-go does, so that nothing
        goes on under credentials that were replaced.
        """
        async with self._renewing:
            await self._credentials.refresh(rejected=self._rejected)
            self._rejected = False
            configuration = self._credentials.configuration
            tls = _tls_settings(configuration)
            if self._rest is None or tls != self._tls:
                await self.close()
                self._rest = _new_session(configuration)
                self._tls = tls
            headers = {"Accept": "application/json", "User-Agent": f"kroute/{__version__}"}
            return self._rest, headers | await self._credentials.headers()


class _Session:
    """aiohttp's session, as far as kubernetes-asyncio uses it, which reads no further ahead than `READ_AHEAD`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(self, **arguments: Any) -> aiohttp.ClientResponse:
        return await self._session.request(**arguments, read_bufsize=READ_AHEAD)

    async def close(self) -> None:
        """End every request."""
        await self._session.close()


def _new_session(configuration: Any) -> Any:
    try:
        rest = RESTClientObject(configuration)
    except OSError as error:  # ssl.SSLError is one
        files = [file for file in (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file) if file]
        raise ConfigurationError(f"certificates {', '.join(files)} cannot be used: {_what(error)}") from error
    rest.pool_manager = _Session(rest.pool_manager)  # type: ignore[assignment]  # as far as it is used
    return rest


async def _read(response: aiohttp.ClientResponse, longest: int) -> bytes:
    """The body of an answer; AnswerTooLongError for a longer one."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > longest:
            raise AnswerTooLongError(
                f"the answer from {response.url} has more than {longest >> 20} MiB: it is not read"
            )
    return bytes(body)


def _tls_settings(configuration: Any) -> tuple[Any, ...]:
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return (
        *(fingerprint(file) for file in files),
        *files,
        configuration.verify_ssl,
        configuration.tls_server_name,
        configuration.proxy,
    )


def _what(error: BaseException) -> str:
    return str(error) or type(error).__name__
