"""A cluster goes from kroute to kube-proxy and back, by the documents' commands, and the clients notice nothing.

The order is that of a cluster that has kroute: first docs/migrate-from-kube-proxy.md's "The way back", then its "The
move". `make test-cluster` does so with one mode, which KROUTE_LAB_SEED or the date chooses, a thorough run with all.
These tests come last: kube-proxy leaves a sysctl and an empty chain, which `test_uninstall` would find.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.cluster import footprint, proxies, streams
from tests.cluster.footprint import Footprint
from tests.cluster.installation import CHART, IMAGE, begin, rolls_out
from tests.cluster.machines import Cluster
from tests.cluster.proxies import MODES
from tests.cluster.streams import open_streams
from tests.cluster.web import REPLICAS, Web, deployment
from tests.lab.thoroughness import is_thorough

SYSTEM = ("--namespace", "kube-system")
DRAWN = int(os.environ.get("KROUTE_LAB_SEED") or datetime.now(UTC).toordinal()) % len(MODES)
CHOSEN = MODES if is_thorough() else MODES[DRAWN : DRAWN + 1]
LATE = 40
"""Seconds. It takes that long on a busy machine until one proxy has ended and the other has begun."""
SLOW = 900.0
"""Seconds that kube-proxy may take to start on a node of a busy machine."""
LEFT = re.compile(r"KUBE-(?:SERVICES|NODEPORTS|SVC|SEP|EXT|NODE-PORT|CLUSTER-IP|MARK-MASQ|LOOP)|kube-proxy")
"""What only kube-proxy has in the kernel. What else begins with KUBE- is the kubelet's."""


@pytest.mark.parametrize("mode", CHOSEN)
def test_kroute_gives_the_nodes_back_and_takes_them_over_by_itself(mode: str, cluster: Cluster, web: Web) -> None:
    values = cluster.directory / "values.yaml"
    first = values.read_text()
    streams.deployed(cluster)
    end_late(cluster)
    gives_nodes_back(cluster, web, mode)
    with open_streams(cluster):
        waits(cluster)
        with web.under_load(), rollout(cluster, web):
            cluster.kubectl(*SYSTEM, "delete", "daemonset", "kube-proxy")
            rolls_out(cluster)
        serves_alone(cluster)
    proxies.forget(cluster)
    values.write_text(first)
    own = ("--values", str(values), "--set", f"image.repository={IMAGE}")
    cluster.run("helm", "upgrade", *CHART, "--reset-values", *own)
    rolls_out(cluster)
    cluster.apply(deployment("web", REPLICAS))
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")


def end_late(cluster: Cluster) -> None:
    """Let the pods of `web` end so late that a proxy hears of it in time: no proxy follows while one ends."""
    container = {"name": "agnhost", "lifecycle": {"preStop": {"sleep": {"seconds": LATE}}}}
    spec = {"terminationGracePeriodSeconds": LATE + 10, "containers": [container]}
    patch = json.dumps({"spec": {"template": {"spec": spec}}})
    cluster.kubectl("patch", "deployment", "web", "--patch", patch)
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")


def gives_nodes_back(cluster: Cluster, web: Web, mode: str) -> None:
    """Give every node to kube-proxy."""
    with web.under_load(), contextlib.ExitStack() as open_connections:
        open_connections.enter_context(open_streams(cluster))
        changes = ("--set", "mode=hand-over", "--set", "migration.handOverTo=kube-proxy")
        cluster.run("helm", "upgrade", *CHART, "--reuse-values", *changes)
        proxies.deploy(cluster, mode)
        if mode == "iptables":  # the hand-over waits for the end of connections through IPVS
            cluster.wait_until("kube-proxy has its rules", lambda: has_rules(cluster), SLOW)
            open_connections.close()
        cluster.kubectl(*SYSTEM, "rollout", "status", "daemonset/kroute-hand-over", "--timeout=10m")
        with rollout(cluster, web):
            cluster.run("helm", "uninstall", "kroute", *SYSTEM, "--wait")


def waits(cluster: Cluster) -> None:
    """Install kroute beside kube-proxy: it says that it waits, wherever it can be asked, and writes nothing."""
    before = written(cluster)
    begin(cluster)
    cluster.wait_until("all agents wait", lambda: all("waiting: kube-proxy" in status(cluster, it) for it in before))
    cluster.wait_until("an Event of each Node says so", lambda: nodes_that_wait(cluster) == set(before))
    for node in cluster.nodes.values():
        code = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:10247"
        assert (cluster.on(node, f"{code}/livez"), cluster.on(node, f"{code}/readyz")) == ("200", "503")
    assert written(cluster) == before


def nodes_that_wait(cluster: Cluster) -> set[str]:
    """The Nodes of which Events say that kroute waits."""
    events = ("get", "events", "--all-namespaces", "-o", "json", "--field-selector", "reason=WaitingForServiceProxy")
    return {it["involvedObject"]["name"] for it in json.loads(cluster.kubectl(*events))["items"]}


def written(cluster: Cluster) -> dict[str, Footprint]:
    """What each node's kernel has; the agent's own directory is there while it waits."""
    return {node: {**found, "state": []} for node, found in footprint.of_nodes(cluster).items()}


def serves_alone(cluster: Cluster) -> None:
    """kroute serves, and nothing of the other proxy is left."""
    cluster.run("kubectl", "kroute", "status")
    cluster.wait_until("nothing is left of the other proxy", lambda: not leftovers(cluster))


def leftovers(cluster: Cluster) -> list[str]:
    commands = "iptables-save; ip6tables-save; nft list ruleset; ipset list -n; ip -o link"
    lines = [line for node in cluster.nodes.values() for line in cluster.on(node, commands).splitlines()]
    return [line for line in lines if LEFT.search(line)]


@contextlib.contextmanager
def rollout(cluster: Cluster, web: Web) -> Iterator[None]:
    """Let the Deployment `web` roll out meanwhile; at the end its old pods are gone."""
    old = web.names()
    cluster.kubectl("rollout", "restart", "deployment/web")
    yield
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
    cluster.wait_until("the old pods are gone", lambda: not old & web.names())


def status(cluster: Cluster, node: str) -> str:
    """What `kubectl kroute status` says of a node; it fails while the agent waits."""
    command = ("sh", "-c", f"kubectl kroute status --node {node} 2>&1 || true")
    return cluster.run(*command)


def has_rules(cluster: Cluster) -> bool:
    """Whether kube-proxy in the mode iptables translates the connections to Services, on each node."""
    return all("KUBE-SEP-" in cluster.on(node, "nft list ruleset") for node in cluster.nodes.values())
