"""kroute is installed by the README's commands, and packets go to pods by every kind of address, from everywhere."""

import json
from itertools import product

from tests.cluster.machines import Cluster
from tests.cluster.web import NODE_PORT, Web


def test_it_is_installed_by_the_readmes_commands_and_says_that_all_is_well(cluster: Cluster, web: Web) -> None:
    assert web.names()
    cluster.run("kubectl", "kroute", "status")
    cluster.run("kubectl", "kroute", "check")
    for node in cluster.nodes:
        status = json.loads(cluster.run("kubectl", "kroute", "status", "--node", node, "-o", "json"))
        assert status, node


def test_pods_and_nodes_reach_every_pod_by_a_cluster_ip_of_each_family(cluster: Cluster, web: Web) -> None:
    assert len(web.addresses) == 2
    for node, address in product(cluster.nodes, web.addresses):
        url = f"http://[{address}]" if ":" in address else f"http://{address}"
        assert web.answers_from_pod(node, url) == web.names(), (node, address)
        assert web.answers_from_node(node, url) == web.names(), (node, address)


def test_clients_beside_the_nodes_reach_every_pod_by_a_node_port_of_each_node(cluster: Cluster, web: Web) -> None:
    for node in cluster.nodes.values():
        for address in node.place.addresses:
            url = f"http://[{address}]:{NODE_PORT}" if ":" in address else f"http://{address}:{NODE_PORT}"
            assert web.answers_from_wire(url) == web.names(), url


def test_a_pod_reaches_the_api_server_by_its_service(cluster: Cluster, web: Web) -> None:
    for node in cluster.nodes:
        path = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
        call = ("curl", "-sS", "--max-time", "15", "--cacert", path, "https://kubernetes.default.svc/version")
        resolved = ("--resolve", "kubernetes.default.svc:443:10.96.0.1")
        assert "gitVersion" in cluster.kubectl("exec", f"client-{node}", "--", *call, *resolved)
