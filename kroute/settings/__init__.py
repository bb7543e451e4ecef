"""The settings of `kroute run`, checked and typed, with their defaults. Every other module reads them from here.

`text` reads and writes each value as an operator writes it.
"""

from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import msgspec

from kroute.base.schedulers import FALLBACK, SCHEDULERS
from kroute.base.wording import host_port

OUR_PROXY_NAME = "kroute.io"
"""The value of the label `service.kubernetes.io/service-proxy-name` that gives a Service to kroute."""

LOCAL_MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")
"""The ways to tell local pods from all other clients, by the names of kube-proxy's `detectLocalMode`."""

AUTO = "auto"
FIREWALLS = (AUTO, "nftables", "iptables")
"""The backends of `kroute.firewall`; AUTO chooses one that the node has what it needs for."""
SCHEDULER_CHOICES = (AUTO, *SCHEDULERS)
"""The values of `scheduler`; AUTO is `rr`, and `wrr` for a Service for which weights count."""

OVERLAYS = OFF, SUBNET, FULL = "off", "subnet", "full"
"""Which pods of other nodes are reached by tunnels: none, those of nodes in other subnets, all."""
ENCAPSULATIONS = IPIP, FOU = "ipip", "fou"
"""How packets travel in tunnels, by kube-router's names: in IP, or in UDP."""
EGRESS = MASQUERADE, KEEP = "masquerade", "keep"
"""With which address pods call what is outside of their networks: with their node's, or with their own."""

WAIT, IGNORE = "wait", "ignore"
"""What to do while another service proxy is at work on the node, by `--other-proxies`."""

NO_CLASS = "default"
"""In `load_balancer_classes`: Services without `loadBalancerClass`, and those with this one, as in kube-router."""

ALLOCATOR_LEASE = ("kube-system", "kroute-allocator")
"""Namespace and name of the Lease by which agents agree on the one that allocates LoadBalancer addresses."""

PRIMARY = "primary"
"""In `nodeport_addresses`: the node's own address of each family."""

OTHER_VIP_INTERFACES = ("kube-ipvs0", "kube-dummy-if")
"""The interfaces on which kube-proxy and kube-router bind VIPs. While kroute takes over from one of them, the addresses
there do not count as the node's own."""


class PortRange(NamedTuple):
    """Ports from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


PROTECTED_PORTS = tuple(starmap(PortRange, ((22, 22), (2379, 2380), (6443, 6443), (10250, 10250), (10256, 10256))))
"""Those of SSH, etcd, the API server, the kubelet, and the health checks of service proxies."""


class ListenAddress(NamedTuple):
    """Where to listen. An empty `host` means every address of both families."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


class Exemption(msgspec.Struct, frozen=True):
    """Traffic that is never masqueraded: from the network `source` to addresses that clients use in `destination`."""

    source: str
    destination: str

    def __str__(self) -> str:
        return f"{self.source}:{self.destination}"


