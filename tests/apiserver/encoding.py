"""JSON as Go writes it."""

import json
from typing import Any

_HTML = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def encode(value: Any) -> bytes:
    """Compact, characters that matter in HTML escaped, ended by a newline."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_HTML).encode() + b"\n"
