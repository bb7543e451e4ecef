"""JSON as Go writes it."""

import json
from dataclasses import dataclass
from typing import Any

_HTML = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


@dataclass(frozen=True)
class Verbatim:
    """A value that is given out as it is written here: what Python's encoder cannot or will not write.

    That is what is nested 1,000 deep and more, which the API server stores, and what is no JSON at all.
    """

    text: bytes


def nested(levels: int) -> Verbatim:
    """`managedFields` of so many levels, as whoever writes an object may set them."""
    fields = b'{"f:a":' * levels + b"{}" + b"}" * levels
    return Verbatim(b'[{"manager":"m","operation":"Update","fieldsType":"FieldsV1","fieldsV1":%b}]' % fields)


def encode(value: Any) -> bytes:
    """Compact, characters that matter in HTML escaped, ended by a newline."""
    verbatim: list[bytes] = []

    def mark(item: object) -> str:
        if not isinstance(item, Verbatim):
            raise TypeError(item)
        verbatim.append(item.text)
        return f"\0{len(verbatim) - 1}\0"

    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=mark).translate(_HTML).encode()
    for index, piece in enumerate(verbatim):
        text = text.replace(b'"\\u0000%d\\u0000"' % index, piece)
    return text + b"\n"


class EventEncoder:
    """Encodes events, and keeps the bytes of objects, which never change: every watcher gets the same."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, bytes]] = {}

    def encode(self, event: dict[str, Any]) -> bytes:
        """The line of a watch: what `encode` makes of the event."""
        return b'{"type":"%b","object":%b}\n' % (event["type"].encode(), self.keep(event["object"]))

    def keep(self, item: Any) -> bytes:
        """The bytes of an object, from now on at hand. The object is kept too, so that its id stays its own."""
        kept = self._kept.get(id(item))
        if kept is None:
            kept = self._kept[id(item)] = (item, encode(item)[:-1])
        return kept[1]

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
