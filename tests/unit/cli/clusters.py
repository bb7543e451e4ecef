"""Clusters before kroute is installed, as the objects that their API servers have."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kroute.checks.cluster_reader import Get, Query
from kroute.watchers.kubernetes.errors import ApiError
from tests.apiserver.lists import list_objects
from tests.apiserver.resources import Object, parse_path
from tests.apiserver.selectors import select_labels
from tests.apiserver.server import VERSION
from tests.apiserver.store import Store
from tests.unit.migration.test_kube_proxy_configuration import KUBEADM as KUBE_PROXY_CONF

LOAD_BALANCER = "https://lb.example.org:6443"


def kubeconfig(server: str) -> str:
    """A kubeconfig as kubeadm writes it into ConfigMaps."""
    cluster = {"certificate-authority-data": "LS0tLS1CRUdJTg==", "server": server}
    return json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [{"cluster": cluster, "name": ""}]})


def node(
    name: str, number: int = 1, *, pods: str = "10.244", annotations: Mapping[str, str] | None = None, **info: str
) -> Object:
    """A Node with what its kubelet says of it."""
    cidrs = [f"{pods}.{number}.0/24"]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
        "status": {
            "nodeInfo": {
                "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.2.0",
                "kernelVersion": "6.1.0-41-amd64",
                "kubeletVersion": "v1.36.2",
                "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 12 (bookworm)",
                **info,
            }
        },
    }


def daemon_set(
    name: str,
    *containers: Mapping[str, Any],
    namespace: str = "kube-system",
    config_map: str = "",
    nodes: int = 3,
    labels: Mapping[str, str] | None = None,
    os: str = "linux",
) -> Object:
    """A DaemonSet whose pods run on so many Nodes, with the volume of a ConfigMap."""
    volumes = [{"name": "config", "configMap": {"defaultMode": 420, "name": config_map}}] if config_map else []
    spec = {"nodeSelector": {"kubernetes.io/os": os}, "containers": list(containers), "volumes": volumes}
    app = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {"selector": {"matchLabels": app}, "template": {"metadata": {"labels": app}, "spec": spec}},
        "status": {"desiredNumberScheduled": nodes, "currentNumberScheduled": nodes, "numberReady": nodes},
    }


def container(name: str, *arguments: str, **env: str) -> Object:
    """A container that is called like its program."""
    variables = [{"name": key, "value": value} for key, value in env.items()]
    return {"name": name, "image": f"registry.example/{name}:v1", "command": list(arguments), "env": variables}


def config_map(name: str, data: Mapping[str, str], namespace: str = "kube-system") -> Object:
    """A ConfigMap."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def namespace(name: str = "kube-system", enforce: str = "") -> Object:
    """A Namespace, with a Pod Security level if one is given."""
    labels = {"kubernetes.io/metadata.name": name}
    if enforce:
        labels["pod-security.kubernetes.io/enforce"] = enforce
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def api_servers(*addresses: str, port: int = 6443) -> Object:
    """The EndpointSlice that API servers write of themselves (`pkg/controlplane/reconcilers` of Kubernetes)."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


def service_cidr(*cidrs: str) -> Object:
    """The ServiceCIDR that the API server makes of its own flag (1.33 and later)."""
    item = {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}}
    return {**item, "spec": {"cidrs": list(cidrs)}}


def static_pod(component: str, *flags: str, node_name: str = "node1") -> Object:
    """The mirror of a static pod, with the label that kubeadm and RKE2 give it."""
    metadata = {
        "name": f"{component}-{node_name}",
        "namespace": "kube-system",
        "labels": {"component": component, "tier": "control-plane"},
        "annotations": {"kubernetes.io/config.mirror": "1c2f6e", "kubernetes.io/config.source": "file"},
    }
    spec = {"nodeName": node_name, "containers": [container(component, component, *flags)]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def kube_proxy(mode: str = "ipvs", server: str = LOAD_BALANCER, **fields: str) -> list[Object]:
    """kube-proxy as kubeadm installs it: DaemonSet and ConfigMap (`cmd/kubeadm/app/phases/addons/proxy`, 1.36)."""
    conf = KUBE_PROXY_CONF.replace("mode: ipvs", f"mode: {json.dumps(mode)}")
    for name, value in {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf", **fields}.items():
        conf = conf.replace(f'{name}: ""', f"{name}: {value}")
    data = {"config.conf": conf, "kubeconfig.conf": kubeconfig(server)}
    command = ("/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf", "--hostname-override=$(NODE)")
    program = container("kube-proxy", *command)
    return [
        daemon_set("kube-proxy", program, config_map="kube-proxy", labels={"k8s-app": "kube-proxy"}),
        config_map("kube-proxy", data),
    ]


KUBEADM_CONFIG = """\
apiServer: {}
apiVersion: kubeadm.k8s.io/v1beta4
clusterName: kubernetes
controlPlaneEndpoint: lb.example.org:6443
kind: ClusterConfiguration
kubernetesVersion: v1.36.2
networking:
  dnsDomain: cluster.local
  podSubnet: 10.244.0.0/16,fd00:10:244::/56
  serviceSubnet: 10.96.0.0/12,fd00:10:96::/112
