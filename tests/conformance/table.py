"""Which test covers which row, and the page that lists them."""

import importlib
import subprocess
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import pytest

from tests.cluster.e2e_report import section_of
from tests.conformance.rows import ROWS, SECTIONS, Row

T = TypeVar("T", bound=Callable[..., Any])

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"

_HEAD = """# Conformance

The end-to-end tests of Kubernetes 1.36 for Services (`test/e2e/network`), row by row. Each that concerns a service
proxy is a test in `tests/conformance/`: packets between the pods, nodes and clients of a cluster in network namespaces,
in both address families. The number behind a file's name is the line of the test there. `make conformance` runs the
tests and writes this page from their results; `make nightly`, which runs them among all others, writes it, too.

The rows of NetworkPolicies are Kubernetes' own tests and the cases of
[cyclonus](https://github.com/mattfenwick/cyclonus). After each change every pod of three namespaces, on three nodes,
calls every other and itself: by the pod's address and by a Service, by TCP, UDP and SCTP, on two ports, in both address
families, with nf_tables and with iptables. What has to pass is read from the objects, apart from kroute's own planning.
"""
_RUN = """
| the run | |
|---|---|
| commit | {commit} |
| date | {date} |
| kernel | {kernel} |
| by | {by} |
"""


class Result(NamedTuple):
    """A test's name and file, and whether it passed."""

    test: str
    passed: bool


class Run(NamedTuple):
    """Where results come from: the commit, the day (UTC), the kernels with what fed their tests, and the target."""

    commit: str
    date: str
    kernel: str
    by: str

    @classmethod
    def here(cls, kernels: Iterable[str], by: str) -> Self:
        """The run that ends now, in this clone."""
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = [line for line in _git("status", "--porcelain").splitlines() if not line.endswith(PAGE.name)]
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        return cls(f"{commit} with uncommitted changes" if changed else commit, date, "; ".join(kernels), by)

    @classmethod
    def of(cls, text: str) -> Self:
        """The run that a page names."""
        return cls(*(text.partition(f"| {name} | ")[2].partition(" |")[0] for name in cls._fields))


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


def page(by_row: Results, run: Run) -> str:
    """Return the text of docs/conformance.md, whose last section is that of `make e2e`."""
    sections = [
        f"## {title}\n\n| row | what it asserts | kroute |\n|---|---|---|\n"
        + "".join(_line(each, by_row[each.id]) for each in ROWS if each.section == section)
        for section, title in SECTIONS.items()
    ]
    return "\n".join((_HEAD + _RUN.format(**run._asdict()), *sections)) + section_of(PAGE.read_text())


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=PAGE.parent, capture_output=True, text=True, check=True).stdout.strip()


def _line(each: Row, shown_by: list[Result]) -> str:
    if each.reason:
        verdict = each.reason
    elif all(result.passed for result in shown_by) and shown_by:
        verdict = "passes: " + ", ".join(_name(result) for result in shown_by)
    else:
        failed = [result for result in shown_by if not result.passed]
        verdict = "**fails**: " + (", ".join(_name(result) for result in failed) or "no test")
    shows = f". Shown here: {each.shows}" if each.shows else ""
    return f"| {each.id} | {each.title}{shows} | {verdict} |\n"


def _name(result: Result) -> str:
    return f"`{result.test.partition('::')[2]}`"
