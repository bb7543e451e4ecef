"""What a cluster has beside its nodes' components: names (DNS)."""

from pathlib import Path

from tests.cluster.web import AGNHOST, Object

_SYSTEM = {"namespace": "kube-system"}


def dns(api_server: str, addresses: list[str], replicas: int = 1) -> list[Object]:
    """Names of the cluster at these addresses, from the API server whose address this is: `dns_server`."""
    script = Path(__file__).with_name("dns_server.py").read_text()
    container = {
        "name": "dns",
        "image": AGNHOST,
        "command": ["python3", "/dns/dns_server.py"],
        "env": _api(api_server),
        "readinessProbe": {"tcpSocket": {"port": 53}, "periodSeconds": 1},
        "volumeMounts": [{"name": "script", "mountPath": "/dns"}],
    }
    pod = {
        "serviceAccountName": "dns",
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 30,
        "containers": [container],
        "volumes": [{"name": "script", "configMap": {"name": "dns"}}],
    }
    labels = {"k8s-app": "kube-dns"}
    ports = [{"name": it.lower(), "port": 53, "protocol": it} for it in ("UDP", "TCP")]
    families = {"clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilyPolicy": "PreferDualStack"}
    return [
        *_account("dns", "system:kube-dns-lab", [("", ["services"]), ("discovery.k8s.io", ["endpointslices"])]),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "dns", **_SYSTEM},
            "data": {"dns_server.py": script},
        },
        _deployment("dns", labels, pod, replicas),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "labels": labels, **_SYSTEM},
            "spec": {"selector": labels, "ports": ports, **families},
        },
    ]


def _api(address: str) -> list[Object]:
    """The variables by which a pod finds the API server without a Service."""
    values = {"HOST": address, "PORT": "6443"}
    return [{"name": f"KUBERNETES_SERVICE_{name}", "value": value} for name, value in values.items()]


def _account(name: str, role: str, watched: list[tuple[str, list[str]]]) -> list[Object]:
    """A service account, a role that may watch these resources of API groups, and the binding of both."""
    rules = [{"apiGroups": [group], "resources": them, "verbs": ["list", "watch"]} for group, them in watched]
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, **_SYSTEM}},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": role}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"lab:{name}"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, **_SYSTEM}],
        },
    ]


def _deployment(name: str, labels: dict[str, str], pod: Object, replicas: int) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels, **_SYSTEM},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