"""


def kubeadm(mode: str = "ipvs") -> list[Object]:
    """kubeadm 1.36 with a balanced control plane, flannel and node-local-dns.

    ConfigMaps: `uploadconfig`, `clusterinfo` and `addons/proxy` of cmd/kubeadm/app/phases. DaemonSets: kubeadm's,
    flannel's kube-flannel.yml, and cluster/addons/dns/nodelocaldns. A kube-apiserver 1.36.2 takes all of them, and has
    such an EndpointSlice, ServiceCIDR and Namespace of its own; what is found there is the same.
    """
    return [
        *(node(f"node{number}", number) for number in (1, 2, 3)),
        namespace(),
        api_servers("192.168.123.2", "192.168.123.3", "192.168.123.4"),
        service_cidr("10.96.0.0/12", "fd00:10:96::/112"),
        config_map("cluster-info", {"kubeconfig": kubeconfig(LOAD_BALANCER)}, "kube-public"),
        config_map("kubeadm-config", {"ClusterConfiguration": KUBEADM_CONFIG}),
        *kube_proxy(mode),
        daemon_set(
            "kube-flannel-ds",
            container("kube-flannel", "/opt/bin/flanneld", "--ip-masq"),
            namespace="kube-flannel",
            config_map="kube-flannel-cfg",
        ),
        config_map("kube-flannel-cfg", {"net-conf.json": '{"Network": "10.244.0.0/16"}'}, "kube-flannel"),
        daemon_set("node-local-dns", container("node-cache", "/node-cache")),
    ]


def k3s(servers: int = 1, *server_flags: str) -> list[Object]:
    """K3s with its own flannel, kube-proxy and ServiceLB.

    The annotations are those of K3s's `pkg/nodeconfig` and of its flannel, seen in listings of Nodes; ServiceLB's
    DaemonSets have the label of `pkg/cloudprovider/servicelb.go`. No K3s has run here.
    """
    flannel = {"flannel.alpha.coreos.com/backend-type": "vxlan"}
    of_server = {**flannel, "k3s.io/node-args": json.dumps(["server", *server_flags])}
    of_agent = {**flannel, "k3s.io/node-args": '["agent"]'}
    info = {"kubeletVersion": "v1.32.5+k3s1", "kernelVersion": "5.15.0-140-generic", "osImage": "Ubuntu 22.04.5 LTS"}
    names = [f"server{number + 1}" for number in range(servers)]
    return [
        *(node(name, pods="10.42", annotations=of_server, **info) for name in names),
        node("agent1", pods="10.42", annotations=of_agent, **info),
        namespace(),
        api_servers(*(f"192.168.123.{number + 2}" for number in range(servers))),
        daemon_set("svclb-traefik", container("lb"), labels={"svccontroller.k3s.cattle.io/svcname": "traefik"}),
    ]


def kube_router(*flags: str) -> list[Object]:
    """A cluster by kubeadm without kube-proxy, with the DaemonSet of kube-router 2.11 (daemonset/ there)."""
    arguments = ("--run-router=true", "--run-firewall=true", "--run-service-proxy=true", *flags)
    router = container("kube-router") | {"command": [], "args": list(arguments)}
    return [
        *(node(f"node{number}", number) for number in (1, 2)),
        namespace(),
        api_servers("192.168.123.2"),
        config_map("cluster-info", {"kubeconfig": kubeconfig("https://192.168.123.2:6443")}, "kube-public"),
        config_map("kubeadm-config", {"ClusterConfiguration": KUBEADM_CONFIG}),
        daemon_set("kube-router", router, config_map="kube-router-cfg", nodes=2),
    ]


def cilium(replacement: str = "true") -> list[Object]:
    """Cilium 1.18 in place of kube-proxy, with pools of its own (its chart's cilium-agent and cilium-configmap)."""
    config = {
        "kube-proxy-replacement": replacement,
        "ipam": "cluster-pool",
        "enable-ipv4": "true",
        "enable-ipv6": "false",
        "cluster-pool-ipv4-cidr": "10.0.0.0/8",
    }
    return [
        node("node1"),
        namespace(),
        api_servers("192.168.123.2"),
        service_cidr("10.96.0.0/12"),
        daemon_set("cilium", container("cilium-agent", "cilium-agent", "--config-dir=/tmp/cilium/config-map"), nodes=1),
        config_map("cilium-config", config),
    ]


def calico(*, is_ebpf: bool = False) -> list[Object]:
    """A cluster by kubeadm with Calico by the operator: another pool than kubeadm's (projectcalico.org, v3.30)."""
    pool = {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": "default-ipv4-ippool"}}
    felix = {"apiVersion": "crd.projectcalico.org/v1", "kind": "FelixConfiguration", "metadata": {"name": "default"}}
    return [
        node("node1"),
        namespace(),
        api_servers("192.168.123.2"),
        config_map("kubeadm-config", {"ClusterConfiguration": KUBEADM_CONFIG}),
        *kube_proxy(""),
        daemon_set("calico-node", container("calico-node"), namespace="calico-system", nodes=1),
        {**pool, "spec": {"cidr": "192.168.0.0/16", "ipipMode": "Always", "nodeSelector": "all()"}},
        {**felix, "spec": {"bpfEnabled": is_ebpf}},
    ]


def get_of(objects: Iterable[Object], *, denied: Sequence[str] = (), version: str = "v1.36.2") -> Get:
    """What the stand-in API server answers for these objects, without a server. `denied`: plurals of resources."""
    store = Store()
    for item in objects:
        store.put(item)

    async def get(path: str, query: Query) -> bytes:
        if path == "/version":
            return json.dumps({**VERSION, "gitVersion": version}).encode()
        target = parse_path(path)
        if target is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if target.type.plural in denied:
            raise ApiError(403, "Forbidden", f"{target.type.plural} is forbidden")
        if target.name is None:
            labels = select_labels(query.get("labelSelector", ""))
            return json.dumps(list_objects(store, target, query, labels, watch_cache=True)).encode()
        if target.key not in store.current(target.type):
            raise ApiError(404, "NotFound", f"{target.type.plural} {target.name} not found")
        return json.dumps(store.current(target.type)[target.key]).encode()

    return get
