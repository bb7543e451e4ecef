"""The real kube-proxy as a DaemonSet, as kubeadm deploys it."""

import json

from tests.cluster.machines import Cluster
from tests.lab.kubernetes import VERSION

MODES = ("ipvs", "iptables")
_POD_RANGES = {4: "10.244.0.0/16", 6: "fd00:10:244::/56"}
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "contexts": [{"name": "default", "context": {"cluster": "default", "namespace": "default", "user": "default"}}],
    "current-context": "default",
    "users": [{"name": "default", "user": {"tokenFile": f"{_ACCOUNT}/token"}}],
}
Object = dict[str, object]


def deploy(cluster: Cluster, mode: str) -> None:
    """Start kube-proxy in a mode on every node, and wait until it says that it is healthy."""
    cluster.apply(*_kube_proxy(cluster, mode))
    cluster.kubectl("--namespace", "kube-system", "rollout", "status", "daemonset/kube-proxy", "--timeout=10m")


def delete(cluster: Cluster) -> None:
    """End kube-proxy, and forget it."""
    cluster.kubectl("--namespace", "kube-system", "delete", "daemonset", "kube-proxy")
    forget(cluster)


def forget(cluster: Cluster) -> None:
    """Delete what is left when its DaemonSet is deleted: its ConfigMap and its account."""
    kinds = "configmap,serviceaccount,clusterrolebinding"
    cluster.kubectl("--namespace", "kube-system", "delete", kinds, "--selector", "app=kube-proxy")


def _kube_proxy(cluster: Cluster, mode: str) -> list[Object]:
    """What `kubeadm init phase addon kube-proxy` makes."""
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": "0.0.0.0",
        "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"},
        "clusterCIDR": ",".join(_POD_RANGES[family] for family in cluster.control.place.families),
        "mode": mode,
    }
    server = {"certificate-authority": f"{_ACCOUNT}/ca.crt", "server": cluster.server}
    kubeconfig = {**_KUBECONFIG, "clusters": [{"name": "default", "cluster": server}]}
    command = ["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"]
    image = f"registry.k8s.io/kube-proxy:v{VERSION}"
    container: Object = {
        "image": image,
        "command": [*command, "--hostname-override=$(NODE_NAME)"],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 10256}, "periodSeconds": 2},
    }
    return [
        _of("kube-proxy", "v1", "ServiceAccount"),
        _binding("kube-proxy", "system:node-proxier"),
        _files("kube-proxy", {"config.conf": json.dumps(configuration), "kubeconfig.conf": json.dumps(kubeconfig)}),
        _daemon_set("kube-proxy", container, len(cluster.nodes)),
    ]


def _of(name: str, version: str, kind: str) -> Object:
    namespace = {} if kind.startswith("Cluster") else {"namespace": "kube-system"}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": {"app": name}, **namespace}}


def _binding(name: str, role: str) -> Object:
    return {
        **_of(name, "rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}],
    }


def _files(name: str, files: dict[str, str]) -> Object:
    return {**_of(name, "v1", "ConfigMap"), "data": files}


def _daemon_set(name: str, container: Object, nodes: int) -> Object:
    """Privileged pods in the network of every node, with the ConfigMap of this name at /var/lib."""
    mounts = [
        {"name": "files", "mountPath": f"/var/lib/{name}"},
        {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
        {"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": True},
    ]
    volumes = [
        {"name": "files", "configMap": {"name": name}},
        {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
        {"name": "lib-modules", "hostPath": {"path": "/lib/modules"}},
    ]
    own = {
        "name": name,
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": True},
        "volumeMounts": mounts,
    }
    pod = {
        "hostNetwork": True,
        "priorityClassName": "system-node-critical",
        "serviceAccountName": name,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{**own, **container}],
        "volumes": volumes,
    }
    spec = {
        "selector": {"matchLabels": {"k8s-app": name}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": nodes}},
        "template": {"metadata": {"labels": {"k8s-app": name}}, "spec": pod},
    }
    return {**_of(name, "apps/v1", "DaemonSet"), "spec": spec}
