"""Fixtures for tests in the lab, and what their reports say when they fail."""

from collections.abc import Generator, Iterator

import pytest

from tests.lab.cluster import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of three nodes for one test."""
    made = Cluster()
    try:
        yield made
    finally:
        made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failure what each kroute process logged since that phase of the test began."""
    report = yield
    if report.failed:
        processes = [process for made in Cluster.alive for node in made.nodes.values() for process in node.processes]
        for process in processes:
            if process.log.stat().st_mtime >= call.start:
                report.sections.append((f"{process.log.parent.name} {process.log.name}", process.tail(100)))
    return report
