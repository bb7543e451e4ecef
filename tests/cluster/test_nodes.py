"""Nodes are drained, switched off and on again, deleted and added."""

import json
from functools import partial

import pytest

from tests.cluster.installation import rolls_out
from tests.cluster.machines import Cluster
from tests.cluster.web import NODE_PORT, Web, client


def ready_nodes_of_endpoints(cluster: Cluster) -> set[str]:
    """The nodes that have a ready endpoint of the Service `web`."""
    selector = ("--selector", "kubernetes.io/service-name=web")
    slices = json.loads(cluster.kubectl("get", "endpointslices", *selector, "-o", "json"))["items"]
    return {it["nodeName"] for one in slices for it in one["endpoints"] if it["conditions"]["ready"]}


def spread_again(cluster: Cluster) -> None:
    """Have pods of the Deployment on all nodes."""
    cluster.kubectl("rollout", "restart", "deployment/web")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
    cluster.wait_until("each node has an endpoint", lambda: ready_nodes_of_endpoints(cluster) == {*cluster.nodes})


def test_a_drained_node_costs_no_call_and_its_node_port_serves_on(cluster: Cluster, web: Web) -> None:
    with web.under_load():
        cluster.kubectl("drain", "node1", "--ignore-daemonsets", "--pod-selector", "app=web", "--timeout=10m")
        cluster.wait_until("all endpoints are on node2", lambda: ready_nodes_of_endpoints(cluster) == {"node2"})
        node = cluster.nodes["node1"]
        assert web.answers_from_wire(f"http://{node.address}:{NODE_PORT}") == web.names()
        cluster.kubectl("uncordon", "node1")
        spread_again(cluster)


@pytest.mark.drawn(2, "a node comes back")
def test_a_node_that_is_switched_off_and_on_serves_again(cluster: Cluster, web: Web) -> None:
    node = cluster.nodes["node2"]
    node.switch_off()
    cluster.wait_until("no endpoint of it is ready", lambda: ready_nodes_of_endpoints(cluster) == {"node1"})
    for _ in range(3):
        assert web.answers_from_pod("node1", f"http://{web.addresses[0]}")
    node.switch_on()
    cluster.wait_until("its endpoints are ready again", lambda: ready_nodes_of_endpoints(cluster) == {*cluster.nodes})
    rolls_out(cluster)
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=10m", "pod/client-node2")
    spread_again(cluster)
    for address in web.addresses:
        assert web.answers_from_pod("node2", f"http://[{address}]" if ":" in address else f"http://{address}")
    assert web.answers_from_wire(f"http://{node.address}:{NODE_PORT}")


@pytest.mark.drawn(2, "a node comes back")
def test_a_node_that_is_deleted_and_added_again_serves_again(cluster: Cluster, web: Web) -> None:
    node = cluster.nodes["node2"]
    known = json.loads(cluster.kubectl("get", "node", node.name, "-o", "json"))
    metadata = {"name": node.name, "labels": known["metadata"]["labels"]}
    spec = {name: known["spec"][name] for name in ("podCIDR", "podCIDRs")}
    cluster.kubectl("delete", "node", node.name)
    cluster.wait_until("its endpoints are gone", lambda: ready_nodes_of_endpoints(cluster) == {"node1"})
    cluster.wait_until("the other node serves", lambda: web.is_served_at(web.addresses[0], "node1"))
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
    cluster.on(node, "pkill -KILL -x kubelet")  # it says at its start which node it is
    cluster.kubectl("wait", "--for=condition=Ready", "node", node.name, "--timeout=10m")
    rolls_out(cluster)
    cluster.apply(client(node))
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=10m", f"pod/client-{node.name}")
    spread_again(cluster)
    cluster.wait_until("it serves again", lambda: web.is_served_at(web.addresses[0], node.name))
    assert web.answers_from_wire(f"http://{node.address}:{NODE_PORT}")


def test_the_control_plane_may_be_away(cluster: Cluster, web: Web) -> None:
    with web.under_load():
        cluster.on(cluster.control, "pkill -KILL -x etcd; pkill -KILL -x kube-apiserver")
        cluster.wait_until("the API server is ready again", lambda: cluster.kubectl("get", "--raw", "/readyz") == "ok")
        cluster.kubectl("expose", "deployment", "web", "--name=late", "--port=80", "--target-port=8080")
        late = cluster.kubectl("get", "service", "late", "-o", "jsonpath={.spec.clusterIP}")
        for node in cluster.nodes:  # the controllers, and the agents, have noticed that it is back
            cluster.wait_until(f"{node} serves it", partial(web.is_served_at, late, node))
        cluster.kubectl("delete", "service", "late")
        spread_again(cluster)
    for node in cluster.nodes:
        assert web.answers_from_pod(node, f"http://{web.addresses[0]}") == web.names()
