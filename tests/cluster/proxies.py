"""The other service proxies as DaemonSets: kube-proxy as kubeadm deploys it, and kube-router as its manifests do.

kube-router gets the arguments of its `kube-router-proxy-daemonset.yaml`, in which Services are all that it does, and
the account of `kubeadm-kuberouter.yaml`. Two flags are added: the cluster has both address families, and kube-router
masquerades nothing in this set-up unless it is to masquerade everything. In the mode EVERYTHING it is that of
`kubeadm-kuberouter-all-features.yaml`, with its configuration of CNI, and gives out addresses, too.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.cluster.components import SERVICES
from tests.cluster.machines import Cluster
from tests.lab.kubernetes import VERSION
from tests.lab.places import PROJECT
from tests.lab.pod_network import CNI_CONFIGURATION

_PAGE = PROJECT / "docs/migrate-from-kube-proxy.md"
KUBE_PROXY = "kube-proxy"
KUBE_ROUTER = "kube-router"
EVERYTHING = "everything"
BALANCED = "192.0.2.0/28"
"""The addresses that it gives to Services."""
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


def deploy(cluster: Cluster, name: str, mode: str = "", *, by_label: bool = False) -> None:
    """Start a proxy on every node, kube-proxy in a mode, and wait until it says that it is healthy.

    One that runs in another mode is restarted. With `by_label` it stays away from nodes that a label gives to kroute,
    by the patch that the page has.
    """
    *others, daemon_set = _kube_router(cluster, mode) if name == KUBE_ROUTER else _kube_proxy(cluster, mode)
    if by_label:
        found = re.search(r"'(\{.*kroute\.io/service-proxy.*\})'", _PAGE.read_text())
        assert found, "the page has no patch any more"
        patch = ("patch", "--local", "-f", "-", "--type", "merge", "-p", found[1], "-o", "json")
        daemon_set = json.loads(cluster.kubectl(*patch, content=json.dumps(daemon_set)))
    cluster.apply(*others, daemon_set)
    cluster.kubectl("--namespace", "kube-system", "rollout", "status", f"daemonset/{name}", "--timeout=10m")


def delete(cluster: Cluster, name: str) -> None:
    """End a proxy, and forget it."""
    cluster.kubectl("--namespace", "kube-system", "delete", "daemonset", name)
    forget(cluster, name)


def forget(cluster: Cluster, name: str) -> None:
    """Delete what is left when its DaemonSet is deleted: its ConfigMap, its account and the account's rights."""
    kinds = "configmap,serviceaccount,clusterrole,clusterrolebinding"
    cluster.kubectl("--namespace", "kube-system", "delete", kinds, "--selector", f"app={name}")


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
    container: Object = {
        "image": f"registry.k8s.io/kube-proxy:v{VERSION}",
        "command": [
            "/usr/local/bin/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=$(NODE_NAME)",
        ],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 10256}, "periodSeconds": 2},
    }
    files = {"config.conf": json.dumps(configuration)}
    return _deployed(cluster, KUBE_PROXY, "system:node-proxier", container, files)


def _kube_router(cluster: Cluster, mode: str) -> list[Object]:
    does = ["--run-router=false", "--run-firewall=false", "--run-service-proxy=true", "--masquerade-all=true"]
    if mode == EVERYTHING:
        does = ["--run-router=true", "--run-firewall=true", "--run-service-proxy=true", "--bgp-graceful-restart=true"]
        does += ["--run-loadbalancer=true", f"--loadbalancer-ip-range={BALANCED}"]
        does += [f"--service-cluster-ip-range={SERVICES[4]},{SERVICES[6]}"]
    container: Object = {
        "image": "docker.io/cloudnativelabs/kube-router:v2",
        "args": [*does, "--kubeconfig=/var/lib/kube-router/kubeconfig.conf", "--enable-ipv6=true"],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 20244}, "periodSeconds": 2},
    }
    read = ["get", "list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["namespaces", "pods", "services", "nodes", "endpoints"], "verbs": read},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": read},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
    ]
    rules += [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
        {"apiGroups": [""], "resources": ["services/status"], "verbs": ["update"]},
    ]
    role = {**_of(KUBE_ROUTER, "rbac.authorization.k8s.io/v1", "ClusterRole"), "rules": rules}
    files = {"cni-conf.json": json.dumps(CNI_CONFIGURATION)} if mode == EVERYTHING else {}
    *others, daemon_set = _deployed(cluster, KUBE_ROUTER, KUBE_ROUTER, container, files)
    return [role, *others, _with_cni(daemon_set) if mode == EVERYTHING else daemon_set]


def _with_cni(daemon_set: Any) -> Object:
    """The DaemonSet with the init container that puts the configuration of CNI where there is none."""
    pod = daemon_set["spec"]["template"]["spec"]
    [container] = pod["containers"]
    place = {"name": "cni-conf-dir", "mountPath": "/etc/cni/net.d"}
    path = "/etc/cni/net.d/10-kuberouter.conflist"
    copied = f"[ -f {path} ] || cp /var/lib/{KUBE_ROUTER}/cni-conf.json {path}"
    own_name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container["env"] += [own_name, {"name": "KUBE_ROUTER_CNI_CONF_FILE", "value": path}]
    container["volumeMounts"].append(place)
    mounts = [place, container["volumeMounts"][0]]
    command = {"command": ["sh", "-c", copied], "volumeMounts": mounts}
    pod["initContainers"] = [{"name": "install-cni", "image": container["image"], **command}]
    pod["volumes"].append({"name": "cni-conf-dir", "hostPath": {"path": "/etc/cni/net.d"}})
    daemon_set["spec"]["updateStrategy"]["rollingUpdate"] = {"maxUnavailable": 1}
    found: Object = daemon_set
    return found


def _deployed(cluster: Cluster, name: str, role: str, container: Object, files: Mapping[str, str]) -> list[Object]:
    """A proxy's account with this role, its ConfigMap with these files and a kubeconfig, and its DaemonSet."""
    server = {"certificate-authority": f"{_ACCOUNT}/ca.crt", "server": cluster.server}
    kubeconfig = {**_KUBECONFIG, "clusters": [{"name": "default", "cluster": server}]}
    return [
        _of(name, "v1", "ServiceAccount"),
        _binding(name, role),
        {**_of(name, "v1", "ConfigMap"), "data": {**files, "kubeconfig.conf": json.dumps(kubeconfig)}},
        _daemon_set(name, container, json.dumps(files)),
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


def _daemon_set(name: str, container: Object, configuration: str) -> Object:
    """Privileged pods in the network of every node, with the ConfigMap of this name at /var/lib.

    They are restarted with another configuration.
    """
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
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        "template": {
            "metadata": {"labels": {"k8s-app": name}, "annotations": {"configuration": configuration}},
            "spec": pod,
        },
    }
    return {**_of(name, "apps/v1", "DaemonSet"), "spec": spec}
