"""The API server calls webhooks and aggregated APIs at the ClusterIPs of their Services.

The machine of the control plane has no proxy: its routes lead to ClusterIPs by node1, whose kroute serves them to a
host beside the nodes.
"""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.machines import Cluster, ClusterError
from tests.cluster.web import Object, Web, pod, pod_spec, service

DENIES = "this webhook denies all requests"
API = "v1beta1.metrics.k8s.io"


def certificate(directory: Path, name: str) -> tuple[Object, str]:
    """A Secret with a certificate for a Service, and the certificate as a `caBundle` has it."""
    names = f"subjectAltName=DNS:{name}.default.svc"
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "tls.key")
    command = ["openssl", "req", "-x509", "-subj", f"/CN={name}", "-addext", names, *key, "-out", "tls.crt"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    files = {it: base64.b64encode((directory / it).read_bytes()).decode() for it in ("tls.crt", "tls.key")}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls"}
    return {**secret, "data": files}, files["tls.crt"]


def serving(name: str, *command: str, **volumes: Object) -> list[Object]:
    """A pod on node2 that serves HTTPS at port 8443, with these volumes at their names, and its Service."""
    spec = pod_spec(
        command=list(command),
        readinessProbe={"tcpSocket": {"port": 8443}, "periodSeconds": 2},
        volumeMounts=[{"name": it, "mountPath": f"/{it}"} for it in volumes],
    )
    mounted = [{"name": it, **volume} for it, volume in volumes.items()]
    ports = [{"port": 443, "targetPort": 8443}]
    return [pod(name, "node2", {**spec, "volumes": mounted}), service(name, ports=ports, ipFamilyPolicy="SingleStack")]


def is_denied(cluster: Cluster) -> bool:
    """Whether the webhook has denied a ConfigMap; False if it is created. Raises ClusterError if it was not asked."""
    metadata = {"name": "denied", "labels": {"asks": "webhook"}}
    content = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    try:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", content=content)
    except ClusterError as error:
        if DENIES in str(error):
            return True
        raise
    return False


@pytest.fixture(scope="module")
def webhook(cluster: Cluster, web: Web, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A webhook that denies all ConfigMaps with a label."""
    secret, bundle = certificate(tmp_path_factory.mktemp("webhook"), "webhook")
    hook = {
        "name": "denies.example.org",
        "clientConfig": {
            "service": {"namespace": "default", "name": "webhook", "path": "/always-deny"},
            "caBundle": bundle,
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        "objectSelector": {"matchLabels": {"asks": "webhook"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "webhook"},
        "webhooks": [hook],
    }
    files = ("--tls-cert-file=/tls/tls.crt", "--tls-private-key-file=/tls/tls.key")
    command = ("/agnhost", "webhook", "--port=8443", *files)
    tls = {"secret": {"secretName": "webhook"}}
    with cluster.having(secret, *serving("webhook", *command, tls=tls), configuration):
        cluster.kubectl("wait", "--for=condition=Ready", "pod/webhook", "--timeout=10m")
        cluster.wait_until("the webhook is asked", lambda: is_denied(cluster))
        yield


def test_a_control_plane_without_a_proxy_calls_a_webhook_by_a_node(cluster: Cluster, webhook: None) -> None:
    assert not cluster.on(cluster.control, "ip -brief address show kube-ipvs0", check=False).startswith("kube-ipvs0")
    assert is_denied(cluster)


def test_a_webhook_without_an_endpoint_is_refused_at_once(cluster: Cluster, webhook: None) -> None:
    cluster.kubectl("label", "pod", "webhook", "app-")
    cluster.kubectl("exec", "webhook", "--", "sh", "-c", "kill 1")  # ends the connection that is open
    with pytest.raises(ClusterError, match="connection refused"):
        is_denied(cluster)
    cluster.kubectl("label", "pod", "webhook", "app=webhook")
    cluster.wait_until("the webhook is asked again", lambda: is_denied(cluster))


def test_an_aggregated_api_is_served_by_its_pod(cluster: Cluster, web: Web, tmp_path: Path) -> None:
    secret, bundle = certificate(tmp_path, "metrics")
    script = Path(__file__).with_name("metrics_server.py").read_text()
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "metrics"}, "data": {"server.py": script}}
    command = ("python3", "/program/server.py", *cluster.nodes)
    tls, program = {"secret": {"secretName": "metrics"}}, {"configMap": {"name": "metrics"}}
    group, _, version = "metrics.k8s.io", "", "v1beta1"
    spec = {
        "group": group,
        "version": version,
        "service": {"namespace": "default", "name": "metrics"},
        "caBundle": bundle,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    api = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": API}, "spec": spec}
    with cluster.having(secret, files, *serving("metrics", *command, tls=tls, program=program), api):
        cluster.kubectl("wait", "--for=condition=Available", f"apiservice/{API}", "--timeout=10m")
        cluster.wait_until("its group is discovered", lambda: "250m" in cluster.kubectl("top", "nodes"))
        assert all(node in cluster.kubectl("top", "nodes") for node in cluster.nodes)
