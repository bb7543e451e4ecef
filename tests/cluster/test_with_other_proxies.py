"""A cluster goes from kroute to another proxy and back, by the documents' commands, and the clients notice nothing.

The order is that of a cluster that has kroute: first "The way back" of docs/migrate-from-kube-proxy.md or
docs/migrate-from-kube-router.md, then "The move". These tests come last: the other proxies leave sysctls and an empty
chain, which `test_uninstall` would find.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest

from tests.cluster import footprint, proxies, streams
from tests.cluster.agents import SYSTEM
from tests.cluster.footprint import DRAINS, Footprint
from tests.cluster.installation import CHART, IMAGE, begin, rolls_out, upgrade
from tests.cluster.machines import Cluster
from tests.cluster.proxies import KUBE_PROXY, KUBE_ROUTER
from tests.cluster.streams import open_streams
from tests.cluster.web import REPLICAS, Web, deployment


class Neighbour(NamedTuple):
    """A proxy, and whether the nodes go to it and come from it one by one, by the label, or all at once."""

    name: str
    mode: str
    one_by_one: bool

    @property
    def first_mode(self) -> str:
        """In which mode the nodes are given back: at its start the mode nftables removes what kroute has left."""
        return "iptables" if self.mode == "nftables" else self.mode


NEIGHBOURS = (
    Neighbour(KUBE_PROXY, "ipvs", one_by_one=True),
    Neighbour(KUBE_PROXY, "iptables", one_by_one=False),
    Neighbour(KUBE_PROXY, "nftables", one_by_one=True),
    Neighbour(KUBE_ROUTER, "", one_by_one=False),
)
LABEL = "kroute.io/service-proxy"
LATE = 40
"""Seconds. It takes that long on a busy machine until one proxy has ended and the other has begun."""
SLOW = 900.0
"""Seconds that a proxy may take to start on a node of a busy machine."""
LEFT = re.compile(
    r"KUBE-(?:SERVICES|NODEPORTS|SVC|SEP|EXT|NODE-PORT|CLUSTER-IP|MARK-MASQ|LOOP)|kube-proxy|"
    r"KUBE-ROUTER-|kube-router-|kube-dummy-if|--vmethod MASQ"
)
"""What only another proxy has in the kernel. What else begins with KUBE- is the kubelet's."""


@pytest.mark.drawn(4)
@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=lambda it: " ".join(filter(None, it[:2])))
def test_kroute_gives_the_nodes_back_and_takes_them_over_by_itself(
    neighbour: Neighbour, cluster: Cluster, web: Web
) -> None:
    values = cluster.directory / "values.yaml"
    first = values.read_text()
    streams.deployed(cluster)
    end_late(cluster, web)
    gives_nodes_back(cluster, web, neighbour)
    if neighbour.mode != neighbour.first_mode:
        proxies.deploy(cluster, neighbour.name, neighbour.mode, by_label=neighbour.one_by_one)
    with open_streams(cluster):
        waits(cluster, neighbour.name)
        with web.under_load(), rollout(cluster, web):
            takes_over(cluster, neighbour)
        serves_alone(cluster)
    proxies.forget(cluster, neighbour.name)
    values.write_text(first)
    own = ("--values", str(values), "--set", f"image.repository={IMAGE}")
    cluster.run("helm", "upgrade", *CHART, "--reset-values", *own)
    rolls_out(cluster)
    cluster.kubectl("label", "nodes", "--all", f"{LABEL}-")
    cluster.apply(deployment("web", REPLICAS))
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")


def end_late(cluster: Cluster, web: Web) -> None:
    """Let the pods of `web` end so late that a proxy hears of it in time: no proxy follows while one ends.

    kube-router begins with calls to every pod that there is, also to one that ends: in the end there is none.
    """
    container = {"name": "agnhost", "lifecycle": {"preStop": {"sleep": {"seconds": LATE}}}}
    spec = {"terminationGracePeriodSeconds": LATE + 10, "containers": [container]}
    patch = json.dumps({"spec": {"template": {"spec": spec}}})
    cluster.kubectl("patch", "deployment", "web", "--patch", patch)
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
    cluster.wait_until("the old pods are gone", lambda: len(web.names(also_ending=True)) == REPLICAS)


