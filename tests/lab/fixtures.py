"""Fixtures for tests in the lab, and the logs that are added to the reports of failures."""

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from tests.lab.allocation import Allocator
from tests.lab.cluster import Cluster
from tests.lab.deployment import Deployment
from tests.lab.feed import Feed, feed_for
from tests.lab.guard import Guard
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


_GUARD = pytest.StashKey[Guard]()


@pytest.fixture(scope="session")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The cluster that the tests share. A test removes what it has added, or the last one of its file fails."""
    made = World.build()
    try:
        guard = request.session.stash[_GUARD] = Guard(made)
        yield made
        guard.compare()
    finally:
        made.cluster.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Compare the shared cluster with what it was, at the end of each file that has used it.

    After the last file that is done by the fixture `world`, which closes it.
    """
    guard = item.session.stash.get(_GUARD, None)
    if guard is not None and "world" in getattr(item, "fixturenames", ()):
        guard.note(item.nodeid.partition("::")[0])
    try:
        return (yield)
    finally:
        if guard is not None and nextitem is not None and nextitem.path != item.path:
            guard.compare(agents_go_on=nextitem.path.parent == item.path.parent)


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
