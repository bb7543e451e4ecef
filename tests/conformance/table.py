"""Which test covers which row, and the page that lists them."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.conformance.rows import ROWS, SECTIONS, Row

T = TypeVar("T", bound=Callable[..., Any])

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"

_HEAD = """# Conformance

The end-to-end tests of Kubernetes 1.36 for Services (`test/e2e/network`), row by row. Each that concerns a service
proxy is a test in `tests/conformance/`: packets between the pods, nodes and clients of a cluster in network namespaces,
in both address families. The number behind a file's name is the line of the test there. `make conformance` runs the
tests and writes this page from their results.
"""


class Result(NamedTuple):
    """A test's name and file, and whether it passed."""

    test: str
    passed: bool


Results = Mapping[str, list[Result]]
"""The results of each row's tests, by the row's id."""


def row(*ids: str) -> Callable[[T], T]:
    """Mark a test with the rows that it covers. Its name begins with the first one's."""
    return pytest.mark.row(*ids)


def rows_of(test: Callable[..., Any]) -> tuple[str, ...]:
    """Return the rows with which a test function is marked."""
    return tuple(each for mark in getattr(test, "pytestmark", ()) if mark.name == "row" for each in mark.args)


def declared() -> dict[str, tuple[str, ...]]:
    """Return the rows of each test in this directory, by the test's name. Imports the files, and runs nothing."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.conformance.{path.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_"):
                found[f"{path.stem}::{name}"] = rows_of(test)
    return found


def results(passed: Mapping[str, bool]) -> dict[str, list[Result]]:
    """Group the results by row. `passed` has them by test, under the names of `declared`."""
    by_row: dict[str, list[Result]] = {each.id: [] for each in ROWS}
    for test, ids in declared().items():
        for each in ids:
            by_row[each].append(Result(test, passed.get(test, False)))
    return by_row


def page(by_row: Results) -> str:
    """Return the text of docs/conformance.md."""
    sections = [
        f"## {title}\n\n| row | what it asserts | kroute |\n|---|---|---|\n"
        + "".join(_line(each, by_row[each.id]) for each in ROWS if each.section == section)
        for section, title in SECTIONS.items()
    ]
    return "\n".join((_HEAD, *sections))


def _line(each: Row, shown_by: list[Result]) -> str:
    if each.reason:
        verdict = each.reason
    elif all(result.passed for result in shown_by) and shown_by:
        verdict = "passes: " + ", ".join(_name(result) for result in shown_by)
    else:
        failed = [result for result in shown_by if not result.passed]
        verdict = "**fails**: " + (", ".join(_name(result) for result in failed) or "no test")
    return f"| {each.id} | {each.title} | {verdict} |\n"


def _name(result: Result) -> str:
    return f"`{result.test.partition('::')[2]}`"
