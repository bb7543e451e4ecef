"""Connections that stay open: each calls one pod again and again, and none may end."""

import contextlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster.machines import Cluster
from tests.cluster.web import LONGEST, deployment, service

NODE_PORT = 30081
_LOAD = Path(__file__).with_name("load.py")


def deployed(cluster: Cluster) -> None:
    """Deploy the pods that are called, which no test restarts, and their Service `kept`."""
    cluster.apply(deployment("kept", len(cluster.nodes)), service("kept", NODE_PORT))
    cluster.kubectl("rollout", "status", "deployment/kept", "--timeout=10m")


@contextlib.contextmanager
def open_streams(cluster: Cluster) -> Iterator[None]:
    """Keep streams open: from beside the nodes by each node's port, and from the client on each node by the ClusterIP.

    Raises AssertionError at the end if one has ended before.
    """
    address = cluster.kubectl("get", "service", "kept", "-o", "jsonpath={.spec.clusterIP}")
    end = cluster.directory / "streams-end"

    def from_wire(to: str) -> str:
        command = (sys.executable, str(_LOAD), f"http://{to}:{NODE_PORT}/hostname", str(end), "kept")
        return cluster.run(*command, within=LONGEST)

    def from_pod(name: str) -> str:
        command = ("python3", "-", f"http://{address}/hostname", "/tmp/streams-end", "kept")
        return cluster.run("kubectl", "exec", "-i", name, "--", *command, content=_LOAD.read_text(), within=LONGEST)

    pods = [f"client-{node}" for node in cluster.nodes]
    with ThreadPoolExecutor(2 * len(pods)) as threads:
        streams = {
            f"node port of {node.name}": threads.submit(from_wire, node.address) for node in cluster.nodes.values()
        }
        streams |= {f"ClusterIP, {pod}": threads.submit(from_pod, pod) for pod in pods}
        try:
            yield
        finally:
            end.touch()
            for pod in pods:
                cluster.kubectl("exec", pod, "--", "touch", "/tmp/streams-end")
            seen = {name: json.loads(stream.result()) for name, stream in streams.items()}
            end.unlink()
            for pod in pods:
                cluster.kubectl("exec", pod, "--", "rm", "/tmp/streams-end")
    assert all(it["calls"] and not it["failed"] for it in seen.values()), seen
