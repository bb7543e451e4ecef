"""Requests to one server, over connections that are kept for the next request."""

import asyncio
import base64
import os
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import cast
from urllib.parse import quote, unquote, urlencode, urlsplit

import h11
import msgspec

from kroute.model.addresses import canonical
from kroute.watchers.kubernetes.http.connection import Answer, ClientExchange, HttpConnection, HttpError

CONNECT_TIMEOUT = 10.0
"""Seconds that a connection may take to open, TLS included, which client-go gives as long."""
KEPT_FOR = 15.0
"""Seconds for which a connection that is not used is kept."""
NEXT_ADDRESS_AFTER = 0.25
"""Seconds after which a second address of the server is tried beside the first (RFC 8305)."""
_PATH = "/:@!$&'()*+,;=~%"
_ERRNO = re.compile(r"\[Errno (\d+)\] ([^(,]*)")


class Proxy(msgspec.Struct, frozen=True):
    """Where a proxy listens, whether by TLS, and the headers that it gets."""

    host: str
    port: int
    is_tls: bool
    headers: tuple[tuple[str, str], ...]


def proxy_to(url: str, configured: str | None) -> Proxy | None:
    """The proxy for requests to `url`, or None. The variables are HTTPS_PROXY, HTTP_PROXY and NO_PROXY.

    What the variables mean is as in Go, and so in kube-proxy and kubectl (golang.org/x/net/http/httpproxy).

    Raises:
        ValueError: its own URL cannot be used.
    """
    found = configured or _of_environment(url)
    if not found:
        return None
    parts = urlsplit(found if "://" in found else f"http://{found}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"the proxy {parts.scheme}://{parts.hostname or ''} must begin with http:// or https://")
    is_tls = parts.scheme == "https"
    headers = (("Proxy-Authorization", basic(parts.username, parts.password)),) if parts.username else ()
    return Proxy(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, headers)


def basic(username: str | None, password: str | None) -> str:
    """The value of a header that authenticates by a name and a password, both as a URL has them (RFC 7617)."""
    secret = f"{unquote(username or '')}:{unquote(password or '')}"
    return f"Basic {base64.b64encode(secret.encode()).decode()}"


def _of_environment(url: str) -> str | None:
    if not any(name.lower().endswith("_proxy") and value for name, value in os.environ.items()):
        return None
    import urllib.request as library  # noqa: PLC0415  1 MiB for a few lines

    parts, proxies = urlsplit(url), library.getproxies_environment()
    if library.proxy_bypass_environment(parts.netloc.rpartition("@")[2], proxies):  # type: ignore[attr-defined]
        return None
    return None if _is_left_out(parts.hostname or "", proxies.get("no", "")) else proxies.get(parts.scheme)


def _is_left_out(host: str, left_out: str) -> bool:
    """Whether Go asks the host without a proxy by a rule that urllib lacks: loopback, networks, `*.` before a name."""
    entries = [entry.strip().lower() for entry in left_out.split(",")]
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or any(entry.startswith("*.") and host.endswith(entry[1:]) for entry in entries)
    return address.is_loopback or any(address in network for network in _networks(entries))


def _networks(entries: Iterable[str]) -> Iterator[IPv4Network | IPv6Network]:
    for entry in entries:
        with suppress(ValueError):
            yield ip_network(entry, strict=False)


class _Attempt:
    """One attempt at a request, until the head of its answer has come."""

    limit: asyncio.Timeout

    def __init__(self, request: h11.Request, body: bytes, began: float) -> None:
        self.request = request
        self.body = body
        self.began = began
        self.is_kept = False
        self.exchange: ClientExchange | None = None
        self._is_given_up = False

    def give_up(self) -> None:
        """Let it end at once, unless it is a write."""
        if self.request.method == b"GET" and self.end_now():
            self._is_given_up = True

    def end_now(self) -> bool:
        """Let it fail with a TimeoutError. Returns whether it had time left."""
        if self.limit.expired():
            return False
        self.limit.reschedule(asyncio.get_running_loop().time())
        return True

    def end(self) -> None:
        """End its connection."""
        if self.exchange is not None:
            self.exchange.connection.transport.abort()

    def is_worth_another(self, error: BaseException) -> bool:
        """Whether the connection is to blame for this end of the attempt, and the server gets the request once."""
        if self.request.method != b"GET":
            return False
        if self._is_given_up:
            return isinstance(error, TimeoutError)
        # A server may close a connection that it has kept, in the moment in which the request is sent.
        is_late = self.is_kept and self.exchange is not None and not self.exchange.has_begun
        return is_late and isinstance(error, (HttpError, ConnectionError, ssl.SSLError))


class HttpClient:
    """A client of the server at `url`. `tls` is for https; `server_name` is what its certificate has to name.

    Redirects are not followed: an API server sends none, and they would take the credentials elsewhere.
    """

    def __init__(
        self, url: str, tls: ssl.SSLContext | None, *, server_name: str | None = None, proxy: str | None = None
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (80 if tls is None else 443)
        self._tls = tls
        self._server_name = server_name or self._host
        self._prefix = parts.path.rstrip("/")
        authority = parts.netloc.rpartition("@")[2]
        self._authority = authority if authority.isascii() else authority.encode("idna").decode()
        self.url = f"{parts.scheme}://{self._authority}{self._prefix}"  # without a name and password
        self._headers = {"Authorization": basic(parts.username, parts.password)} if parts.username else {}
        self._proxy = proxy_to(url, proxy)
        self._open: set[HttpConnection] = set()
        self._idle: list[tuple[float, HttpConnection]] = []
        self._unanswered: set[_Attempt] = set()
        self._is_closed = False

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        read_timeout: float | None,
        head_timeout: float | None = None,
        on_kept: bool = True,
    ) -> Answer:
        """Send a request and return its answer when the head has come.

        `read_timeout`: seconds without a byte. `head_timeout`: seconds to the end of the head, the connection included.
        `on_kept`: a connection that was kept will do, of which nobody knows whether the server still listens to it.

        Raises HttpError, OSError (TimeoutError, ssl.SSLError).
        """
        target = self._prefix + quote(path, safe=_PATH) + (f"?{urlencode(query)}" if query else "")
        head: dict[str, str] = {"Host": self._authority, "Accept-Encoding": "gzip", **headers}
        if not any(name.lower() == "authorization" for name in headers):  # a token goes before what the URL names
            head |= self._headers
        if body or method in {"POST", "PUT", "PATCH"}:
            head["Content-Length"] = str(len(body))
        if self._proxy is not None and self._tls is None:
            target = f"http://{self._authority}{target}"
            head |= dict(self._proxy.headers)
        try:
            request = h11.Request(method=method, target=target, headers=list(head.items()))
        except h11.LocalProtocolError as error:
            raise HttpError(str(error)) from error
        while True:
            attempt = _Attempt(request, body, asyncio.get_running_loop().time())
            self._unanswered.add(attempt)
            try:
                async with asyncio.timeout(head_timeout) as attempt.limit:
                    exchange = await self._ask(attempt, read_timeout, on_kept=on_kept)
                    return Answer(exchange, await exchange.head(), f"{self._authority}{target}", self._keep)
            except BaseException as error:
                attempt.end()
                if self._is_closed or not attempt.is_worth_another(error):
                    if isinstance(error, TimeoutError) and not str(error) and head_timeout is not None:
                        raise TimeoutError(f"nothing whole came within {head_timeout:g} s") from error
                    raise
            finally:
                self._unanswered.discard(attempt)

    def give_up(self, begun_before: float) -> None:
        """Ask again, on other connections, what was asked before this moment of the loop's clock and has no answer.

        That holds for GET alone: a write may have been made.
        """
        for attempt in self._unanswered:
            if attempt.began < begun_before:
                attempt.give_up()

    def leave_idle(self) -> None:
        """Close the connections that are kept."""
        while self._idle:
            self._idle.pop()[1].transport.abort()

    async def close(self) -> None:
        """End every request."""
        self._is_closed = True
        self._idle.clear()
        for attempt in self._unanswered:
            if attempt.exchange is None:  # it connects
                attempt.end_now()
        for connection in list(self._open):
            connection.transport.abort()
        await asyncio.sleep(0)  # for the ends of the connections

    def _keep(self, connection: HttpConnection) -> None:
        if not self._is_closed:
            self._idle.append((asyncio.get_running_loop().time(), connection))

    async def _ask(self, attempt: "_Attempt", read_timeout: float | None, *, on_kept: bool) -> ClientExchange:
        self._leave_old()
        connection = self._kept() if on_kept else None
        attempt.is_kept = connection is not None
        if connection is None:
            connection = await self._new()
        attempt.exchange = exchange = ClientExchange(connection, read_timeout)
        exchange.send(attempt.request, attempt.body)
        return exchange

    def _kept(self) -> HttpConnection | None:
        """A connection that was kept."""
        while self._idle:
            connection = self._idle.pop()[1]
            if connection.is_quiet:
                return connection
            connection.transport.abort()
        return None

    def _leave_old(self) -> None:
        now, idle = asyncio.get_running_loop().time(), self._idle
        while idle and now - idle[0][0] > KEPT_FOR:
            idle.pop(0)[1].transport.abort()

    async def _new(self) -> HttpConnection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await self._connect()
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {CONNECT_TIMEOUT:g} s") from error

    async def _connect(self) -> HttpConnection:
        if self._proxy is None:
            return await self._connect_to(self._host, self._port, self._tls, self._server_name)
        proxy, proxy_tls = self._proxy, ssl.create_default_context() if self._proxy.is_tls else None
        connection = await self._connect_to(proxy.host, proxy.port, proxy_tls, proxy.host)
        if self._tls is not None:
            try:
                await self._tunnel(connection, proxy, self._tls)
            except BaseException:
                connection.transport.abort()
                raise
        return connection

    async def _connect_to(self, host: str, port: int, tls: ssl.SSLContext | None, name: str) -> HttpConnection:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpConnection(self._open),
                host,
                port,
                ssl=tls,
                server_hostname=_for_ssl(name) if tls is not None else None,
                # asyncio loses the socket of a race that is cancelled in the moment in which it is won
                happy_eyeballs_delay=NEXT_ADDRESS_AFTER if canonical(host) is None else None,
            )
        except OSError as error:
            if (one := _of_all_addresses(error)) is not None:
                raise one from error
            raise
        if self._is_closed:
            connection.transport.abort()
        return connection

    async def _tunnel(self, connection: HttpConnection, proxy: Proxy, tls: ssl.SSLContext) -> None:
        """Have the proxy connect to the server, and speak TLS with that (RFC 9110, 9.3.6)."""
        authority = f"[{self._host}]" if ":" in self._host else self._host
        target = f"{authority}:{self._port}"
        headers = {"Host": target, **dict(proxy.headers)}
        exchange = ClientExchange(connection, None)
        exchange.send(h11.Request(method="CONNECT", target=target, headers=list(headers.items())), b"")
        head = await exchange.head()
        if head.status_code != 200:
            raise HttpError(f"the proxy {proxy.host} refuses the way to {target}: {head.status_code}")
        upgraded = await asyncio.get_running_loop().start_tls(
            connection.transport, connection, tls, server_hostname=_for_ssl(self._server_name)
        )
        if upgraded is None:
            raise HttpError(f"the proxy {proxy.host} closed the connection")
        connection.continue_on(upgraded)


def _for_ssl(name: str) -> str:
    """A server's name as `ssl` takes it: as bytes, unless a letter of it has to be encoded.

    For a str, `ssl` loads the codec of internationalized names in any case, and with it 1 MiB of Unicode's tables.
    """
    return cast("str", name.encode()) if name.isascii() else name


def _of_all_addresses(error: OSError) -> OSError | None:
    """What each of several addresses has failed with; None if that differs, or there is one. asyncio has no number."""
    found = set(_ERRNO.findall(str(error))) if error.errno is None else set()
    if len({number for number, _ in found}) != 1:
        return None
    number, words = found.pop()
    return OSError(int(number), words.strip())
