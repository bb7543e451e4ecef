"""JSON as Go writes it."""

import json
from typing import Any

_HTML = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def encode(value: Any) -> bytes:
    """Compact, characters that matter in HTML escaped, ended by a newline."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_HTML).encode() + b"\n"


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
