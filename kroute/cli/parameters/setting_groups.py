"""The settings of `kroute run` in the sections of its help, and those that most clusters need."""

from collections.abc import Mapping

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Source of Services": ("--config", "--kubeconfig", "--master", "--manifests"),
    "This node": ("--node-name", "--node-ip", "--dummy-interface", "--strict-arp", "--state-dir", "--proc-sys"),
    "Other service proxies on the node": ("--other-proxies", "--take-over-after"),
    "Load balancing": (
        "--scheduler",
        "--scheduler-flags",
        "--pod-weights",
        "--drain-timeout",
        "--service-proxy-name",
        "--max-virtual-servers",
        "--max-backends",
        "--ipvs-tcp-timeout",
        "--ipvs-tcpfin-timeout",
        "--ipvs-udp-timeout",
    ),
    "Node ports and external addresses": (
        "--nodeport-addresses",
        "--external-ips-on-node-addresses",
        "--external-ip-range",
        "--loadbalancer-ip-range",
        "--strict-external-ips",
        "--service-cidr",
        "--node-address-range",
        "--serve-needed-addresses",
        "--protected-ports",
        "--direct-return",
        "--direct-return-mark",
    ),
    "Masquerading and firewall": (
        "--cluster-cidr",
        "--detect-local-mode",
        "--pod-bridge-interface",
        "--pod-interface-name-prefix",
        "--masquerade-all",
        "--masquerade-exempt",
        "--masquerade-mark",
        "--snat-source",
        "--hairpin",
        "--firewall",
    ),
    "Comparison, repair and clean-up": (
        "--resync-period",
        "--resync-budget",
        "--exclude-cidrs",
        "--cleanup-on-exit",
        "--ipvs-estimation",
        "--ipvs-estimation-nice",
    ),
    "Connection tracking": (
        "--conntrack-max-per-core",
        "--conntrack-min",
        "--conntrack-tcp-be-liberal",
        "--conntrack-tcp-timeout-established",
        "--conntrack-tcp-timeout-close-wait",
        "--conntrack-udp-timeout",
        "--conntrack-udp-timeout-stream",
    ),
    "Logs, metrics and health": (
        "--log-level",
        "--log-format",
        "--metrics-bind-address",
        "--metrics-services",
        "--healthz-bind-address",
        "--own-bind-address",
    ),
}

COMMON = frozenset(
    {
        "--config",
        "--kubeconfig",
        "--master",
        "--manifests",
        "--node-name",
        "--node-ip",
        "--other-proxies",
        "--scheduler",
        "--nodeport-addresses",
        "--external-ips-on-node-addresses",
        "--external-ip-range",
        "--cluster-cidr",
        "--detect-local-mode",
        "--masquerade-all",
        "--firewall",
        "--log-level",
        "--metrics-bind-address",
    }
)
"""The settings that `--help` of `kroute run` shows. `--help-all` shows all."""
