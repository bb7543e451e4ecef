"""The cluster of a session, with kroute on it, and a Deployment with a Service that all its tests call."""

from collections.abc import Iterator

import pytest

from tests.cluster import footprint, streams
from tests.cluster.footprint import Footprint
from tests.cluster.installation import install
from tests.cluster.machines import Cluster, missing
from tests.cluster.web import Web


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this directory. They run only where they are asked for: by `-m cluster`."""
    own = [item for item in items if item.path.is_relative_to(config.rootpath / "tests/cluster")]
    for item in own:
        item.add_marker("cluster")
    if "cluster" not in config.option.markexpr and own:
        config.hook.pytest_deselected(items=own)
        items[:] = [item for item in items if item not in own]


@pytest.fixture(scope="session")
def bare_cluster() -> Iterator[Cluster]:
    """The cluster, on which kroute may or may not be."""
    if said := missing():
        pytest.skip(said)
    with Cluster(beside=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def untouched(bare_cluster: Cluster) -> dict[str, Footprint]:
    """What each node's kernel had before kroute came."""
    return footprint.of_nodes(bare_cluster)


@pytest.fixture(scope="session")
def cluster(bare_cluster: Cluster, untouched: dict[str, Footprint]) -> Cluster:
    """The cluster with kroute, which each test leaves as it was."""
    install(bare_cluster)
    return bare_cluster


@pytest.fixture(scope="session")
def web(cluster: Cluster) -> Web:
    """Pods on both nodes that answer with their names, behind a Service."""
    return Web.deployed(cluster)


@pytest.fixture(scope="session")
def kept(cluster: Cluster) -> None:
    """What `open_streams` calls."""
    streams.deployed(cluster)
