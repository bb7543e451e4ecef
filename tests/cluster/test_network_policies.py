"""The chart's value has kroute enforce the API server's network policies, and its end opens the pods."""

import re
from functools import partial
from typing import Any

from tests.cluster.agents import events, said
from tests.cluster.installation import upgrade
from tests.cluster.machines import Cluster, Host
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
OF_CLUSTER = "policy.networking.k8s.io"
KIND_OF_CLUSTER: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"clusternetworkpolicies.{OF_CLUSTER}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
    },
    "spec": {
        "group": OF_CLUSTER,
        "scope": "Cluster",
        "names": {
            "kind": "ClusterNetworkPolicy",
            "listKind": "ClusterNetworkPolicyList",
            "plural": "clusternetworkpolicies",
            "singular": "clusternetworkpolicy",
        },
        "versions": [
            {
                "name": "v1alpha2",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
"""Without the schema of the Network Policy API, by which the API server refuses what is malformed."""


def pods_of_default(app: str) -> dict[str, Any]:
    labels = {"kubernetes.io/metadata.name": "default"}
    return {"pods": {"namespaceSelector": {"matchLabels": labels}, "podSelector": {"matchLabels": {"app": app}}}}


AGAINST_ONE_CLIENT: dict[str, Any] = {
    "apiVersion": f"{OF_CLUSTER}/v1alpha2",
    "kind": "ClusterNetworkPolicy",
    "metadata": {"name": "web"},
    "spec": {
        "tier": "Admin",
        "priority": 1,
        "subject": pods_of_default("web"),
        "ingress": [{"action": "Deny", "from": [pods_of_default("client-node2")]}],
    },
}
NOT_UNDERSTOOD = {
    **AGAINST_ONE_CLIENT,
    "spec": {**AGAINST_ONE_CLIENT["spec"], "ingress": [{"action": "Log", "from": [pods_of_default("client-node1")]}]},
}


class Calls:
    """The calls of the clients on the two nodes to all addresses of `web`."""

    def __init__(self, web: Web) -> None:
        self._web = web
        self._urls = [f"http://[{address}]" if ":" in address else f"http://{address}" for address in web.addresses]

    def is_refused(self) -> bool:
        """Whether the client on node2 gets no answer."""
        return all(self._web.answers_from_pod("node2", url, 1) == {"failed"} for url in self._urls)

    def is_served(self, node: str) -> bool:
        return all(self._web.answers_from_pod(node, url) == self._web.names() for url in self._urls)


LISTED = "nft list table ip kroute-policies"


def isolated_late(cluster: Cluster, node: Host) -> int:
    """Of how many new pods the agent knows since when their network was ready, as the real kubelet says it."""
    metrics = cluster.on(node, "curl -sS http://127.0.0.1:10249/metrics")
    [count] = re.findall(r"(?m)^kroute_policy_lag_seconds_count (\d+)$", metrics)
    return int(count)


def test_a_policy_lets_the_pods_that_it_names_reach_a_service_and_ends_with_the_setting(
    cluster: Cluster, web: Web
) -> None:
    calls = Calls(web)
    is_refused, is_served = calls.is_refused, calls.is_served

    def is_told() -> bool:
        packets = [line for line in said(cluster) if line["event"] == "policy.refused"]
        told = {(it.get("source_pod"), it["namespace"], *it["policies"]) for it in packets}
        return ("default/client-node2", "default", "web") in told

    def is_explained(name: str) -> bool:
        command = f"kubectl kroute explain pod/default/{name}:8080 --from pod/default/client-node2; echo code $?"
        answers = cluster.run("sh", "-c", command)
        by_both = [
            f"ingress of default/{name}: refused; isolated by default/web",
            "egress of default/client-node2: allowed",
        ]
        return all(one in answers for one in by_both) and answers.endswith("code 3\n")

    def is_cut() -> bool:
        return any(line["event"] == "connections.cut" for line in said(cluster))

    settings = "network-policies", "policy-log", "policy-default-deny", "policy-cuts-connections"
    upgrade(cluster, *(word for name in settings for word in ("--set", f"settings.{name}=true")))
    try:
        with cluster.having(FOR_ONE_CLIENT):
            cluster.wait_until("the other client is refused", is_refused)
            cluster.wait_until("the log names it and the policy", is_told)
            assert is_served("node1")
            assert all(is_explained(name) for name in web.names())
            cluster.kubectl("rollout", "restart", "deployment/web")  # the kubelets' probes pass, and new pods are known
            cluster.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
            cluster.wait_until("the new pods are served", lambda: is_served("node1"))
            assert is_refused()
            assert sum(isolated_late(cluster, node) for node in cluster.nodes.values()) > 0
            assert all("set pod-networks" in cluster.on(node, LISTED) for node in cluster.nodes.values())
        cluster.wait_until("without the policy all are served", lambda: is_served("node2"))
        cluster.apply(FOR_ONE_CLIENT)
        cluster.wait_until("the other client is refused again", is_refused)
        cluster.wait_until("its connections of before are cut", is_cut)
    finally:
        upgrade(cluster, *(word for name in settings for word in ("--set", f"settings.{name}=false")))
    cluster.wait_until("without the setting all are served", lambda: is_served("node2"))
    cluster.kubectl("delete", "networkpolicy", "web")
    for node in cluster.nodes.values():
        assert "kroute-policies" not in cluster.on(node, "nft list tables")


def test_a_policy_of_the_cluster_counts_when_its_kind_has_come_and_ends_with_it(cluster: Cluster, web: Web) -> None:
    calls = Calls(web)
    upgrade(cluster, "--set", "settings.network-policies=true")
    try:
        with cluster.having(FOR_ONE_CLIENT):  # the agents are ready, though nobody serves the other kind
            cluster.wait_until("the other client is refused", calls.is_refused)
        with cluster.having(KIND_OF_CLUSTER):
            name = KIND_OF_CLUSTER["metadata"]["name"]
            cluster.kubectl("wait", "--for=condition=established", f"crd/{name}", "--timeout=2m")
            with cluster.having(AGAINST_ONE_CLIENT):
                cluster.wait_until("the client that the rule names is refused", calls.is_refused)
                assert calls.is_served("node1")
            cluster.wait_until("without the policy all are served", lambda: calls.is_served("node2"))
            cluster.apply(NOT_UNDERSTOOD)
            cluster.wait_until("what is not understood denies everything", calls.is_refused)
            about = "involvedObject.kind=ClusterNetworkPolicy", "reason=InvalidNetworkPolicy"
            cluster.wait_until("an Event says so", partial(events, cluster, *about))
        cluster.wait_until("without the kind all are served", lambda: calls.is_served("node2"))
    finally:
        upgrade(cluster, "--set", "settings.network-policies=false")
