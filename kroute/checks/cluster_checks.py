"""What an installation would meet in a cluster: versions, nodes, the Namespace, other service proxies, CNI plugins.

Programs are recognised by the containers of their DaemonSets. What each expects of kroute: docs/neighbours.md.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from kroute.checks.cluster_objects import ClusterNode, Container, DaemonSet
from kroute.checks.cluster_proxies import CONFIGURED
from kroute.checks.cluster_reader import Cluster, ConfigMapKey, flags_of, server_flags
from kroute.checks.finding import Finding, Level, failed, ok, warning
from kroute.checks.running_proxies import ANTREA, CILIUM, ROUTER_ONLY

VERSION, NODES, NAMESPACE, PROXY, CNI, NEIGHBOURS = "version", "nodes", "namespace", "proxy", "cni", "neighbours"

OLDEST, NEWEST = (1, 30), (1, 37)
"""The Kubernetes versions by whose schemas the manifests are valid (tests/unit/kubernetes_schemas.py)."""
OLDEST_KERNEL = (6, 1)
"""The oldest kernel in the lab."""
MOST_NAMED = 5
"""Nodes or versions that one finding names."""

_ONE_PROXY = "leave Services to it and do not install kroute, or turn that off first (docs/neighbours.md)"
_OVN = "OVN-Kubernetes serves Services itself ({where})"
_ENFORCE = "pod-security.kubernetes.io/enforce"
_YES = frozenset({"true", "1", "t"})


def check_cluster(cluster: Cluster) -> list[Finding]:
    """Every finding that needs no translation of another proxy's configuration, kube-proxy's own left out."""
    return [
        check_version(cluster.version),
        *check_nodes(cluster.nodes),
        *check_namespace(cluster),
        *check_kroute(cluster),
        *check_cni(cluster),
        *check_neighbours(cluster),
    ]


def check_version(version: str) -> Finding:
    """Whether kroute's manifests are made for this version of the API."""
    found = _numbers(version.removeprefix("v"))
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
    if found is None:
        return warning(VERSION, f"the API server calls its version {version!r}", f"use Kubernetes {oldest} to {newest}")
    if found < OLDEST:
        message = f"Kubernetes {version} is older than {oldest}, for which the chart and the manifests are made"
        return failed(VERSION, message, f"upgrade the cluster to {oldest} or later")
    if found > NEWEST:
        message = f"Kubernetes {version} is newer than {newest}, the newest whose API kroute was compared with"
        return warning(VERSION, message, "look for a newer kroute")
    return ok(VERSION, f"Kubernetes {version}: kroute is for {oldest} to {newest}")


def check_nodes(nodes: Sequence[ClusterNode]) -> list[Finding]:
    """Kernels, operating systems and architectures, by what the kubelets say."""
    linux = [node for node in nodes if node.info.operating_system in {"linux", ""}]
    if not linux:
        return [warning(NODES, "no Node is known", "run `kroute check` on a node after the installation")]
    kernels, systems, machines = (
        _counted([getattr(node.info, field) or "?" for node in linux])
        for field in ("kernel_version", "os_image", "architecture")
    )
    found = [ok(NODES, f"{_plural(len(linux), 'Node')}: Linux {kernels}; {systems}; {machines}")]
    versions = {node.info.kernel_version for node in linux}
    if old := sorted(version for version in versions if (_numbers(version) or OLDEST_KERNEL) < OLDEST_KERNEL):
        message = f"Linux {_listed(old)} is older than {'.'.join(map(str, OLDEST_KERNEL))}, the oldest that is tested"
        found.append(warning(NODES, message, "install on one such node first, and run `kroute check` there"))
    if others := sorted({node.info.architecture for node in linux} - {"amd64", ""}):
        message = f"some Nodes are {_listed(others)}: the tests that send packets run on amd64 only"
        found.append(warning(NODES, message, "build the image for each architecture (docs/release.md)"))
    if windows := len(nodes) - len(linux):
        message = f"{_plural(windows, 'Node')} without Linux: kroute is not for them, and the chart leaves them out"
        found.append(ok(NODES, message))
    return found


