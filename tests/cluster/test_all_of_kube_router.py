"""All of kube-router goes to kroute by docs/migrate-from-kube-router.md alone, and no pod notices anything."""

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster import proxies
from tests.cluster.installation import begin, rolls_out
from tests.cluster.machines import Cluster, missing
from tests.cluster.proxies import BALANCED, EVERYTHING, KUBE_ROUTER
from tests.cluster.streams import deployed, open_streams
from tests.cluster.test_load_balancers import routed
from tests.cluster.test_pod_network import CLUSTER_CIDR
from tests.cluster.web import Object, Web, pod, server, service
from tests.lab import kubernetes
from tests.lab.places import PROJECT

PAGE = (PROJECT / "docs/migrate-from-kube-router.md").read_text()
SETTINGS = (
    *("--set", "settings.pod-network=true,settings.network-policies=true"),
    *("--set-json", f"settings.cluster-cidr={json.dumps(CLUSTER_CIDR)}"),
    *("--set-json", f"settings.loadbalancer-ip-range={json.dumps([BALANCED])}"),
)
LEFT = (
    "ipset list -n | grep -i kube;"
    " nft list ruleset 2>/dev/null | grep -E 'KUBE-(ROUTER|POD|NWPLCY)|allow (in|out)bound';"
    " ip rule | grep -E 'lookup 7[789]'; ip -6 rule | grep -E 'lookup 7[789]'; ip -br link | grep -E 'tun-|kube-dummy';"
    " ip route show table all proto 17; ip -6 route show table all proto 17; ls /etc/cni/net.d | grep kuberouter"
)
"""A command that shows what kube-router has left."""
LOAD = Path(__file__).with_name("load.py")
CALL = "while [ ! -e /run/between ]; do curl -gs -o /dev/null --max-time 1 {} && echo answered; sleep 0.1; done"
ISOLATED = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "isolated"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "isolated"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "caller-node1"}}}]}],
    },
}


def commands(heading: str) -> list[str]:
    """The commands of a section of the page."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"(?m)^(?: {4,}.*(?:\n|$))+", section)
    return [block.replace("\\\n", " ") for block in blocks]


@pytest.mark.thorough
def test_all_that_kube_router_does_goes_to_kroute_and_nothing_of_it_is_left() -> None:
    if said := missing() or kubernetes.missing("kube-router"):
        pytest.skip(said)
    with Cluster(beside=True, has_pod_network=False) as cluster:
        proxies.deploy(cluster, KUBE_ROUTER, EVERYTHING)
        cluster.wait_until("all nodes are ready", cluster.nodes_are_ready)
        web = Web.deployed(cluster)
        deployed(cluster)
        cluster.apply(ISOLATED, pod("isolated", "node1", server()), service("balanced", type="LoadBalancer", **BY_WEB))
        callers = [pod(f"caller-{node}", node, server()) for node in cluster.nodes]
        cluster.apply(*callers)
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=10m", "pod/isolated", *map(name_of, callers))
        cluster.wait_until("kube-router has given an address", lambda: address_of(cluster))
        address = address_of(cluster)
        first, take_away, end, remove, allocate, *_ = commands("All of kube-router")
        assert "helm install" in first
        assert "xargs" in remove
        with routed(cluster, (address,), "node1"), web.under_load(), open_streams(cluster), between_pods(cluster, web):
            begin(cluster, *SETTINGS)
            for command in (take_away, end, remove):
                run(cluster, command)
                assert web.answers_from_wire(f"http://{address}") == web.names()
            late = [pod(f"late-{node}", node, server()) for node in cluster.nodes]
            cluster.apply(*late)
            cluster.kubectl("wait", "--for=condition=Ready", "--timeout=10m", *map(name_of, late))
            run(cluster, allocate)
            rolls_out(cluster)
        assert address_of(cluster) == address
        for node in cluster.nodes.values():
            assert cluster.on(node, LEFT, check=False) == ""
        cluster.run("kubectl", "kroute", "status")


BY_WEB = {"selector": {"app": "web"}, "ipFamilyPolicy": "SingleStack"}


def name_of(made: Object) -> str:
    return f"pod/{made['metadata']['name']}"


def address_of(cluster: Cluster) -> str:
    return cluster.kubectl("get", "service", "balanced", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")


def run(cluster: Cluster, command: str) -> None:
    cluster.run("sh", "-exc", command)


@contextlib.contextmanager
def between_pods(cluster: Cluster, web: Web) -> Iterator[None]:
    """Call pods' own addresses all the time: from the caller on each node a pod on the other one, and the isolated one.

    No call may fail, and the isolated pod answers the caller on node1 alone. The callers call no Service: IPVS takes an
    answer of a pod for that to an earlier call of a Service from the same port (docs/kernel-facts.md).
    """
    pods = json.loads(cluster.kubectl("get", "pods", "-o", "json"))["items"]
    ips = {it["metadata"]["name"]: [each["ip"] for each in it["status"]["podIPs"]] for it in pods}
    on = {it["spec"]["nodeName"]: it["metadata"]["name"] for it in pods if it["metadata"]["name"].startswith("web-")}
    ways = {
        f"caller on {at} to web on {to}, {number}": (at, f"python3 {LOAD} {url(ips[on[to]][number])} /run/between")
        for at, to in (("node1", "node2"), ("node2", "node1"))
        for number in (0, 1)
    }
    isolated = ips["isolated"]
    ways["allowed"] = ("node1", f"python3 {LOAD} {url(isolated[0])} /run/between")
    denied = [("node2", CALL.format(url(it))) for it in isolated]
    with ThreadPoolExecutor(len(ways) + len(denied)) as threads:

        def started(node: str, command: str) -> str:
            host = cluster.nodes[node]
            return cluster.on(host, f"{web.entering(host, 'caller')} sh -c '{command}'")

        callers = {name: threads.submit(started, *way) for name, way in ways.items()}
        refused = [threads.submit(started, *way) for way in denied]
        try:
            yield
        finally:
            for node in cluster.nodes.values():
                cluster.on(node, "touch /run/between")
            seen = {name: json.loads(caller.result()) for name, caller in callers.items()}
            answered = [caller.result() for caller in refused]
            for node in cluster.nodes.values():
                cluster.on(node, "rm /run/between")
    failed = "\n".join(f"{name}: {text}" for name, it in seen.items() for text in it["failed"])
    assert not failed, failed
    assert all(it["calls"] for it in seen.values())
    assert "answered" not in "".join(answered)


def url(address: str) -> str:
    return f"http://[{address}]:8080/hostname" if ":" in address else f"http://{address}:8080/hostname"
