"""Untrusted JSON: decoded, or split into parts if it cannot be decoded as a whole.

msgspec decodes nested values by recursion, also those that it skips and those that it leaves raw (`msgspec.Raw`). At
Python's recursion limit (1,000) it raises RecursionError, and so refuses what is nested too deep as soon as it comes to
that depth. The API server accepts and stores values nested 10,000 deep; to read past them took 0.3 s for each event of
an object of 0.3 MB. For invalid UTF-8 in a string msgspec raises UnicodeDecodeError. For a lone surrogate or an unknown
escape it raises DecodeError for the whole text, and for a date without a year ValueError. A well-formed Kubernetes
object is never affected, so all of this runs only after msgspec has refused a text: a list as a whole, in a thread; of
an object the first few KiB.

The text is read from bracket to bracket by regular expressions that always match, without recursion or backtracking.
The time is linear in the length of the text; a bracket costs half a microsecond.
"""

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

Value = TypeVar("Value")

_RUN = re.compile(rb'(?:[^"\[\]{}]*"[^"]*"){0,64}[^"\[\]{}]*([\[\]{}]?)')
"""Everything up to the next bracket outside of a string, with 64 strings at most: each repetition takes memory."""
_NAME = re.compile(rb'[\s,]*"([^"]*)"\s*:\s*')
_SCALAR = re.compile(rb'"[^"]*"?|[^\s,\[\]{}":]*')
_ELEMENT = re.compile(rb"[^\s,]")
_OPENING = b"[{"


def decoded(decode: Callable[[bytes], Value], text: bytes) -> Value:
    """The result of msgspec's `decode` for the text.

    Raises:
        msgspec.DecodeError: the text cannot be decoded. Nothing else is raised.
    """
    try:
        return decode(text)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deep") from None
    except msgspec.DecodeError:
        raise
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from error


def members(text: bytes) -> dict[bytes, slice]:
    """Where the members of an object have their values, by the names as written, as far as they can be told apart.

    The last value may be cut off by the text's end. Of two members with one name, the later one counts.
    """
    found: dict[bytes, slice] = {}
    shadow = _without_escapes(text)
    position = len(shadow) - len(shadow.lstrip())
    if shadow[position : position + 1] != b"{":
        return found
    position += 1
    while name := _NAME.match(shadow, position):
        position = _end_of_value(shadow, name.end())
        found[text[name.start(1) : name.end(1)]] = slice(name.end(), position)
        if position == name.end():
            break
    return found


def elements(text: bytes) -> Iterator[bytes]:
    """The elements of a list, as far as they can be told apart.

    Raises:
        msgspec.DecodeError: it is no list, or does not end.
    """
    if text[:1] != b"[":
        raise msgspec.DecodeError("it is no list")
    shadow, position = _without_escapes(text), 1
    while begin := _ELEMENT.search(shadow, position):
        if begin.group() == b"]":
            return
        position = _end_of_value(shadow, begin.start())
        if position == begin.start():
            break
        yield text[begin.start() : position]
    raise msgspec.DecodeError("the list does not end")


def _end_of_value(shadow: bytes, start: int) -> int:
    if shadow[start : start + 1] not in {b"[", b"{"}:
        scalar = _SCALAR.match(shadow, start)
        return scalar.end() if scalar else start
    level, position = 0, start
    while (run := _RUN.match(shadow, position)) and run.end() > position:
        position = run.end()
        if bracket := run.group(1):
            level += 1 if bracket in _OPENING else -1
            if level == 0:
                return position
    return len(shadow)  # a string or the value itself does not end


def _without_escapes(text: bytes) -> bytes:
    """A text of the same length in which every quotation mark begins or ends a string."""
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
