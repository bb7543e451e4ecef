"""Text of others on a terminal or in a log. A module of its own: commands that log nothing do not load structlog."""

import re

_UNPRINTABLE = "[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
"""Control characters, which a terminal obeys; characters that change the writing direction; lone surrogates.
Compiled for the first text that has one: hardly any has."""


def printable(text: str) -> str:
    """The text with each character that a terminal would obey written as an escape sequence of Python."""
    return text if text.isprintable() else re.sub(_UNPRINTABLE, _escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