class Settings(msgspec.Struct, frozen=True):
    """How this agent runs. Networks are in canonical CIDR form, periods in seconds.

    `master` are the URLs of one cluster's API servers, in order of preference.

    `nodeport_addresses` are networks, or PRIMARY alone; empty means every address of the node. `snat_source` is
    "masquerade" (the kernel chooses) or "node-ip". A bind address of None opens no port. `metrics_services` is how many
    Services have their own metrics. `ipvs_estimation` and `ipvs_estimation_nice`: None leaves the kernel's value.

    The time-outs of IPVS, and the limits of the connection tracker, which have the names of kube-proxy's flags, are in
    seconds: 0 (and False) leaves the kernel's value as it is, `conntrack_min` without `conntrack_max_per_core` as well.

    `resync_budget` is the part of one processor that resyncs may take on average; 0.001 is 0.1 %.

    `other_proxies` is WAIT or IGNORE. `take_over_after` is for how long a proxy that the cluster does not know of must
    be silent until it counts as ended.

    `allocate_load_balancer_ips`: whether this agent may be the one that gives Services of `load_balancer_classes`
    addresses of `load_balancer_ip_ranges`.

    `pod_weights`: whether Pods with the label `kroute.io/weight` are watched. `network_policies`: whether
    NetworkPolicies are enforced; all Pods, Namespaces and policies are watched then. Only with it count
    `policy_cuts_connections`, whether connections end that policies do not allow any more, `policy_default_deny`,
    whether addresses of the Node's `podCIDRs` are closed that are of no known pod, and `policy_log`: whether refused
    packets are logged, by way of `policy_log_group` of nfnetlink_log. Its default is that of no program known, and the
    port of `own_bind_address`.

    `pod_network`: whether this node's pods get addresses from its `podCIDRs` and reach those of other nodes. Only with
    it count `overlay` (OVERLAYS), `overlay_encap` (ENCAPSULATIONS), `pod_egress` (KEEP or MASQUERADE), `pod_mtu`
    (None: found), and where the configuration of CNI is.

    `max_virtual_servers` and `max_backends` bound what one Service may ask for; the latter counts the real servers and
    source ranges of all its virtual servers together.

    The default `dummy_interface` has kube-proxy's name in its IPVS mode, because other programs know
    VIPs by it: Calico applies its policies to IPVS's packets only where it exists (docs/neighbours.md).

    The default ports of `healthz_bind_address` and `metrics_bind_address` are kube-proxy's, so that probes, scrapers
    and firewalls need no change. kube-proxy holds them until it has ended, and kroute serves them only after that. So
    `own_bind_address` is a port of kroute's own, for the probes of its Pod.
    """

    node_name: str
    kubeconfig: Path | None = None
    master: tuple[str, ...] = ()
    manifests: Path | None = None
    node_ips: tuple[str, ...] = ()
    dummy_interface: str = "kube-ipvs0"
    scheduler: str = AUTO
    scheduler_flags: tuple[str, ...] = FALLBACK
    service_proxy_name: str = OUR_PROXY_NAME
    nodeport_addresses: tuple[str, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    external_ip_ranges: tuple[str, ...] = ()
    load_balancer_ip_ranges: tuple[str, ...] = ()
    allocate_load_balancer_ips: bool = False
    load_balancer_classes: tuple[str, ...] = (NO_CLASS, "kroute.io", "kube-router")
    strict_external_ips: bool = False
    external_ips_on_node_addresses: bool = False
    node_address_ranges: tuple[str, ...] = ()
    serve_needed_addresses: tuple[str, ...] = ()
    protected_ports: tuple[PortRange, ...] = PROTECTED_PORTS
    max_virtual_servers: int = 5000
    max_backends: int = 50_000
    strict_arp: bool = True
    direct_return: bool = False
    direct_return_mark: int = 0x4
    firewall: str = AUTO
    network_policies: bool = False
    policy_cuts_connections: bool = False
    policy_default_deny: bool = False
    policy_log: bool = False
    policy_log_group: int = 10247
    announce: bool = False
    advertise_cluster_ip: bool = False
    advertise_external_ip: bool = False
    advertise_loadbalancer_ip: bool = False
    advertise_pod_cidr: bool = False
    cluster_asn: int = 64512
    nodes_full_mesh: bool = False
    router_id: str | None = None
    peer_router_ips: tuple[str, ...] = ()
    peer_router_asns: tuple[int, ...] = ()
    peer_router_ports: tuple[int, ...] = ()
    peer_router_multihop_ttl: int = 0
    peer_passwords: Path | None = None
    peer_ttl_security: bool = False
    override_nexthop: bool = False
    bgp_port_number: int = 179
    bgp_holdtime: float = 90.0
    bgp_graceful_restart_time: float = 120.0
    bfd: bool = False
    bfd_interval: float = 1.0
    bfd_multiplier: int = 3
    withdraw_grace: float = 2.0
    bird_directory: Path = Path("/run/bird")
    pod_network: bool = False
    overlay: str = SUBNET
    overlay_encap: str = IPIP
    overlay_encap_port_number: int = 5555
    pod_egress: str = MASQUERADE
    pod_mtu: int | None = None
    cni_directory: Path = Path("/etc/cni/net.d")
    masquerade_all: bool = False
    detect_local_mode: str = "ClusterCIDR"
    cluster_cidrs: tuple[str, ...] = ()
    pod_bridge_interface: str = ""
    pod_interface_name_prefix: str = ""
    snat_source: str = "masquerade"
    hairpin: bool = True
    pod_weights: bool = False
    masquerade_exemptions: tuple[Exemption, ...] = ()
    masquerade_mark: int = 0x4000
    resync_period: float = 30.0
    resync_budget: float = 0.001
    drain_timeout: float = 0.0
    exclude_cidrs: tuple[str, ...] = ()
    ipvs_tcp_timeout: int = 0
    ipvs_tcpfin_timeout: int = 0
    ipvs_udp_timeout: int = 0
    conntrack_max_per_core: int = 0
    conntrack_min: int = 0
    conntrack_tcp_be_liberal: bool = False
    conntrack_tcp_timeout_established: int = 0
    conntrack_tcp_timeout_close_wait: int = 0
    conntrack_udp_timeout: int = 0
    conntrack_udp_timeout_stream: int = 0
    healthz_bind_address: ListenAddress | None = ListenAddress("", 10256)
    metrics_bind_address: ListenAddress | None = ListenAddress("127.0.0.1", 10249)
    own_bind_address: ListenAddress | None = ListenAddress("127.0.0.1", 10247)
    metrics_services: int = 1000
    ipvs_estimation: bool | None = None
    ipvs_estimation_nice: int | None = None
    state_dir: Path = Path("/run/kroute")
    proc_sys: Path = Path("/proc/sys")
    cleanup_on_exit: bool = False
    other_proxies: str = WAIT
    take_over_after: float = 30.0
    log_format: str = "console"
    log_level: str = "info"

    @property
    def usual_scheduler(self) -> str:
        """The scheduler of a Service for which nothing chooses or needs another one."""
        return SCHEDULERS[0] if self.scheduler == AUTO else self.scheduler

    @property
    def refusals_logged_to(self) -> int | None:
        """The group of nfnetlink_log for what network policies refuse; None: that is not logged."""
        return self.policy_log_group if self.network_policies and self.policy_log else None

    @property
    def cni_file(self) -> Path:
        """The configuration of CNI that kroute writes."""
        return self.cni_directory / "10-kroute.conflist"

    @property
    def tunnel_port(self) -> int:
        """The port of UDP by which packets travel between nodes; 0: they do not."""
        return self.overlay_encap_port_number if self.overlay != OFF and self.overlay_encap == FOU else 0

    @property
    def masquerades_pods(self) -> bool:
        """Whether pods call what is outside of their networks with their node's address."""
        return self.pod_network and self.pod_egress == MASQUERADE

    @property
    def bird_socket(self) -> Path:
        """The control socket of BIRD, with its usual name."""
        return self.bird_directory / "bird.ctl"

    @property
    def bird_configuration(self) -> Path:
        """The configuration that kroute writes for BIRD."""
        return self.bird_directory / "kroute.conf"

    def protects(self, port: int) -> bool:
        """Whether this port is protected: no Service may use it on a node's own address."""
        return any(first <= port <= last for first, last in self.protected_ports)


DEFAULTS = Settings(node_name="")
"""The defaults. The node's name has none here: the command line takes the host's."""
