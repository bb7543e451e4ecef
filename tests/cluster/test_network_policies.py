"""The chart's value has kroute enforce the API server's NetworkPolicies, and its end opens the pods."""

from typing import Any

from tests.cluster.agents import said
from tests.cluster.installation import upgrade
from tests.cluster.machines import Cluster
from tests.cluster.web import Web

FOR_ONE_CLIENT: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "web"}},
        "ingress": [
            {
                "from": [
                    {
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
                        "podSelector": {"matchLabels": {"app": "client-node1"}},
                    }
                ],
                "ports": [{"port": 8080}],
            }
        ],
    },
}


def test_a_policy_lets_the_pods_that_it_names_reach_a_service_and_ends_with_the_setting(
    cluster: Cluster, web: Web
) -> None:
    urls = [f"http://[{address}]" if ":" in address else f"http://{address}" for address in web.addresses]

    def is_refused() -> bool:
        return all(web.answers_from_pod("node2", url, 1) == {"failed"} for url in urls)

    def is_told() -> bool:
        packets = [line for line in said(cluster) if line["event"] == "policy.refused"]
        told = {(it.get("source_pod"), it["namespace"], *it["policies"]) for it in packets}
        return ("default/client-node2", "default", "web") in told

    def is_served(node: str) -> bool:
        return all(web.answers_from_pod(node, url) == web.names() for url in urls)

    upgrade(cluster, "--set", "settings.network-policies=true", "--set", "settings.policy-log=true")
    try:
        with cluster.having(FOR_ONE_CLIENT):
            cluster.wait_until("the other client is refused", is_refused)
            cluster.wait_until("the log names it and the policy", is_told)
            assert is_served("node1")
            cluster.kubectl("rollout", "restart", "deployment/web")  # the kubelets' probes pass, and new pods are known
            cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
            cluster.wait_until("the new pods are served", lambda: is_served("node1"))
            assert is_refused()
        cluster.wait_until("without the policy all are served", lambda: is_served("node2"))
        cluster.apply(FOR_ONE_CLIENT)
        cluster.wait_until("the other client is refused again", is_refused)
    finally:
        upgrade(cluster, "--set", "settings.network-policies=false", "--set", "settings.policy-log=false")
    cluster.wait_until("without the setting all are served", lambda: is_served("node2"))
    cluster.kubectl("delete", "networkpolicy", "web")
    for node in cluster.nodes.values():
        assert "kroute-policies" not in cluster.on(node, "nft list tables")
