"""A Deployment and its Service, and calls to it from everywhere in the cluster."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cluster.machines import Cluster, Host

AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
NODE_PORT = 30080
REPLICAS = 4
CALLS = 3 * REPLICAS
"""So many that each pod answers some."""
LONGEST = 3600.0
"""Seconds that no test takes."""
LEAST_CALLS = 20
"""Of each caller, in a test under load."""
Object = dict[str, Any]


def pod_spec(*arguments: str, **more: object) -> Object:
    """The spec of a pod with agnhost, which gets these arguments."""
    container = {"name": "agnhost", "image": AGNHOST, "args": list(arguments), **more}
    return {"terminationGracePeriodSeconds": 20, "containers": [container]}


def server(port: int = 8080, **more: object) -> Object:
    """The spec of a pod that answers HTTP at a port, and is ready when it does.

    It stays ready as long as no call is lost: a node of a busy machine may stand still for some seconds (`load.py`).
    """
    probe = {"httpGet": {"path": "/healthz", "port": port}, "periodSeconds": 2, "timeoutSeconds": 15}
    return pod_spec("netexec", f"--http-port={port}", readinessProbe=probe, **more)


def deployment(name: str, replicas: int) -> Object:
    """Pods on all nodes that answer HTTP at port 8080, `/hostname` with their names. One that ends does so late."""
    labels = {"app": name}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    late = {"preStop": {"sleep": {"seconds": 15}}}  # on a busy machine it takes seconds until all know that it ends
    spec = {**server(lifecycle=late), "topologySpreadConstraints": [spread]}
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


def service(
    name: str, node_port: int | None = None, annotations: Mapping[str, str] | None = None, **more: object
) -> Object:
    """A Service of both families for the pods of the Deployment of this name. `more` are its fields, or None."""
    port = {"name": "http", "port": 80, "targetPort": 8080, **({"nodePort": node_port} if node_port else {})}
    spec = {
        "type": "NodePort" if node_port else "ClusterIP",
        "ipFamilyPolicy": "RequireDualStack",
        "selector": {"app": name},
        "ports": [port],
        **more,
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {name: value for name, value in spec.items() if value is not None},
    }


def pod(name: str, node: str, spec: Object) -> Object:
    """A pod on a node, which the Service `service(name)` has as an endpoint."""
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "nodeName": node}}


def client(node: Host) -> Object:
    """A pod on a node that does nothing by itself."""
    return pod(f"client-{node.name}", node.name, {**pod_spec("pause"), "terminationGracePeriodSeconds": 1})


def _calls(url: str, times: int) -> str:
    """A command that calls a URL, and prints which pods have answered, or `failed`."""
    return f"for i in $(seq {times}); do curl -gsS --max-time 15 {url}/hostname || echo failed; echo; done"


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
        return cls(cluster, cluster.addresses("web"))

    def names(self, *, also_ending: bool = False) -> set[str]:
        """The names of its pods."""
        pods = json.loads(self.cluster.kubectl("get", "pods", "-l", "app=web", "-o", "json"))["items"]
        metadata = [pod["metadata"] for pod in pods]
        return {it["name"] for it in metadata if also_ending or "deletionTimestamp" not in it}

    def answers_from_pod(self, node: str, url: str, times: int = CALLS) -> set[str]:
        """Which pods answer some calls from the pod on a node."""
        return set(self.cluster.kubectl("exec", f"client-{node}", "--", "sh", "-c", _calls(url, times)).split())

    def answers_from_node(self, node: str, url: str, times: int = CALLS) -> set[str]:
        """Which pods answer some calls from the node itself."""
        return set(self.cluster.on(self.cluster.nodes[node], _calls(url, times)).split())

    def answers_from_wire(self, url: str, times: int = CALLS) -> set[str]:
        """Which pods answer some calls from beside the nodes."""
        return set(self.cluster.run("sh", "-c", _calls(url, times)).split())

    def is_served_at(self, address: str, node: str) -> bool:
        """Whether an address of a Service for these pods leads the client on a node to all of them."""
        return self.answers_from_pod(node, f"http://{address}") == self.names()

    @contextlib.contextmanager
    def under_load(self) -> Iterator[dict[str, int]]:
        """Call all the time: from beside the nodes, from a node, from a pod. No call may fail.

        Afterwards the dict has how often each has called.
        """
        first, second = self.cluster.nodes.values()
        load, cluster_ip = Path(__file__).with_name("load.py"), f"http://{self.addresses[0]}/hostname"
        end = self.cluster.directory / "end"
        calls: dict[str, int] = {}

        def beside(node: Host) -> str:
            command = (sys.executable, str(load), f"http://{node.address}:{NODE_PORT}/hostname", str(end))
            return self.cluster.run(*command, within=LONGEST)

        def on(node: Host, entering: str) -> str:
            return self.cluster.on(node, f"{entering} python3 {load} {cluster_ip} /run/end")

        entering = self.entering(second)
        with ThreadPoolExecutor() as threads:
            callers = {
                "beside the nodes, by the node port of node1": threads.submit(beside, first),
                "beside the nodes, by the node port of node2": threads.submit(beside, second),
                "node1, by the ClusterIP": threads.submit(on, first, ""),
                "pod on node2, by the ClusterIP": threads.submit(on, second, entering),
            }
            try:
                yield calls
            finally:
                end.touch()
                for node in (first, second):
                    self.cluster.on(node, "touch /run/end")
                seen = {name: json.loads(caller.result()) for name, caller in callers.items()}
                end.unlink()
                for node in (first, second):
                    self.cluster.on(node, "rm /run/end")
        calls.update({name: it["calls"] for name, it in seen.items()})
        assert not any(it["failed"] for it in seen.values()), seen
        assert min(calls.values()) > LEAST_CALLS, calls

    def entering(self, node: Host, name: str = "client") -> str:
        """The command that enters the network namespace of a pod on a node: the client, or NAME-NODE."""
        address = self.cluster.kubectl("get", "pod", f"{name}-{node.name}", "-o", "jsonpath={.status.podIP}")
        find = f"for it in /run/netns/*; do nsenter --net=$it ip -o address | grep -qw {address} && echo $it; done"
        return f"nsenter --net={self.cluster.on(node, find, check=False).strip()}"
