"""No name of an object makes a log line too long, or moves a terminal's cursor."""

import pytest

from kroute.logs import LONGEST_FIELD, bounded


def logged(value: object) -> object:
    return bounded(None, "info", {"event": "x", "field": value})["field"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("default/web", "default/web"),
        ("Grüße, 世界 \N{NO-BREAK SPACE}", "Grüße, 世界 \N{NO-BREAK SPACE}"),
        ("a\x1b[2Jb\r\n\tc\x9bd\x7f", r"a\x1b[2Jb\x0d\x0a\x09c\x9bd\x7f"),
        ("\u202eabc\u2028", r"\u202eabc\u2028"),
        ("\ud800", r"\ud800"),
        (["a\0", 5], [r"a\x00", 5]),
        (5, 5),
        (None, None),
    ],
    ids=ascii,
)
def test_control_characters_are_escaped(value: object, written: object) -> None:
    assert logged(value) == written


def test_a_field_is_cut_where_it_is_too_long() -> None:
    assert logged("x" * (LONGEST_FIELD + 5)) == "x" * LONGEST_FIELD + "… (5 more)"
    assert len(logged(["x"] * (LONGEST_FIELD * 2))) == LONGEST_FIELD
