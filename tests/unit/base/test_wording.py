"""Errors of the system and of libraries are said in words, without numbers and classes."""

import errno
import json
import urllib.error

import pytest

from kroute.base.wording import in_words, with_path


@pytest.mark.parametrize(
    ("error", "words", "with_its_path"),
    [
        (FileNotFoundError(errno.ENOENT, "x", "/a/b"), "No such file or directory", "/a/b: No such file or directory"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "Connection refused", "Connection refused"),
        (urllib.error.URLError(ConnectionRefusedError(errno.ECONNREFUSED, "x")), "Connection refused", None),
        (UnicodeDecodeError("utf-8", b"ab\xff", 2, 3, "x"), "byte 2 is not UTF-8 text", None),
        (OSError("several\n lines"), "several lines", None),
        (OSError(), "OSError", None),
        (TimeoutError(), "TimeoutError", None),
    ],
    ids=repr,
)
def test_an_error_in_words(error: BaseException, words: str, with_its_path: str | None) -> None:
    assert in_words(error) == words
    assert with_path(error) == (with_its_path or words)


def test_an_error_of_a_parser_stays_as_it_is() -> None:
    with pytest.raises(json.JSONDecodeError) as failure:
        json.loads("{")
    assert in_words(failure.value).startswith("Expecting property name")
