"""What the cluster refuses: pods of kroute, and pods beside it that are not as Pod Security wants them."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.cluster.agents import SYSTEM
from tests.cluster.machines import Cluster
from tests.cluster.web import Object, server

ENFORCE = "pod-security.kubernetes.io/enforce"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What Pod Security's `restricted` wants of a container."""


LIMITS: Object = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "refuses", "namespace": "kube-system"},
    "spec": {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]},
}


@pytest.fixture
def nothing_refuses(cluster: Cluster) -> Iterator[None]:
    """In the end nothing refuses kroute's pods any more."""
    yield
    cluster.kubectl("label", "namespace", "kube-system", f"{ENFORCE}-")
    cluster.kubectl(*SYSTEM, "delete", "limitrange/refuses", "--ignore-not-found")


def said_by(cluster: Cluster, command: str) -> str:
    """What `kubectl kroute` says, whether all is well or not."""
    return cluster.run("sh", "-c", f"kubectl kroute {command} || true")


@pytest.mark.usefixtures("nothing_refuses")
def test_a_limit_range_and_pod_security_refuse_kroutes_pod_and_the_check_says_so(cluster: Cluster) -> None:
    assert "pod/probe created" in answer_to_its_pod(cluster)
    cluster.apply(LIMITS)
    assert "maximum memory usage per Container is 64Mi" in answer_to_its_pod(cluster)
    cluster.kubectl(*SYSTEM, "delete", "limitrange", "refuses")
    for level in ("baseline", "restricted"):
        cluster.kubectl("label", "namespace", "kube-system", f"{ENFORCE}={level}", "--overwrite")
        assert f'violates PodSecurity "{level}:latest"' in answer_to_its_pod(cluster)
        assert f"{ENFORCE}={level}" in said_by(cluster, "check --before-install")


def answer_to_its_pod(cluster: Cluster) -> str:
    """What the API server says to a pod as kroute's DaemonSet makes it. It makes none."""
    template = json.loads(cluster.kubectl(*SYSTEM, "get", "daemonset", "kroute", "-o", "json"))["spec"]["template"]
    metadata = {"name": "probe", "namespace": "kube-system"}
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    return cluster.run("sh", "-c", "kubectl create --dry-run=server -f - 2>&1 || true", content=pod)


def test_pods_under_pod_securitys_restricted_call_and_are_called(cluster: Cluster) -> None:
    strict, labels = ("--namespace", "strict"), {"app": "strict"}
    names = [f"strict-{node}" for node in cluster.nodes]
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"strict-{node}", "namespace": "strict", "labels": labels},
            "spec": {**server(securityContext=RESTRICTED), "nodeName": node, "terminationGracePeriodSeconds": 0},
        }
        for node in cluster.nodes
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "strict", "namespace": "strict"},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    namespace = {"name": "strict", "labels": {ENFORCE: "restricted"}}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
    try:
        cluster.apply(*pods, service)
        cluster.kubectl(*strict, "wait", "--for=condition=Ready", "pods", "--all", "--timeout=10m")
        address = cluster.kubectl(*strict, "get", "service", "strict", "-o", "jsonpath={.spec.clusterIP}")
        calls = f"for i in 1 2 3 4 5 6; do curl -sS --max-time 15 http://{address}/hostname; echo; done"

        def calls_all(name: str) -> bool:
            return set(cluster.kubectl(*strict, "exec", name, "--", "sh", "-c", calls).split()) == set(names)

        for name in names:
            cluster.wait_until(f"{name} calls each pod", partial(calls_all, name))
    finally:
        cluster.kubectl("delete", "namespace", "strict")
