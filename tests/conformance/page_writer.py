"""Writes docs/conformance.md from the results of a run of pytest. `make nightly` loads this module as a plugin."""

import pytest

from tests.conformance.table import PAGE, Run, declared, page, results
from tests.lab.vm.durations import without_suffix
from tests.lab.vm.fleet import kernels_used


class PageWriter:
    """The pytest plugin that writes the page at the end of a run that was not cut short. `target` is make's."""

    def __init__(self, target: str) -> None:
        self._target = target
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
        passed, failed, errors = (len(terminalreporter.getreports(it)) for it in ("passed", "failed", "error"))
        by = f"make {self._target}: {passed:,} tests passed, {failed + errors:,} failed"
        PAGE.write_text(page(by_row, Run.here(kernels_used(terminalreporter.config), by)))
        terminalreporter.line(f"{PAGE.name} is written")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(PageWriter("nightly"))
