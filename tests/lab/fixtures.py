"""Fixtures for tests in the lab, and the logs that are added to the reports of failures."""

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from tests.lab.allocation import Allocator
from tests.lab.cluster import Cluster
from tests.lab.deployment import Deployment
from tests.lab.feed import Feed, feed_for
from tests.lab.world import FAMILIES, Family, World


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of three nodes for one test."""
    made = Cluster()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    """IPv4, then IPv6."""
    return request.param


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """The cluster that the tests share. A test removes what it has added."""
    made = World.build()
    try:
        yield made
    finally:
        made.cluster.close()


@pytest.fixture(scope="session")
def free() -> Allocator:
    """Addresses and ports that no other test has."""
    return Allocator()


@pytest.fixture
def feed(world: World, tmp_path: Path) -> Feed:
    """A source of objects, which has none yet."""
    return feed_for(world.cluster, tmp_path)


@pytest.fixture
async def deployment(world: World, feed: Feed) -> AsyncIterator[Deployment]:
    """kroute, to be started by the test. Every node is cleaned afterwards."""
    deployed = Deployment(world.cluster, feed)
    yield deployed
    await deployed.cleanup()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failure what each kroute process has logged since this phase of the test began."""
    report = yield
    if report.failed:
        processes = [process for made in Cluster.alive for node in made.nodes.values() for process in node.processes]
        for process in processes:
            if process.log.stat().st_mtime >= call.start:
                report.sections.append((f"{process.log.parent.name} {process.log.name}", process.tail(20)))
    return report
