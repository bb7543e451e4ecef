"""What is restarted on a node costs no call, and writes nothing to the kernel that is there already."""

from collections.abc import Callable

import pytest

from tests.cluster import footprint
from tests.cluster.agents import agents, containers, written
from tests.cluster.installation import rolls_out, upgrade
from tests.cluster.machines import Cluster
from tests.cluster.web import Web

Record = Callable[[str, object], None]


@pytest.mark.drawn(2, "another pod of kroute")
def test_a_rollout_restart_costs_no_call_and_writes_nothing(
    cluster: Cluster, web: Web, record_property: Record
) -> None:
    before, kernels = agents(cluster), footprint.at_rest(cluster)
    with web.under_load() as calls:
        cluster.kubectl("--namespace", "kube-system", "rollout", "restart", "daemonset/kroute")
        rolls_out(cluster)
    after = agents(cluster)
    assert all(after[node]["pod"] != before[node]["pod"] for node in before)
    assert written(cluster) == []
    assert footprint.of_nodes(cluster) == kernels
    record_property("measured", f"rollout restart: {sum(calls.values())} calls, 0 failed")


@pytest.mark.drawn(2, "another pod of kroute")
def test_an_upgrade_with_another_setting_costs_no_call(cluster: Cluster, web: Web) -> None:
    def schedulers() -> set[str]:
        table = "".join(cluster.on(node, "ipvsadm -Sn") for node in cluster.nodes.values())
        return {line.split(" -s ")[1].split()[0] for line in table.splitlines() if line.startswith("-A")}

    assert schedulers() == {"rr"}
    with web.under_load():
        upgrade(cluster, "--set", "settings.scheduler=lc")
        cluster.wait_until("all virtual servers have the other scheduler", lambda: schedulers() == {"lc"})
        upgrade(cluster, "--set", "settings.scheduler=auto")
        cluster.wait_until("all virtual servers have the first scheduler", lambda: schedulers() == {"rr"})


def test_a_rollout_of_the_pods_costs_no_call(cluster: Cluster, web: Web) -> None:
    old = web.names()
    with web.under_load():
        cluster.kubectl("rollout", "restart", "deployment/web")
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
        cluster.wait_until("the old pods are gone", lambda: not old & web.names(also_ending=True))


def test_a_killed_agent_is_started_again_and_writes_nothing(cluster: Cluster, web: Web) -> None:
    before, kernels = agents(cluster), footprint.at_rest(cluster)
    with web.under_load():
        for node in cluster.nodes.values():
            cluster.on(node, "pkill -KILL -f 'kroute run'")

        def is_back() -> bool:
            now = agents(cluster)
            return all(
                agent["ready"] and agent["restartCount"] == before[node]["restartCount"] + 1
                for node, agent in now.items()
            )

        cluster.wait_until("both agents are ready again", is_back)
    assert written(cluster) == []
    assert footprint.of_nodes(cluster) == kernels


@pytest.mark.drawn(2)
@pytest.mark.parametrize("component", ["kubelet", "containerd"])
def test_a_restart_of_a_nodes_own_programs_costs_no_call_and_restarts_no_agent(
    component: str, cluster: Cluster, web: Web
) -> None:
    before = containers(cluster)
    with web.under_load():
        for node in cluster.nodes.values():
            old = cluster.on(node, f"pgrep -x {component}")
            cluster.on(node, f"pkill -KILL -x {component}")
            cluster.wait_until(
                f"{component} runs again on {node.name}",
                lambda node=node, old=old: cluster.on(node, f"pgrep -x {component}") not in {"", old},  # type: ignore[misc]
            )
        cluster.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=10m")
        cluster.kubectl("scale", "deployment/web", "--replicas=6")
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
        cluster.kubectl("scale", "deployment/web", "--replicas=4")
        cluster.wait_until("two pods are gone", lambda: len(web.names(also_ending=True)) == 4)
    assert containers(cluster) == before
