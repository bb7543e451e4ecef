"""Where a cluster's API servers, pods and Services are, by the objects that say so; each answer with its source."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kroute.base.wording import host_port
from kroute.checks.cluster_checks import cilium_config
from kroute.checks.cluster_objects import Container
from kroute.checks.cluster_reader import (
    CLUSTER_INFO,
    KUBEADM_CONFIG,
    OF_API_SERVERS,
    Cluster,
    flags_of,
    mapping_of,
    server_flags,
)
from kroute.model.addresses import canonical, is_subnet_of

_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?")
_LOCAL_BALANCERS = {"k3s": 6444, "rke2": 6443}
"""Where K3s and RKE2 balance over the API servers on every node, by the annotations' prefix."""
_K3S_PODS, _K3S_SERVICES = "10.42.0.0/16", "10.43.0.0/16"
"""The defaults of K3s and RKE2."""


class Address(NamedTuple):
    """Where the API server is."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


def api_servers(cluster: Cluster, kubeconfigs: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[list[Address], str]:
    """Where nodes find the API server, and the source. No address if nothing says it.

    What balances over several of them comes before their own addresses. `kubeconfigs` are those of programs that run on
    every node, with their sources.
    """
    own = [Address(*endpoint) for endpoint in cluster.endpoints]
    cluster_info = mapping_of(cluster.config_maps.get(CLUSTER_INFO, {}).get("kubeconfig", ""))
    named = [(address, source) for source, content in kubeconfigs if (address := _server(content)) is not None]
    if (address := _server(cluster_info)) is not None and not _is_loopback(address.host):  # that of another machine
        named.insert(0, (address, str(CLUSTER_INFO)))
    own_hosts = {address.host for address in own}
    for address, source in named:
        if address.host not in own_hosts:
            return [address], source
    if (local := _local_balancer(cluster)) is not None:
        servers = own if len(own) > 1 else []  # on a server, the local address fails with its own API server
        return [local, *servers], "the address that K3s or RKE2 has on every node for the API server"
    return (own, OF_API_SERVERS) if own else ([], "")  # what was named is among its own


def _server(kubeconfig: Mapping[str, Any]) -> Address | None:
    """The address of a kubeconfig's first cluster."""
    match kubeconfig.get("clusters"):
        case [{"cluster": {"server": str(url)}}, *_]:
            pass
        case _:
            return None
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    host = parts.hostname or ""
    known = canonical(host) or (host if _HOST.fullmatch(host) else None)
    return None if known is None else Address(known, port)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _local_balancer(cluster: Cluster) -> Address | None:
    """The address of K3s's or RKE2's own balancer, or server, if every Node has it, with the default ports."""
    found = set()
    for node in cluster.nodes:
        flags = flags_of(node)
        if flags is None or flags.flag("lb-server-port") or flags.flag("https-listen-port"):
            return None
        found |= {port for name, port in _LOCAL_BALANCERS.items() if f"{name}.io/node-args" in node.annotations}
    return Address("127.0.0.1", found.pop()) if len(found) == 1 else None


def pod_networks(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Every source that names the networks of all pods, the most telling first."""
    yield _kubeadm(cluster, "podSubnet")
    yield "flags of kube-controller-manager", _static_flag(cluster, "kube-controller-manager", "cluster-cidr")
    yield _k3s(cluster, "cluster-cidr", _K3S_PODS)
    for key, data in cluster.config_maps.items():
        network = mapping_of(data.get("net-conf.json", "")).get("Network")
        yield f"{key}, net-conf.json", network if isinstance(network, str) else ""


def pools_of_plugins(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """The networks from which a CNI plugin itself gives addresses to pods, without regard to the Nodes' podCIDRs."""
    for pool in cluster.calico_pools:
        yield pool, "Calico's IPPools"
    for daemon_set in cluster.running("cilium-agent"):
        data = cilium_config(cluster, daemon_set) or {}
        if data.get("ipam") == "cluster-pool":
            for family in ("ipv4", "ipv6"):
                if data.get(f"enable-{family}", "true") == "true":
                    for pool in data.get(f"cluster-pool-{family}-cidr", "").split():
                        yield pool, "ConfigMap cilium-config"
    for daemon_set in cluster.running("weave"):
        container = daemon_set.pod.container("weave") or Container()
        yield container.variable("IPALLOC_RANGE") or "10.32.0.0/12", "Weave Net's IPALLOC_RANGE, or its default"


def service_ranges(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Every source that names the Service ranges of a cluster without ServiceCIDR objects."""
    yield _kubeadm(cluster, "serviceSubnet")
    yield "flags of kube-apiserver", _static_flag(cluster, "kube-apiserver", "service-cluster-ip-range")
    yield _k3s(cluster, "service-cidr", _K3S_SERVICES)


def _kubeadm(cluster: Cluster, field: str) -> tuple[str, str]:
    """A field of `networking` in kubeadm's ClusterConfiguration."""
    content = mapping_of(cluster.config_maps.get(KUBEADM_CONFIG, {}).get("ClusterConfiguration", ""))
    match content.get("networking"):
        case {**fields} if isinstance(found := fields.get(field), str):
            return f"{KUBEADM_CONFIG}, networking.{field}", found
    return "", ""


def _static_flag(cluster: Cluster, program: str, name: str) -> str:
    for pod in cluster.static_pods:
        container = pod.spec.container(program)
        if container and (value := container.flag(name)):
            return value
    return ""


def _k3s(cluster: Cluster, flag: str, default: str) -> tuple[str, str]:
    """A setting of the servers of K3s or RKE2."""
    servers = server_flags(cluster)
    given = next((value for flags in servers if (value := flags.flag(flag))), "")
    if given:
        return f"--{flag} of K3s or RKE2", given
    return (f"the default of K3s and RKE2 for --{flag}", default) if servers else ("", "")


def is_within(network: str, others: Iterable[str]) -> bool:
    try:
        return any(is_subnet_of(ip_network(network), ip_network(other)) for other in others)
    except ValueError:
        return False
