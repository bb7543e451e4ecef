"""A hostPort, which the CNI plugin portmap serves, and a pod in the host's network, beside a NodePort of kroute's."""

import json

from tests.cluster.machines import Cluster
from tests.cluster.web import NODE_PORT, Object, Web, server

HOST_PORT, HOST_NETWORK_PORT = 18080, 18081


def pod(name: str, node: str, spec: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {**spec, "nodeName": node}}


def test_host_port_and_host_network_beside_a_node_port(cluster: Cluster, web: Web) -> None:
    node = next(iter(cluster.nodes.values()))
    ports = [{"containerPort": 8080, "hostPort": HOST_PORT}]
    cluster.apply(
        pod("host-port", node.name, server(ports=ports)),
        pod(
            "host-network",
            node.name,
            {**server(HOST_NETWORK_PORT), "hostNetwork": True},
        ),
    )
    try:
        names = ("pod/host-port", "pod/host-network")
        cluster.kubectl("wait", "--for=condition=Ready", *names, "--timeout=10m")
        for answers in (web.answers_from_wire, lambda url: web.answers_from_pod("node2", url)):
            assert answers(f"http://{node.address}:{HOST_PORT}") == {"host-port"}
            assert answers(f"http://{node.address}:{HOST_NETWORK_PORT}") == {node.name}
            assert answers(f"http://{node.address}:{NODE_PORT}") == web.names()
        assert json.loads(cluster.run("kubectl", "kroute", "status", "-o", "json"))
    finally:
        cluster.kubectl("delete", "pod", "host-port", "host-network", "--now")
