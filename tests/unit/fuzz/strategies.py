"""Hostile input: JSON with balanced brackets and otherwise arbitrary content, and valid bytes that were damaged.

Every strategy makes bytes. Objects are templates of what the API server sends, in which some values are replaced.
"""

import copy
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.apiserver.encoding import Verbatim, encode
from tests.examples import examples

fuzzed = examples(
    25,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
"""Examples of each of about fifty properties."""
if asked_for := os.environ.get("KROUTE_FUZZ_EXAMPLES"):  # `make fuzz` sets it
    fuzzed = settings(fuzzed, max_examples=int(asked_for))

DEPTHS = (2, 30, 64, 400, 999, 1_001, 9_990)
"""Levels of nesting around every limit: kroute's, Python's and the API server's."""

ODD_NUMBERS = (
    *(b"0", b"-0", b"-1", b"65536", b"2147483648", b"4294967376", b"9223372036854775808", b"1e2", b"1.0", b"1e999"),
    *(b"-1e-999", b"9" * 400, b"9" * 10_000, b"01", b"NaN", b"Infinity", b"-", b"1e", b"0x10", b"+1"),
)
ODD_STRINGS = (
    *(b"", b"\\ud800", b"\\udfff\\ud800", b"\\ud800\\udc00", b"\\u0000", b"\\u001b[2J", b"\\q", b"\\u12", b"\\u202e"),
    *(b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00", b"\x1b[31m", b"{[", b"]}", b"\\\\", b'\\"'),
    *(b"a" * 300, b"10.96.0.1", b"None", b"::ffff:10.0.0.1", b"1.2.3.4/33", b"\xe2\x80\xae", b"../../etc/passwd"),
)


def _nested(opening: bytes, closing: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(DEPTHS).map(lambda levels: opening * levels + b"1" + closing * levels)


_characters = st.binary(max_size=12).map(lambda it: it.translate(None, b'"\\\n'))
_strings = st.one_of(st.sampled_from(ODD_STRINGS), _characters).map(lambda it: b'"%b"' % it)
_scalars = st.one_of(st.sampled_from((b"null", b"true", b"false", b"nil")), st.sampled_from(ODD_NUMBERS), _strings)


def _containers(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    members = st.tuples(_strings, values).map(b":".join)
    return st.one_of(
        st.lists(values, max_size=4).map(lambda it: b"[%b]" % b",".join(it)),
        st.lists(members, max_size=4).map(lambda it: b"{%b}" % b",".join(it)),
    )


hostile_json = st.one_of(
    st.recursive(_scalars, _containers, max_leaves=12), _nested(b"[", b"]"), _nested(b'{"f:a":', b"}")
)
"""A JSON value on one line. Brackets and quotation marks are balanced; everything else may be wrong."""


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, child in items for found in ((*path, name), *_paths(child, (*path, name)))]


@st.composite
def spoilt(draw: st.DrawFn, template: dict[str, Any]) -> bytes:
    """An object in which some values are replaced by hostile ones, missing, or repeated."""
    item = copy.deepcopy(template)
    for _ in range(draw(st.integers(1, 3))):
        *above, last = draw(st.sampled_from(_paths(item)))
        parent = item
        for name in above:
            parent = parent[name]
        match draw(st.sampled_from(("replace", "remove", "add"))):
            case "replace":
                parent[last] = Verbatim(draw(hostile_json))
            case "remove":
                del parent[last]
            case "add" if isinstance(parent, dict):
                parent[draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=3))] = Verbatim(
                    draw(hostile_json)
                )
        if not _paths(item):
            break
    text = encode(item).rstrip(b"\n")
    if draw(st.booleans()):
        twice = draw(st.sampled_from((b"metadata", b"spec", b"kind", b"addressType", b"status")))
        text = text[:-1] + b',"%b":%b}' % (twice, draw(hostile_json))
    return text


@st.composite
def damaged(draw: st.DrawFn, *valid: bytes) -> bytes:
    """Valid bytes that are cut, repeated, exchanged or overwritten in places; or arbitrary bytes."""
    text = draw(st.sampled_from(valid))
    for _ in range(draw(st.integers(1, 4))):
        begin, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        match draw(st.sampled_from(("cut off", "cut out", "repeat", "overwrite", "insert", "byte", "length"))):
            case "cut off":
                text = text[:end]
            case "cut out":
                text = text[:begin] + text[end:]
            case "repeat":
                text = text[:end] + text[begin:end] + text[end:]
            case "overwrite":
                text = text[:begin] + draw(st.binary(max_size=8)) + text[end:]
            case "insert":
                text = text[:begin] + draw(st.one_of(hostile_json, st.binary(max_size=8))) + text[begin:]
            case "byte" if begin < len(text):
                text = text[:begin] + bytes((draw(st.integers(0, 255)),)) + text[begin + 1 :]
            case "length":  # the length of a netlink attribute or message
                at = begin & ~3
                number = draw(st.sampled_from((0, 1, 3, 4, 5, 0x7FFF, 0xFFFF)))
                text = text[:at] + number.to_bytes(2, "little") + text[at + 2 :]
    return text