def gives_nodes_back(cluster: Cluster, web: Web, neighbour: Neighbour) -> None:
    """Give every node to the other proxy."""
    with web.under_load(), contextlib.ExitStack() as open_connections:
        open_connections.enter_context(open_streams(cluster))
        to = ("--set", f"migration.handOverTo={neighbour.name}")
        if neighbour.one_by_one:
            cluster.kubectl("label", "nodes", "--all", f"{LABEL}=kroute", "--overwrite")
            upgrade(cluster, "--set", "migration.byLabel=true", *to)
        else:
            cluster.run("helm", "upgrade", *CHART, "--reuse-values", "--set", "mode=hand-over", *to)
        proxies.deploy(cluster, neighbour.name, neighbour.first_mode, by_label=neighbour.one_by_one)
        for node in cluster.nodes:
            if neighbour.one_by_one:
                cluster.kubectl("label", "node", node, f"{LABEL}-")
            cluster.wait_until(f"{node} is given back", partial(is_given_back, cluster, neighbour, node), SLOW)
        if neighbour.first_mode == "iptables":  # the hand-over waits for the end of connections through IPVS
            open_connections.close()
        cluster.kubectl(*SYSTEM, "rollout", "status", "daemonset/kroute-hand-over", "--timeout=10m")
        # kube-router sends calls to a pod that terminates until it is gone.
        with rollout(cluster, web) if neighbour.name == KUBE_PROXY else contextlib.nullcontext():
            cluster.run("helm", "uninstall", "kroute", *SYSTEM, "--wait")


def is_given_back(cluster: Cluster, neighbour: Neighbour, node: str) -> bool:
    """Whether the other proxy serves on a node: by rules that translate connections, or by what kroute has left."""
    if neighbour.first_mode == "iptables":
        return "KUBE-SEP-" in cluster.on(cluster.nodes[node], "nft list ruleset")
    return is_ready(cluster, "kroute-hand-over", node)


def is_ready(cluster: Cluster, daemon_set: str, node: str) -> bool:
    """Whether the pod of one of kroute's DaemonSets on a node is ready."""
    selector = ("--selector", f"app.kubernetes.io/name={daemon_set}", "--field-selector", f"spec.nodeName={node}")
    pods = json.loads(cluster.kubectl(*SYSTEM, "get", "pods", *selector, "-o", "json"))["items"]
    return any(
        (it["type"], it["status"]) == ("Ready", "True") for pod in pods for it in pod["status"].get("conditions", ())
    )


def takes_over(cluster: Cluster, neighbour: Neighbour) -> None:
    """End the other proxy, and return when kroute serves on every node."""
    for node in cluster.nodes if neighbour.one_by_one else ():
        cluster.kubectl("label", "node", node, f"{LABEL}=kroute", "--overwrite")
        cluster.wait_until(f"kroute serves on {node}", partial(is_ready, cluster, "kroute", node), SLOW)
    cluster.kubectl(*SYSTEM, "delete", "daemonset", neighbour.name)
    rolls_out(cluster)


def waits(cluster: Cluster, name: str) -> None:
    """Install kroute beside the other proxy: it says that it waits, wherever it can be asked, and writes nothing."""
    before = written(cluster)
    begin(cluster)
    cluster.wait_until(
        "an Event of each Node says that it waits", lambda: nodes_that_wait(cluster, name) == set(before)
    )
    for node in before:
        cluster.wait_until("so does its status", lambda node=node: f"waiting: {name}" in status(cluster, node))  # type: ignore[misc]
    for host in cluster.nodes.values():
        code = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:10247"
        assert (cluster.on(host, f"{code}/livez"), cluster.on(host, f"{code}/readyz")) == ("200", "503")
    assert written(cluster) == before


def nodes_that_wait(cluster: Cluster, name: str) -> set[str]:
    """The Nodes of which Events say that kroute waits for this proxy."""
    events = ("get", "events", "--all-namespaces", "-o", "json", "--field-selector", "reason=WaitingForServiceProxy")
    found = json.loads(cluster.kubectl(*events))["items"]
    return {it["involvedObject"]["name"] for it in found if it["message"].startswith(name)}


def written(cluster: Cluster) -> dict[str, Footprint]:
    """What each node's kernel has but what kube-proxy deletes when it has drained, and the directory of the agent."""
    return {
        node: {**it, "state": [], "virtual servers": [each for each in it["virtual servers"] if DRAINS not in each]}
        for node, it in footprint.of_nodes(cluster).items()
    }


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
