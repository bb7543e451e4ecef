"""JSON that msgspec refuses is one kind of error, or is split into its elements."""

from typing import Any

import msgspec
import pytest

from kroute.watchers.json_text import decoded, elements, members
from tests.unit.watchers import json_steps

LIMIT_OF_THE_API_SERVER = 10_000

any_json = msgspec.json.Decoder().decode


def lists(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize("levels", [LIMIT_OF_THE_API_SERVER, 50_000])
def test_what_is_nested_too_deep_is_refused(levels: int) -> None:
    with pytest.raises(msgspec.DecodeError, match="nested too deep"):
        decoded(any_json, b'{"name":"a","deep":%b,"last":[1,{"b":2}]}' % lists(levels))


def test_nothing_is_left_out_where_msgspec_can_read_it() -> None:
    text = b'{"deep":%b}' % lists(500)
    assert decoded(any_json, text) == any_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b'"\xff"',
        b'"\\ud800"',
        b'"\xed\xa0\x80"',
        b"9" * 10_000,
        b"1e999",
        b"NaN",
        b"[" * 100_000,
        b"[1" * 5_000,
        b"[[]," * 60_000,
        b"",
    ],
    ids=lambda text: repr(text[:10]),
)
def test_whatever_cannot_be_read_is_one_kind_of_error(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoded(any_json, text)


def test_a_date_without_a_year_is_unreadable_too() -> None:
    from datetime import datetime

    with pytest.raises(msgspec.DecodeError):
        decoded(msgspec.json.Decoder(datetime).decode, b'"0000-01-01T00:00:00Z"')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b' {"a": 1, "b" :[2,{"c":3}],"d":"\\"e,"}', [(b"a", b"1"), (b"b", b'[2,{"c":3}]'), (b"d", b'"\\"e,"')]),
        (b'{"a":"\\ud800\xff","b":01x}', [(b"a", b'"\\ud800\xff"'), (b"b", b"01x")]),
        (b'{"a":{"b":1', [(b"a", b'{"b":1')]),
        (b'{"a":"b', [(b"a", b'"b')]),
        (b'{"a":', [(b"a", b"")]),
        (b"[1]", []),
        (b"", []),
    ],
)
def test_an_object_is_taken_apart(text: bytes, found: list[Any]) -> None:
    assert [(name, text[value]) for name, value in members(text).items()] == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"[]", []),
        (b'[ {"a":[1]} ,\n{"b":"]"}]', [b'{"a":[1]}', b'{"b":"]"}']),
        (b'[5,{"a":1},null,"x",[2]]', [b"5", b'{"a":1}', b"null", b'"x"', b"[2]"]),
    ],
)
def test_a_list_is_taken_apart(text: bytes, found: list[bytes]) -> None:
    assert list(elements(text)) == found


@pytest.mark.parametrize("text", [b'[{"a":1}', b'[{"a":"}]', b"{}", b""])
def test_a_list_without_an_end_is_unreadable(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        list(elements(text))


@pytest.mark.parametrize(
    "piece", [b'"', b'\\"', b"\\", b'"\\', b"{", b"}", b"[]", b'"",', b'"a":', b'{"a":"', b"\xff", b" "], ids=repr
)
def test_the_work_grows_with_the_text_and_no_faster(piece: bytes) -> None:
    text = b'{"a":[' + piece * 20_000
    with json_steps.counted() as steps:
        members(text)
    assert steps.taken <= 2 * len(text) + 10
