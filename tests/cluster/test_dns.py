"""Names by kube-dns: queries by UDP and TCP while its servers roll out, and with a cache on a node beside kroute."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster import addons
from tests.cluster.agents import SYSTEM
from tests.cluster.components import DNS
from tests.cluster.dns_load import ADDRESS
from tests.cluster.footprint import bound, real_servers
from tests.cluster.machines import Cluster
from tests.cluster.web import Web, pod, pod_spec
from tests.lab.node_local_dns import LINK_LOCAL, untracked

SERVERS = 2
LOAD = Path(__file__).with_name("dns_load.py")


@pytest.fixture(scope="module")
def dns(cluster: Cluster, web: Web) -> Iterator[None]:
    """kube-dns, with two servers."""
    with cluster.having(*addons.dns(cluster.control.address, [*DNS.values()], SERVERS)):
        cluster.kubectl(*SYSTEM, "rollout", "status", "deployment/dns", "--timeout=10m")
        yield


def servers(cluster: Cluster) -> set[str]:
    pods = ("get", "pods", "--selector", "k8s-app=kube-dns", "-o", "jsonpath={.items[*].metadata.name}")
    return {*cluster.kubectl(*SYSTEM, *pods).split()}


def test_thousands_of_queries_are_answered_while_the_servers_roll_out(cluster: Cluster, dns: None) -> None:
    """A client has one query under way, and may lose one for each server that leaves.

    IPVS ends the flows of a UDP server that is deleted (expire_nodest_conn). That is seconds after the server took its
    last new flow, so only a client that has kept its socket, or has got an old port again, may then wait for an answer.
    """
    old = servers(cluster)
    end = "/tmp/dns-end"

    def on(node: str) -> str:
        return cluster.on(cluster.nodes[node], f"python3 {LOAD} {DNS[4]} {end}")

    def in_pod(node: str) -> str:
        command = ("exec", "-i", f"client-{node}", "--", "python3", "-", DNS[6 if node == "node2" else 4], end)
        return cluster.kubectl(*command, content=LOAD.read_text())

    with ThreadPoolExecutor() as threads:
        callers = {
            (where.__name__, node): threads.submit(where, node) for where in (on, in_pod) for node in cluster.nodes
        }
        try:
            cluster.kubectl(*SYSTEM, "rollout", "restart", "deployment/dns")
            cluster.kubectl(*SYSTEM, "rollout", "status", "deployment/dns", "--timeout=10m")
            cluster.wait_until("the old servers are gone", lambda: not old & servers(cluster))
        finally:
            for name, node in cluster.nodes.items():
                cluster.on(node, f"touch {end}")
                cluster.kubectl("exec", f"client-{name}", "--", "touch", end)
            seen = {caller: json.loads(said.result()) for caller, said in callers.items()}
            for name, node in cluster.nodes.items():
                cluster.on(node, f"rm {end}")
                cluster.kubectl("exec", f"client-{name}", "--", "rm", end)
    assert all(len(it["lost"]) <= len(old) for it in seen.values()), seen


def asked(cluster: Cluster, where: str, server: str, name: str) -> str:
    """What dig says in the pod on a node, by UDP and by TCP: addresses, or the status if there is none."""
    ask = f"dig +tries=1 +time=15 @{server} {name} A"
    said = cluster.kubectl("exec", f"client-{where}", "--", "sh", "-c", f"{ask} +notcp; {ask} +tcp")
    assert said.count("status: ") == 2, said
    found = {words[-1] for line in said.splitlines() if (words := line.split())[-3:-1] == ["IN", "A"]}
    return " ".join(sorted(found)) or said.partition("status: ")[2].partition(",")[0]


def test_a_cache_on_a_node_has_the_address_of_kube_dns_while_it_runs(cluster: Cluster, dns: None) -> None:
    """node-local-dns in its form for nodes that give it the ClusterIP: on node1 alone."""
    own, script = DNS[4], Path(__file__).with_name("dns_cache.py").read_text()
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cache"}, "data": {"cache.py": script}}
    ports = [{"name": it.lower(), "port": 53, "protocol": it} for it in ("UDP", "TCP")]
    upstream = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "dns-upstream", "namespace": "kube-system"},
        "spec": {"selector": {"k8s-app": "kube-dns"}, "ports": ports},
    }
    rules = "".join(untracked(address) for address in (LINK_LOCAL, own))
    with cluster.having(upstream, files):
        to = cluster.kubectl(*SYSTEM, "get", "service", "dns-upstream", "-o", "jsonpath={.spec.clusterIP}")
        spec = pod_spec(
            command=["python3", "/cache/cache.py", to, LINK_LOCAL, own],
            env=[{"name": "RULES", "value": rules}],
            securityContext={"capabilities": {"add": ["NET_ADMIN"]}},
            readinessProbe={"tcpSocket": {"host": LINK_LOCAL, "port": 53}, "periodSeconds": 2},
            volumeMounts=[{"name": "cache", "mountPath": "/cache"}],
        )
        more = {"hostNetwork": True, "volumes": [{"name": "cache", "configMap": {"name": "cache"}}]}
        cluster.apply(pod("cache", "node1", {**spec, **more}))
        try:
            cluster.kubectl("wait", "--for=condition=Ready", "pod/cache", "--timeout=10m")
            cluster.wait_until("kroute leaves it the address", lambda: own not in bound(cluster, "node1"))
            assert asked(cluster, "node1", own, "cache.test") == "NOERROR"
            assert asked(cluster, "node1", LINK_LOCAL, "cache.test") == "NOERROR"
            assert asked(cluster, "node1", own, "kubernetes.default.svc.cluster.local") == ADDRESS
            assert not real_servers(cluster, "node1", f"{own}:53", "udp")
            assert asked(cluster, "node2", own, "cache.test") == "NXDOMAIN"
        finally:
            cluster.kubectl("delete", "pod", "cache", "--ignore-not-found")
        cluster.wait_until("kroute serves it again", lambda: own in bound(cluster, "node1"))
        assert asked(cluster, "node1", own, "cache.test") == "NXDOMAIN"
        assert asked(cluster, "node1", own, "kubernetes.default.svc.cluster.local") == ADDRESS
