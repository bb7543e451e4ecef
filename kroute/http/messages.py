"""One request of HTTP/1 and its answer, by h11, as far as a server needs that ignores bodies of requests."""

import time
from collections.abc import Mapping
from functools import cached_property
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import msgspec

from kroute.model.addresses import Family

LONGEST_HEAD = 16 << 10
"""Bytes of a request line with all its fields. Servers take 8 KiB and more; what asks here sends some hundred."""


class MalformedError(ValueError):
    """What was received is no request of HTTP/1."""


class Request:
    """The head of a request that arrived at a port of this host over `family`. Names of fields are in lower case."""

    def __init__(self, method: str, target: str, headers: Mapping[str, str], port: int, family: Family) -> None:
        self.method = method
        self.headers = headers
        self.port = port
        self.family = family
        path, _, self._query = target.partition("?")
        if not target.startswith("/"):  # a proxy's form, with scheme and host; or `*`, or HOST:PORT
            parts = urlsplit(target)
            path, self._query = parts.path, parts.query
        self.path = unquote(path)

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The first value of each parameter."""
        return dict(reversed(parse_qsl(self._query, keep_blank_values=True)))


class Response(msgspec.Struct):
    """An answer; its headers are complete but for those that `ServerExchange.answer` adds."""

    status: HTTPStatus = HTTPStatus.OK
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        of_body = {"Content-Type": self.content_type} if self.content_type else {}
        self.headers = {**self.headers, **of_body}


def text(status: HTTPStatus, sentence: str) -> Response:
    """An answer for people."""
    return Response(status, sentence.encode(), "text/plain; charset=utf-8")


class ServerExchange:
    """The only request of a connection that was accepted at `port` over `family`, and its answer."""

    def __init__(self, port: int, family: Family) -> None:
        self._http = h11.Connection(h11.SERVER)
        self._port = port
        self._family = family
        self._room = LONGEST_HEAD
        self._is_head = False

    def receive(self, data: bytes) -> Request | None:
        """The request, once its head is complete.

        Raises:
            MalformedError: it will not become one, or is too long.
        """
        data = data[: self._room]  # what follows is too much of a head, or a body
        self._room -= len(data)
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return self._request(event)
        except (h11.RemoteProtocolError, ValueError) as error:  # ValueError: a target that is no URL
            raise MalformedError from error
        if not self._room:
            raise MalformedError
        return None

    def answer(self, response: Response) -> bytes:
        """The bytes to send. The connection is closed after them."""
        length = ("Content-Length", str(len(response.body)))
        date = ("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()))  # RFC 9110, 5.6.7
        headers = [*response.headers.items(), length, date, ("Connection", "close")]
        events: list[h11.Event] = [
            h11.Response(status_code=response.status, headers=headers, reason=response.status.phrase.encode())
        ]
        if response.body and not self._is_head:
            events.append(h11.Data(data=response.body))
        return b"".join(self._http.send(event) or b"" for event in [*events, h11.EndOfMessage()])

    def _request(self, event: h11.Request) -> Request:
        method = event.method.decode("ascii")
        self._is_head = method == "HEAD"
        if method == "CONNECT" or event.http_version not in {b"1.0", b"1.1"}:
            raise MalformedError  # CONNECT asks for a tunnel (RFC 9110, 9.3.6): an answer with 200 would promise one
        fields: dict[str, str] = {}
        for raw_name, raw_value in event.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            fields[name] = f"{fields[name]}, {value}" if name in fields else value
        return Request(method, event.target.decode("ascii"), fields, self._port, self._family)
