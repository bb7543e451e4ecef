"""kroute is the only network plugin of a real cluster: pods of kubelets get their addresses by its configuration."""

import json
from ipaddress import ip_address, ip_network

import pytest

from tests.cluster.installation import install, rolls_out, uninstall
from tests.cluster.machines import Cluster, missing
from tests.cluster.web import Web

CLUSTER_CIDR = ["10.244.0.0/16", "fd00:10:244::/48"]
LEFT = (
    "ip -br link | grep kroute- | grep -v kroute-pods; ip route show proto 108; ip -6 route show proto 108;"
    " ip rule | grep 27508; ls /etc/cni/net.d"
)
"""A command that shows what kroute has left of the network. The bridge is the plugin's."""
SETTINGS = "--set", "settings.pod-network=true,settings.overlay=full", "--set-json"


def test_pods_of_all_nodes_are_connected_by_kroute_alone() -> None:
    if said := missing():
        pytest.skip(said)
    with Cluster(beside=True, has_pod_network=False) as cluster:
        assert not cluster.nodes_are_ready(), "without network of pods no node is ready"
        install(cluster, *SETTINGS, f"settings.cluster-cidr={json.dumps(CLUSTER_CIDR)}")
        cluster.wait_until("all nodes are ready", cluster.nodes_are_ready)
        web = Web.deployed(cluster)
        assert_addresses_are_of_their_nodes(cluster)
        for name in web.names():
            answer = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/default/pods/{name}:8080/proxy/hostname")
            assert answer == name, "the API server, too, reaches all pods"
        for node in cluster.nodes:
            for address in web.addresses:
                url = f"http://[{address}]" if ":" in address else f"http://{address}"
                assert web.answers_from_pod(node, url) == web.names()
                assert web.answers_from_node(node, url) == web.names()
        with web.under_load():
            cluster.kubectl("--namespace", "kube-system", "rollout", "restart", "daemonset/kroute")
            rolls_out(cluster)
        cluster.kubectl("delete", "deployment,pod", "--all", "--now")
        uninstall(cluster)
        for node in cluster.nodes.values():
            assert cluster.on(node, LEFT, check=False) == ""


def assert_addresses_are_of_their_nodes(cluster: Cluster) -> None:
    networks = {name: [ip_network(it) for it in node.place.pod_networks] for name, node in cluster.nodes.items()}
    pods = json.loads(cluster.kubectl("get", "pods", "-o", "json"))["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == set(networks)
    for pod in pods:
        addresses = [ip_address(it["ip"]) for it in pod["status"]["podIPs"]]
        assert [address.version for address in addresses] == [4, 6]
        for address, network in zip(addresses, networks[pod["spec"]["nodeName"]], strict=True):
            assert address in network
