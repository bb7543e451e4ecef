"""Fixtures for tests in the lab."""

from collections.abc import Iterator

import pytest

from tests.lab.cluster import Cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of three nodes for one test. When the test fails, kroute's logs are part of its report."""
    made = Cluster()
    try:
        yield made
        for node in made.nodes.values():
            for name, text in node.logs().items():
                request.node.add_report_section("teardown", f"{node.name} {name}", text)
    finally:
        made.close()
