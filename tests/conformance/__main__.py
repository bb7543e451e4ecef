"""`python -m tests.conformance [PYTEST ARGUMENTS]`: run all conformance tests and write docs/conformance.md."""

import sys

import pytest

from tests.conformance.table import PAGE, Run, declared, page, results
from tests.lab.vm.durations import without_suffix
from tests.lab.vm.fleet import kernels_used


class PageWriter:
    """The pytest plugin that writes the page at the end of a run that was not cut short."""

    def __init__(self) -> None:
        self._tests: dict[str, str] = {}
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        functions = [item for item in session.items if isinstance(item, pytest.Function)]
        self._tests = {item.nodeid: f"{item.path.stem}::{item.originalname}" for item in functions}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests[without_suffix(report.nodeid)]
        if report.failed:
            self._failed.add(test)
        elif report.passed and report.when == "call":
            self._passed.add(test)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        left_out = declared().keys() - self._passed - self._failed
        if left_out:
            terminalreporter.line(f"{PAGE.name} stays as it is: {len(left_out)} of its tests did not run")
            return
        by_row = results({test: test not in self._failed for test in self._passed | self._failed})
        PAGE.write_text(page(by_row, Run.here(kernels_used(terminalreporter.config))))
        terminalreporter.line(f"{PAGE.name} is written")


if __name__ == "__main__":
    sys.exit(pytest.main(["tests/conformance", *sys.argv[1:]], plugins=[PageWriter()]))
