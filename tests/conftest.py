"""Fixtures and settings of all tests."""

import gc
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

from tests import examples

pytest_plugins = ("tests.lab.plugin", "tests.lab.fixtures")

# On a busy machine any example may take seconds.
settings.register_profile("kroute", deadline=None, max_examples=examples.ALL)
settings.register_profile("quick", deadline=None, max_examples=examples.QUICK)
settings.load_profile("kroute")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection, and let none visit what is there by then: modules and tests.

    They last as long as the process. Visiting them again and again takes a third of the collection's time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(
    config: pytest.Config, report: object
) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Send from a worker of xdist what a test has printed only if it is shown: if it failed, or with -rP or -rA."""
    data = yield
    is_shown = not hasattr(config, "workerinput") or {"P", "A"}.intersection(config.option.reportchars)
    if data and isinstance(report, pytest.TestReport) and report.passed and not is_shown:
        data["sections"] = []
    return data
