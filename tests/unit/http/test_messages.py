"""What the server takes for a request, and what it writes."""

import re
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kroute.http.messages import LONGEST_HEAD, MalformedError, Request, Response, ServerExchange, text
from kroute.model.addresses import Family

PORT = 10256
PIECES = st.sampled_from(
    [
        b"GET",
        b"HEAD / ",
        b"CONNECT / ",
        b" ",
        b"/",
        b"?a=%zz",
        b"HTTP/1.1",
        b"\r\n",
        b"\n",
        b"\r",
        b":",
        b"Host",
        b"http://[",
        b"\0",
        b"\xff",
        b"*",
    ]
)


def request(*lines: str) -> Request:
    asked = ServerExchange(PORT, Family.IPV4).receive("\r\n".join([*lines, "", ""]).encode("latin-1"))
    assert asked is not None
    return asked


def answer(response: Response, method: str = "GET") -> bytes:
    exchange = ServerExchange(PORT, Family.IPV4)
    assert exchange.receive(f"{method} / HTTP/1.0\r\n\r\n".encode()) is not None
    return exchange.answer(response)


def test_a_request_has_its_path_decoded_and_the_first_value_of_each_parameter() -> None:
    asked = request("GET /a%20b/c?only=x%26y&only=z&empty= HTTP/1.1", "HOST:  node:1 \t", "Accept: a", "accept: b")
    assert (asked.method, asked.path, asked.port) == ("GET", "/a b/c", PORT)
    assert asked.query == {"only": "x&y", "empty": ""}
    assert asked.headers == {"host": "node:1", "accept": "a, b"}


@pytest.mark.parametrize(
    ("target", "path"),
    [("http://node:10256/healthz?a=b", "/healthz"), ("http://node", ""), ("*", "*"), ("//a/b", "//a/b")],
)
def test_a_target_may_have_other_forms(target: str, path: str) -> None:
    assert request(f"OPTIONS {target} HTTP/1.0").path == path


def test_a_request_that_arrives_in_pieces_is_taken_when_its_head_is_complete() -> None:
    whole = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
    exchange = ServerExchange(PORT, Family.IPV4)
    for at in range(len(whole) - 1):
        assert exchange.receive(whole[at : at + 1]) is None
    asked = exchange.receive(whole[-1:] + b"body\r\n\r\n")
    assert asked is not None
    assert asked.headers["content-length"] == "9"


def test_a_head_that_never_ends_is_refused_when_it_is_too_long() -> None:
    exchange = ServerExchange(PORT, Family.IPV4)
    assert exchange.receive(b"GET / HTTP/1.1\r\nA: ") is None
    assert exchange.receive(b"x" * (LONGEST_HEAD - 100)) is None
    with pytest.raises(MalformedError):
        exchange.receive(b"x" * 100)


@pytest.mark.parametrize(
    "received",
    [
        pytest.param(b"\x16\x03\x01", id="TLS, as soon as it begins"),
        pytest.param(b"GET /\r\n\r\n", id="HTTP 0.9"),
        pytest.param(b"GET / HTTP/2.0\r\n\r\n", id="another version"),
        pytest.param(b"HEAD / HTTP/1.2\r\nHost: a\r\n\r\n", id="another version, and no body is wanted"),
        pytest.param(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", id="a tunnel"),
        pytest.param(b"GET  / HTTP/1.1\r\n\r\n", id="two spaces"),
        pytest.param(b"G\0T / HTTP/1.1\r\n\r\n", id="a method that is no token"),
        pytest.param(b"GET /\xe4 HTTP/1.1\r\n\r\n", id="a target that is not encoded"),
        pytest.param(b"GET http://[ HTTP/1.1\r\n\r\n", id="a target that is no URL"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", id="a space before the colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nA: b\0c\r\n\r\n", id="a control character"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", id="two hosts"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"x" * LONGEST_HEAD, id="too long, and not complete"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"x" * LONGEST_HEAD + b"\r\n\r\n", id="too long"),
    ],
)
def test_what_is_no_request_is_refused_and_answered(received: bytes) -> None:
    exchange = ServerExchange(PORT, Family.IPV4)
    with pytest.raises(MalformedError):
        exchange.receive(received)
    assert exchange.answer(text(HTTPStatus.BAD_REQUEST, "no")).startswith(b"HTTP/1.1 400 ")


@given(st.lists(PIECES | st.binary(max_size=3), max_size=12).map(b"".join))
def test_whatever_arrives_is_a_request_or_is_refused(received: bytes) -> None:
    exchange = ServerExchange(PORT, Family.IPV4)
    try:
        asked = exchange.receive(received + b"\r\n\r\n")
    except MalformedError:
        asked = None
        assert exchange.answer(text(HTTPStatus.BAD_REQUEST, "no"))
    if asked is not None:
        assert isinstance(asked.query, dict)
        assert re.fullmatch(r"\S+", asked.method)
        assert exchange.answer(text(HTTPStatus.OK, "yes"))


def test_an_answer_says_its_length_its_time_and_that_it_is_the_last() -> None:
    head, body = answer(Response(HTTPStatus.OK, b"abc", "a/b", {"X": "y"})).split(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    assert (first, body) == ("HTTP/1.1 200 OK", b"abc")
    assert abs(parsedate_to_datetime(fields.pop("Date")).timestamp() - time.time()) < 60
    assert fields == {"X": "y", "Content-Type": "a/b", "Content-Length": "3", "Connection": "close"}


def test_an_answer_to_head_has_the_length_of_what_is_left_out() -> None:
    sent = answer(text(HTTPStatus.NOT_FOUND, "näh"), "HEAD")
    assert sent.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"Content-Length: 4\r\n" in sent
    assert sent.endswith(b"\r\n\r\n")
