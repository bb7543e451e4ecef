"""kube-router's flags, and what becomes of each on kroute's command line (its pkg/options/options.go, 2.11)."""

from kroute.migration.flag_table import (
    THE_SAME,
    Flag,
    OtherFlags,
    either,
    needed,
    no_meaning,
    refused,
    renamed,
    same,
    switch,
    verbosity,
)
from kroute.migration.go_values import duration, host_name, networks

_ROUTING = "kroute does no routing; keep kube-router --run-service-proxy=false for it, and leave this out here"
_POLICIES = "kroute enforces no network policies; keep kube-router --run-service-proxy=false, and leave this out here"
_LOADBALANCER = "kroute allocates no LoadBalancer addresses; keep kube-router --run-service-proxy=false for it"
_DSR = "kroute needs no container runtime for direct return: --direct-return (docs/direct-return.md)"
_HEALTH = "kroute's word is --healthz-bind-address ADDRESS:PORT"
_METRICS = "kroute's word is --metrics-bind-address ADDRESS:PORT, and its path is /metrics"
_FAMILIES = "kroute serves the families that the node has an address of; --node-ip says which"
_DRAINS = "kroute always lets connections drain; --drain-timeout says for how long"

_ROUTING_DEFAULTS: dict[str, str | bool] = {
    "advertise-cluster-ip": False,
    "advertise-external-ip": False,
    "advertise-loadbalancer-ip": False,
    "advertise-pod-cidr": True,
    "auto-mtu": True,
    "bgp-graceful-restart": False,
    "bgp-graceful-restart-deferral-time": "6m0s",
    "bgp-graceful-restart-time": "1m30s",
    "bgp-holdtime": "1m30s",
    "bgp-port": "179",
    "cluster-asn": "0",
    "disable-source-dest-check": True,
    "enable-cni": True,
    "enable-ibgp": True,
    "enable-overlay": True,
    "enable-pod-egress": True,
    "gobgp-admin-address": "127.0.0.1",
    "gobgp-admin-port": "50051",
    "injected-routes-sync-period": "1m0s",
    "nodes-full-mesh": True,
    "overlay-encap": "ipip",
    "overlay-encap-port": "5555",
    "overlay-type": "subnet",
    "override-nexthop": False,
    "peer-router-asns": "",
    "peer-router-ips": "",
    "peer-router-multihop-ttl": "0",
    "peer-router-passwords": "",
    "peer-router-passwords-file": "",
    "peer-router-ports": "",
    "router-id": "",
    "routes-sync-period": "5m0s",
    "run-router": True,
}
"""The flags of kube-router's routing. kroute may be started with its defaults, which its manifests repeat."""

_FLAGS: dict[str, Flag] = {
    "hostname-override": renamed("--node-name", write=host_name),
    "ipvs-sync-period": renamed("--resync-period", "5m0s", duration),
    "excluded-cidrs": renamed("--exclude-cidrs", write=networks),
    "service-cluster-ip-range": renamed("--service-cidr", "10.96.0.0/12", networks),
    "service-external-ip-range": renamed("--external-ip-range", write=networks),
    "service-tcp-timeout": renamed("--ipvs-tcp-timeout", "0s", duration),
    "service-tcpfin-timeout": renamed("--ipvs-tcpfin-timeout", "0s", duration),
    "service-udp-timeout": renamed("--ipvs-udp-timeout", "0s", duration),
    "ipvs-graceful-period": renamed("--drain-timeout", "30s", duration),
    "strict-external-ip-validation": switch(
        ["--strict-external-ips"],
        [],
        "`--strict-external-ips`. It is kube-router's default and not kroute's, so set it",
        default=True,
    ),
    "masquerade-all": switch(["--masquerade-all"], [], THE_SAME),
    "nodeport-bindon-all-ip": switch(
        [],
        ["--nodeport-addresses", "primary"],
        "false is `--nodeport-addresses primary`. It is kube-router's default; kroute's is every address",
    ),
    "hairpin-mode": switch(
        ["--hairpin", "on"],
        ["--hairpin", "off"],
        "`--hairpin on` and `--hairpin off`. `off` is kube-router's default; kroute's is `on`",
    ),
    "ipvs-graceful-termination": either(_DRAINS, default=False),
    "ipvs-permit-all": either("kroute leaves what Services serve to the node's own rules", default=True),
    "run-service-proxy": needed("kroute always serves Services: leave this out here, and keep it with kube-router"),
    "run-firewall": refused(_POLICIES, True),
    "run-loadbalancer": refused(_LOADBALANCER, False),
    "enable-ipv4": needed(_FAMILIES),
    "enable-ipv6": either(_FAMILIES, default=False),
    "service-node-port-range": no_meaning(
        "kroute takes each Service's nodePort as the API has it: leave this out", "30000-32767"
    ),
    "cache-sync-timeout": no_meaning("kroute waits for the API server as long as it takes: leave this out", "1m0s"),
    "cleanup-config": refused("kroute's word is `kroute cleanup`", False),
    "health-addr": refused(_HEALTH, ""),
    "health-port": refused(_HEALTH, "20244"),
    "metrics-addr": refused(_METRICS, ""),
    "metrics-path": refused(_METRICS, "/metrics"),
    "metrics-port": refused(_METRICS, "0"),
    "enable-pprof": refused("kroute has no profiling endpoint: leave this out", False),
    "runtime-endpoint": refused(_DSR, ""),
    "v": verbosity(),
    "loadbalancer-default-class": refused(_LOADBALANCER, True),
    "loadbalancer-sync-period": refused(_LOADBALANCER, "1m0s"),
    "iptables-sync-period": refused(_POLICIES, "5m0s"),
    "netpol-default-deny": refused(_POLICIES, False),
    "use-nftables-for-netpol": refused(_POLICIES, False),
    "kubeconfig": same("kubeconfig"),
    "master": same("master"),
    "cluster-cidr": same("cluster-cidr", write=networks),
    "loadbalancer-ip-range": same("loadbalancer-ip-range", write=networks),
    **{name: refused(_ROUTING, default) for name, default in _ROUTING_DEFAULTS.items()},
}

KUBE_ROUTER = OtherFlags("kube-router", _FLAGS)