def _numbers(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", version)
    return (int(match[1]), int(match[2])) if match else None


def check_namespace(cluster: Cluster) -> list[Finding]:
    """Whether Pod Security Admission would take kroute's pods (`pod-security.kubernetes.io/enforce`).

    They are in the host's network, have NET_ADMIN and mount directories of the host, which `baseline` forbids.
    """
    name, labels = cluster.namespace, cluster.namespace_labels
    if cluster.namespace_is_missing:
        return [warning(NAMESPACE, f"there is no Namespace {name}", "install with `--create-namespace`")]
    if labels is None:
        return []
    level = labels.get(_ENFORCE, "")
    if level in {"baseline", "restricted"}:
        message = f"{name} has {_ENFORCE}={level}: its pods may not use the host's network, so no pod would start"
        next_step = f"run `kubectl label namespace {name} {_ENFORCE}=privileged --overwrite`, or choose another one"
        return [failed(NAMESPACE, message, next_step)]
    said = f"has {_ENFORCE}={level}" if level else "has no Pod Security level of its own, so the API server's holds"
    return [ok(NAMESPACE, f"{name} {said}")]


def check_kroute(cluster: Cluster) -> list[Finding]:
    """Whether kroute is there already."""
    installed = [found for found in cluster.daemon_sets if found.labels.get("app.kubernetes.io/name") == "kroute"]
    return [ok(PROXY, f"kroute is installed already: {_where(daemon_set)}") for daemon_set in installed]


def check_cni(cluster: Cluster) -> list[Finding]:
    """The CNI plugins, by their DaemonSets, and what each needs beside kroute."""
    known: dict[str, Finding] = {}
    for program, check in _CNI_PLUGINS.items():
        for plugin in cluster.running(program):
            known.setdefault(str(plugin.metadata.key), check(cluster, plugin))
    for program, (level, message, next_step) in _PLAIN_PLUGINS.items():
        for plugin in cluster.running(program):
            found = Finding(CNI, level, message.format(where=_where(plugin)), next_step)
            known.setdefault(str(plugin.metadata.key), found)
    if known:
        return list(known.values())
    if any("flannel.alpha.coreos.com/backend-type" in node.annotations for node in cluster.nodes):
        return [ok(CNI, "flannel, as a part of K3s: it needs nothing from kroute")]
    if not cluster.daemon_sets:
        return [warning(CNI, "no DaemonSet is known, so no CNI plugin", "look it up in docs/neighbours.md")]
    return [warning(CNI, "no DaemonSet is that of a CNI plugin that kroute knows", "look it up in docs/neighbours.md")]


def _calico(cluster: Cluster, daemon_set: DaemonSet) -> Finding:
    node = daemon_set.pod.container("calico-node")
    switch = node.variable("FELIX_BPFENABLED").lower() if node else ""
    if switch in _YES or (not switch and cluster.felix_is_ebpf):
        message = f"Calico serves Services itself, by its eBPF data plane ({_where(daemon_set)})"
        return failed(CNI, message, "set bpfEnabled to false in the FelixConfiguration, or do not install kroute")
    name = "Canal (Calico's policies, flannel's network)" if daemon_set.pod.container("kube-flannel") else "Calico"
    return ok(CNI, f"{name}: {_where(daemon_set)}; its policies need --dummy-interface kube-ipvs0, the default")


def _cilium(cluster: Cluster, daemon_set: DaemonSet) -> Finding:
    data = cilium_config(cluster, daemon_set)
    if data is None:
        message = f"Cilium: {_where(daemon_set)}; its ConfigMap cilium-config is not known"
        return warning(CNI, message, "make sure that kube-proxy-replacement is false there")
    _, key, replaces = CONFIGURED[CILIUM]
    value = data.get(key, "false").lower()
    if replaces.search(value):
        return failed(CNI, f"Cilium serves Services itself: {key} is {value} ({_where(daemon_set)})", _ONE_PROXY)
    if value not in {"false", "disabled", ""}:
        message = f"Cilium serves some kinds of Services itself: {key} is {value} ({_where(daemon_set)})"
        return warning(CNI, message, f"set {key} to false in cilium-config")
    return ok(CNI, f"Cilium without {key}: {_where(daemon_set)}; it needs nothing from kroute")


def cilium_config(cluster: Cluster, daemon_set: DaemonSet) -> Mapping[str, str] | None:
    """The ConfigMap `cilium-config` beside this DaemonSet, if it was read."""
    return cluster.config_maps.get(ConfigMapKey(daemon_set.metadata.namespace, "cilium-config"))


def _antrea(cluster: Cluster, daemon_set: DaemonSet) -> Finding:
    _, key, replaces = CONFIGURED[ANTREA]
    namespace = daemon_set.metadata.namespace
    beside = [data for found, data in cluster.config_maps.items() if found.namespace == namespace and key in data]
    if not beside:
        message = f"Antrea: {_where(daemon_set)}; its {key} is not known"
        return warning(CNI, message, "make sure that antreaProxy.proxyAll is false there")
    if replaces.search(beside[0][key]):
        message = f"Antrea serves Services itself: antreaProxy.proxyAll is true ({_where(daemon_set)})"
        return failed(CNI, message, _ONE_PROXY)
    return ok(CNI, f"Antrea without proxyAll: {_where(daemon_set)}; it needs nothing from kroute")


def _kube_router(_cluster: Cluster, daemon_set: DaemonSet) -> Finding:
    router = daemon_set.pod.container("kube-router") or Container()
    message = f"kube-router: {_where(daemon_set)}"
    ranges = ("service-cluster-ip-range", "service-external-ip-range", "service-node-port-range")
    if (router.flag("run-firewall") or "true").lower() in _YES and router.flag(ranges[0]) is None:
        next_step = f"give it {', '.join(f'--{name}' for name in ranges)}, so that its firewall lets Services pass"
        return warning(CNI, f"{message}; its firewall does not know the Service range", next_step)
    return ok(CNI, f"{message}; its routes and policies stay")


def serves(router: Container) -> bool:
    """Whether a kube-router serves Services, by the rule of the agent."""
    return not ROUTER_ONLY & set(router.arguments)


_CNI_PLUGINS: Mapping[str, Callable[[Cluster, DaemonSet], Finding]] = {
    "calico-node": _calico,
    "cilium-agent": _cilium,
    "antrea-agent": _antrea,
    "kube-router": _kube_router,
}
"""CNI plugins whose configuration decides, by a container of their DaemonSets."""

_PLAIN_PLUGINS: Mapping[str, tuple[Level, str, str]] = {
    "weave": (
        Level.WARNING,
        "Weave Net: {where}; its ingress policies do not hold for calls through an IPVS proxy",
        "with kube-proxy's IPVS mode they do not, either: use another plugin for policies",
    ),
    "ovnkube-node": (Level.FAIL, _OVN, _ONE_PROXY),
    "ovnkube-controller": (Level.FAIL, _OVN, _ONE_PROXY),
    "cni-server": (
        Level.WARNING,
        "Kube-OVN: {where}; unless its --enable-lb is false, it serves the ClusterIPs for pods",
        "set enable-lb to false in kube-ovn-controller, so that kroute serves them",
    ),
    "kindnet-cni": (Level.OK, "kindnet: {where}; not tested beside kroute", ""),
    "aws-node": (Level.OK, "Amazon's VPC CNI plugin: {where}; not tested beside kroute", ""),
    "kube-flannel": (Level.OK, "flannel: {where}; it needs nothing from kroute", ""),
}
"""The others, with their finding. Canal has flannel's container, too, and is Calico."""


def check_neighbours(cluster: Cluster) -> list[Finding]:
    """Programs that a setting of kroute exists for."""
    found = [
        ok(NEIGHBOURS, f"node-local-dns: {_where(daemon_set)}; kroute leaves it the address of the DNS Service")
        for daemon_set in cluster.running("node-cache")
    ]
    if bound := binding_node_addresses(cluster):
        message = f"{bound} gives Services addresses of nodes: they need --external-ips-on-node-addresses"
        found.append(ok(NEIGHBOURS, f"{message}, which `kubectl kroute values` sets"))
    return found


def binding_node_addresses(cluster: Cluster) -> str:
    """The program that makes external addresses of Services a node's own; empty without one."""
    if any("svccontroller.k3s.cattle.io/svcname" in daemon_set.labels for daemon_set in cluster.daemon_sets):
        return "K3s ServiceLB"
    return "kube-vip" if cluster.running("kube-vip") else ""


def embedded_kube_proxy(cluster: Cluster) -> tuple[list[ClusterNode], list[ClusterNode]]:
    """The Nodes whose K3s or RKE2 runs a kube-proxy, and those where it is disabled."""
    nodes = [node for node in cluster.nodes if flags_of(node) is not None]
    switches = [flags.flag("disable-kube-proxy") or "false" for flags in server_flags(cluster)]
    is_off = any(switch.lower() in _YES for switch in switches)  # agents take this setting from the servers
    return ([], nodes) if is_off else (nodes, [])


def _where(daemon_set: DaemonSet) -> str:
    return f"DaemonSet {daemon_set.metadata.key}, on {_plural(daemon_set.status.desired_number_scheduled, 'Node')}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _counted(values: Sequence[str]) -> str:
    counts = Counter(values)
    return _listed([f"{value} ({count})" if len(counts) > 1 else value for value, count in counts.most_common()])


def _listed(values: Iterable[str]) -> str:
    every = list(values)
    more = len(every) - MOST_NAMED
    return ", ".join(every[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
