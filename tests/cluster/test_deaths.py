"""However kroute's process ends, it comes back and writes nothing, and no call and no connection is lost meanwhile."""

import json
from collections.abc import Callable

import pytest

from tests.cluster import footprint
from tests.cluster.agents import PROCESS, SYSTEM, Object, agents, are_ready, evict, written
from tests.cluster.machines import Cluster
from tests.cluster.streams import open_streams
from tests.cluster.web import Web

KILLS = 50
"""On each node."""


@pytest.mark.usefixtures("kept")
def test_evicted_by_the_api_it_comes_back_as_another_pod(cluster: Cluster, web: Web) -> None:
    before, kernels = agents(cluster), footprint.at_rest(cluster)
    with open_streams(cluster), web.under_load():
        for node in before:
            evict(cluster, node)

        def are_others() -> bool:
            now = {agent["uid"] for agent in agents(cluster).values()}
            return are_ready(cluster) and not now & {agent["uid"] for agent in before.values()}

        cluster.wait_until("other pods serve", are_others)
    assert written(cluster) == []
    assert footprint.of_nodes(cluster) == kernels


@pytest.mark.usefixtures("kept")
def test_ended_by_the_kernel_when_its_container_is_out_of_memory_it_comes_back(cluster: Cluster, web: Web) -> None:
    before, kernels = agents(cluster), footprint.at_rest(cluster)
    with open_streams(cluster), web.under_load():
        for agent in before.values():
            too_much = "python3 -c 'b\"x\" * (1 << 30)'"
            cluster.run("sh", "-c", f"kubectl {' '.join(SYSTEM)} exec {agent['pod']} -- {too_much} || true")

        def are_back() -> bool:
            return are_ready(cluster) and all(
                agent["lastState"].get("terminated", {}).get("reason") == "OOMKilled"
                and agent["restartCount"] == before[node]["restartCount"] + 1
                for node, agent in agents(cluster).items()
            )

        cluster.wait_until("containers that were out of memory were started again", are_back)
    assert written(cluster) == []
    assert footprint.of_nodes(cluster) == kernels


@pytest.mark.thorough
@pytest.mark.usefixtures("kept")
def test_killed_a_hundred_times_it_writes_nothing(
    cluster: Cluster, web: Web, record_property: Callable[[str, object], None]
) -> None:
    kernels = footprint.at_rest(cluster)
    with open_streams(cluster), web.under_load() as calls:
        for _ in range(KILLS):
            before = agents(cluster)
            for node in cluster.nodes.values():
                cluster.on(node, f"pkill -KILL -f '{PROCESS}'")

            def are_back(before: dict[str, Object] = before) -> bool:
                return are_ready(cluster) and all(
                    agent["restartCount"] > before[node]["restartCount"] for node, agent in agents(cluster).items()
                )

            cluster.wait_until("both were started again", are_back)
            assert written(cluster) == []
    assert footprint.of_nodes(cluster) == kernels
    record_property("measured", f"{2 * KILLS} kills: {sum(calls.values())} calls, 0 failed")


@pytest.mark.usefixtures("kept")
def test_while_a_quota_refuses_its_pod_its_node_serves_and_status_says_so(cluster: Cluster, web: Web) -> None:
    node, agent = next(iter(agents(cluster).items()))
    kernels = footprint.at_rest(cluster)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "kube-system"},
        "spec": {"hard": {"pods": "0"}},
    }
    with open_streams(cluster), web.under_load():
        with cluster.having(quota):
            cluster.wait_until("the quota is counted", lambda: "used" in of_quota(cluster)["status"])
            cluster.kubectl(*SYSTEM, "delete", "pod", agent["pod"])
            cluster.wait_until("a pod is refused", lambda: "exceeded quota: none" in refusals(cluster))
            assert node not in agents(cluster)
            said = cluster.run("sh", "-c", "kubectl kroute status || echo FAILS")
            assert "1 of 2 nodes without a pod" in said
            assert "FAILS" in said
        cluster.wait_until("each node has a pod again", lambda: are_ready(cluster), within=600)
    assert footprint.of_nodes(cluster) == kernels


def of_quota(cluster: Cluster) -> Object:
    return dict(json.loads(cluster.kubectl(*SYSTEM, "get", "resourcequota", "none", "-o", "json")))


def refusals(cluster: Cluster) -> str:
    """Why pods of kroute's DaemonSet were not created."""
    selector = ("--field-selector", "involvedObject.name=kroute,reason=FailedCreate")
    return cluster.kubectl(*SYSTEM, "get", "events", *selector, "-o", "jsonpath={.items[*].message}")
