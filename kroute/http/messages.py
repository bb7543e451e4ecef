"""Requests and responses of HTTP/1.1 and 1.0 (RFC 9112), as far as a server needs that ignores bodies of requests."""

import re
import time
from collections.abc import Mapping
from functools import cached_property
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

LONGEST_HEAD = 16 << 10
"""Bytes of a request line with all its fields. Servers take 8 KiB and more; what asks here sends some hundred."""

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) (HTTP/1\.[01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\0-\x08\n-\x1f\x7f]*)")

_CLIENT_HELLO = b"\x16\x03"
"""What a client of TLS begins with. It need not wait to hear that this is none of it."""

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class MalformedError(ValueError):
    """What was received is no request of HTTP/1."""


class Request:
    """The head of a request that arrived at a port of this host. Names of fields are in lower case."""

    def __init__(self, method: str, target: str, version: str, headers: Mapping[str, str], port: int) -> None:
        self.method = method
        self.version = version
        self.headers = headers
        self.port = port
        path, _, self._query = target.partition("?")
        if not target.startswith("/"):  # a proxy's form, with scheme and host; or `*`, or HOST:PORT
            parts = urlsplit(target)
            path, self._query = parts.path, parts.query
        self.path = unquote(path)

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The first value of each parameter."""
        return dict(reversed(parse_qsl(self._query, keep_blank_values=True)))


class Response:
    """An answer; its headers are complete but for those that `encode` adds."""

    def __init__(
        self,
        status: HTTPStatus = HTTPStatus.OK,
        body: bytes = b"",
        content_type: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.headers = dict(headers or {})
        if content_type:
            self.headers["Content-Type"] = content_type

    def encode(self, version: str, *, with_body: bool) -> bytes:
        """The bytes to send. The connection is closed after them."""
        fields = {**self.headers, "Content-Length": len(self.body), "Date": _date(), "Connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        head = f"{version} {self.status.value} {self.status.phrase}\r\n{lines}\r\n".encode("latin-1")
        return head + self.body if with_body else head


def text(status: HTTPStatus, sentence: str) -> Response:
    """An answer for people."""
    return Response(status, sentence.encode(), "text/plain; charset=utf-8")


def parse(received: bytes | bytearray, port: int) -> Request | None:
    """The request that was received so far at `port`; None while its head is not complete.

    Raises:
        MalformedError: it will not become one, or is too long.
    """
    if received.startswith(_CLIENT_HELLO):
        raise MalformedError
    begin = 2 if received.startswith(b"\r\n") else 0  # RFC 9112, 2.2: an empty line may come before a request
    end = received.find(b"\r\n\r\n", begin)
    if len(received if end < 0 else received[:end]) > LONGEST_HEAD:
        raise MalformedError
    if end < 0:
        return None
    first, *lines = bytes(received[begin:end]).split(b"\r\n")
    if (match := _REQUEST_LINE.fullmatch(first)) is None:
        raise MalformedError
    method, target, version = (it.decode("ascii") for it in match.groups())
    try:
        return Request(method, target, version, _fields(lines), port)
    except ValueError as error:  # a target that is no URL
        raise MalformedError from error


def _fields(lines: list[bytes]) -> dict[str, str]:
    """The fields by name. One that is repeated has its values in a list, but there is only one Host (RFC 9112, 3.2)."""
    fields: dict[str, str] = {}
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise MalformedError
        name, value = match[1].decode("ascii").lower(), match[2].decode("latin-1").rstrip(" \t")
        if name in fields:
            if name == "host":
                raise MalformedError
            value = f"{fields[name]}, {value}"
        fields[name] = value
    return fields


def _date() -> str:
    """The time as RFC 9110, 5.6.7 writes it."""
    now = time.gmtime()
    return (
        f"{_DAYS[now.tm_wday]}, {now.tm_mday:02} {_MONTHS[now.tm_mon - 1]} {now.tm_year} "
        f"{now.tm_hour:02}:{now.tm_min:02}:{now.tm_sec:02} GMT"
    )
