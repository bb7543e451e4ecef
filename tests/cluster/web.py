"""A Deployment and its Service, and calls to it from everywhere in the cluster."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.machines import Cluster, Host

AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
NODE_PORT = 30080
REPLICAS = 4
Object = dict[str, Any]


def pod_spec(*arguments: str, **more: object) -> Object:
    """The spec of a pod with agnhost, which gets these arguments."""
    container = {"name": "agnhost", "image": AGNHOST, "args": list(arguments), **more}
    return {"terminationGracePeriodSeconds": 10, "containers": [container]}


def deployment(name: str, replicas: int) -> Object:
    """Pods on all nodes that answer HTTP at port 8080, `/hostname` with their names. One that ends does so late."""
    labels = {"app": name}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 2}
    late = {"preStop": {"sleep": {"seconds": 5}}}
    server = pod_spec("netexec", "--http-port=8080", readinessProbe=probe, lifecycle=late)
    spec = {**server, "topologySpreadConstraints": [spread]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def service(name: str, node_port: int | None = None, annotations: Mapping[str, str] | None = None) -> Object:
    """A Service of both families for the pods of the Deployment of this name."""
    port = {"name": "http", "port": 80, "targetPort": 8080, **({"nodePort": node_port} if node_port else {})}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "type": "NodePort" if node_port else "ClusterIP",
            "ipFamilyPolicy": "RequireDualStack",
            "selector": {"app": name},
            "ports": [port],
        },
    }


def client(node: Host) -> Object:
    """A pod on a node that does nothing by itself."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"client-{node.name}"},
        "spec": {**pod_spec("pause"), "nodeName": node.name, "terminationGracePeriodSeconds": 1},
    }


def _calls(url: str) -> str:
    """A command that calls a URL more often than there are pods, and prints which pods have answered."""
    return f"for i in $(seq {3 * REPLICAS}); do curl -gsS --max-time 15 {url}/hostname; echo; done"


@dataclass
class Calls:
    """What a caller has seen."""

    caller: str
    seen: dict[str, Any] = field(default_factory=dict)


class Web:
    """The Service `web`. `addresses` are its ClusterIPs."""

    def __init__(self, cluster: Cluster, addresses: list[str]) -> None:
        self.cluster = cluster
        self.addresses = addresses

    @classmethod
    def deployed(cls, cluster: Cluster) -> "Web":
        """Deploy it, with a client on each node, and wait until all are ready."""
        clients = [client(node) for node in cluster.nodes.values()]
        cluster.apply(deployment("web", REPLICAS), service("web", NODE_PORT), *clients)
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=10m", *(f"pod/client-{it}" for it in cluster.nodes))
        return cls(cluster, json.loads(cluster.kubectl("get", "service", "web", "-o", "json"))["spec"]["clusterIPs"])

    def names(self) -> set[str]:
        """The names of its pods."""
        return set(self.cluster.kubectl("get", "pods", "-l", "app=web", "-o", "name").replace("pod/", "").split())

    def answers_from_pod(self, node: str, url: str) -> set[str]:
        """Which pods answer some calls from the pod on a node."""
        return set(self.cluster.kubectl("exec", f"client-{node}", "--", "sh", "-c", _calls(url)).split())

    def answers_from_node(self, node: str, url: str) -> set[str]:
        """Which pods answer some calls from the node itself."""
        return set(self.cluster.on(self.cluster.nodes[node], _calls(url)).split())

    def answers_from_wire(self, url: str) -> set[str]:
        """Which pods answer some calls from beside the nodes."""
        return set(self.cluster.run("sh", "-c", _calls(url)).split())

    @contextlib.contextmanager
    def under_load(self, *, least: int = 50) -> Iterator[list[Calls]]:
        """Call all the time: from beside the nodes, from a node, from a pod. No call may fail."""
        first, second = self.cluster.nodes.values()
        node_ports = [f"http://{node.address}:{NODE_PORT}/hostname" for node in (first, second)]
        cluster_ip = f"http://{self.addresses[0]}/hostname"
        callers = [
            (Calls("beside the nodes, node port of node1"), None, node_ports[0], ""),
            (Calls("beside the nodes, node port of node2"), None, node_ports[1], ""),
            (Calls("node1, ClusterIP"), first, cluster_ip, ""),
            (Calls("pod on node2, ClusterIP"), second, cluster_ip, self._entering(second)),
        ]
        threads = [threading.Thread(target=self._call, args=each) for each in callers]
        end = self.cluster.directory / "end"
        for thread in threads:
            thread.start()
        try:
            yield [calls for calls, *_ in callers]
        finally:
            end.touch()
            for node in (first, second):
                self.cluster.on(node, "touch /run/end")
            for thread in threads:
                thread.join()
            end.unlink()
            for node in (first, second):
                self.cluster.on(node, "rm /run/end")
        failed = {calls.caller: calls.seen["failed"][:10] for calls, *_ in callers if calls.seen["failed"]}
        assert not failed, failed
        assert all(calls.seen["calls"] >= least for calls, *_ in callers), callers

    def _call(self, calls: Calls, node: Host | None, url: str, entering: str) -> None:
        load = str(Path(__file__).with_name("load.py"))
        if node is None:
            calls.seen = json.loads(self.cluster.run(sys.executable, load, url, str(self.cluster.directory / "end")))
        else:
            calls.seen = json.loads(self.cluster.on(node, f"{entering} python3 {load} {url} /run/end"))

    def _entering(self, node: Host) -> str:
        """The command that enters the network namespace of the client on a node."""
        address = self.cluster.kubectl("get", "pod", f"client-{node.name}", "-o", "jsonpath={.status.podIP}")
        find = f"for it in /run/netns/*; do nsenter --net=$it ip -o address | grep -qw {address} && echo $it; done"
        return f"nsenter --net={self.cluster.on(node, find, check=False).strip()}"
