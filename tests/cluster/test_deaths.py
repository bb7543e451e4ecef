"""However kroute's process ends, it comes back and writes nothing, and no call and no connection is lost meanwhile."""

import pytest

from tests.cluster import footprint
from tests.cluster.agents import agents, are_ready, evict, written
from tests.cluster.machines import Cluster
from tests.cluster.streams import open_streams
from tests.cluster.web import Web


@pytest.mark.usefixtures("kept")
def test_evicted_by_the_api_it_comes_back_as_another_pod(cluster: Cluster, web: Web) -> None:
    before, kernels = agents(cluster), footprint.of_nodes(cluster)
    with open_streams(cluster), web.under_load():
        for node in before:
            evict(cluster, node)

        def are_others() -> bool:
            now = {agent["uid"] for agent in agents(cluster).values()}
            return are_ready(cluster) and not now & {agent["uid"] for agent in before.values()}

        cluster.wait_until("other pods serve", are_others)
    assert written(cluster) == []
    assert footprint.of_nodes(cluster) == kernels
