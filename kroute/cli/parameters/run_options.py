"""The options of `kroute run`, which other commands take as well, and the settings from their values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kroute.cli.parameters.config_file import CONFIG
from kroute.cli.parameters.options import (
    CLUSTER_CIDR,
    CONNTRACK_OPTIONS,
    DUMMY_INTERFACE,
    DURATION,
    EXCLUDE_CIDRS,
    EXTERNAL_IP_RANGE,
    EXTERNAL_IPS_ON_NODE_ADDRESSES,
    HEALTHZ_BIND_ADDRESS,
    INTERFACE,
    IPVS_TCP_TIMEOUT,
    IPVS_TCPFIN_TIMEOUT,
    IPVS_UDP_TIMEOUT,
    KUBECONFIG,
    LOG_FORMAT,
    LOG_LEVEL,
    MASTER,
    MAX_BACKENDS,
    MAX_VIRTUAL_SERVERS,
    METRICS_BIND_ADDRESS,
    METRICS_SERVICES,
    NETWORKS,
    NODE_ADDRESS_RANGE,
    NODE_NAME,
    OWN_BIND_ADDRESS,
    PROC_SYS,
    PROTECTED_PORTS,
    RESYNC_BUDGET,
    SCHEDULER_FLAGS,
    SERVE_NEEDED_ADDRESSES,
    SERVICE_CIDR,
    STATE_DIR,
    STRICT_EXTERNAL_IPS,
    Command,
    Parsed,
    conntrack_settings,
    ipvs_timeouts,
    list_option,
    option,
)
from kroute.settings import DEFAULTS, FIREWALLS, IGNORE, LOCAL_MODES, SCHEDULER_CHOICES, WAIT, Settings, text
from kroute.settings.text import write_duration, write_switch

OPTIONS = (
    CONFIG,
    KUBECONFIG,
    MASTER,
    option(
        "--manifests",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Read Services and EndpointSlices from the YAML and JSON files of this directory; "
        "no API server is needed.",
    ),
    NODE_NAME,
    list_option(
        "--node-ip",
        "node_ips",
        type=Parsed("IP[,IP]", text.parse_node_ips),
        default=DEFAULTS.node_ips,
        help="This node's own addresses; overrides the Node's.",
    ),
    DUMMY_INTERFACE,
    option(
        "--scheduler",
        type=click.Choice(SCHEDULER_CHOICES),
        default=DEFAULTS.scheduler,
        show_default=True,
        help="IPVS scheduler of Services without annotation; auto: rr, and wrr where weights count.",
    ),
    SCHEDULER_FLAGS,
    option(
        "--service-proxy-name",
        type=Parsed("NAME", text.parse_proxy_name),
        default=DEFAULTS.service_proxy_name,
        show_default=True,
        help="Serve Services with this value of the label service.kubernetes.io/service-proxy-name "
        "besides those without.",
    ),
    list_option(
        "--nodeport-addresses",
        type=Parsed("CIDR[,CIDR]|primary", text.parse_nodeport_addresses),
        default=DEFAULTS.nodeport_addresses,
        help="Serve node ports on these of the node's addresses.  [default: all but loopback and IPv6 link-local]",
    ),
    SERVICE_CIDR,
    EXTERNAL_IP_RANGE,
    list_option(
        "--loadbalancer-ip-range",
        "load_balancer_ip_ranges",
        type=NETWORKS,
        default=DEFAULTS.load_balancer_ip_ranges,
        help="The only networks that LoadBalancer addresses may be in.",
    ),
    STRICT_EXTERNAL_IPS,
    EXTERNAL_IPS_ON_NODE_ADDRESSES,
    NODE_ADDRESS_RANGE,
    SERVE_NEEDED_ADDRESSES,
    PROTECTED_PORTS,
    MAX_VIRTUAL_SERVERS,
    MAX_BACKENDS,
    option(
        "--strict-arp",
        type=click.Choice(["on", "off"], case_sensitive=False),
        default=write_switch(DEFAULTS.strict_arp),
        show_default=True,
        help="Answer ARP only for addresses of the interface that receives the request, and not for VIPs.",
    ),
    option(
        "--direct-return",
        is_flag=True,
        default=DEFAULTS.direct_return,
        help="Let pods answer clients of external addresses themselves, where kroute.io/direct-return asks for it.",
    ),
    option(
        "--direct-return-mark",
        type=Parsed("MARK", text.parse_mark),
        default=hex(DEFAULTS.direct_return_mark),
        show_default=True,
        help="Packet mark bit of packets to the addresses of direct return, while they are routed.",
    ),
    option(
        "--firewall",
        type=click.Choice(FIREWALLS),
        default=DEFAULTS.firewall,
        show_default=True,
        help="What the kernel's firewall is programmed with; auto: what fits this node.",
    ),
    option(
        "--masquerade-all",
        is_flag=True,
        default=DEFAULTS.masquerade_all,
        help="Masquerade every connection to a ClusterIP.",
    ),
    option(
        "--detect-local-mode",
        type=click.Choice(LOCAL_MODES),
        default=DEFAULTS.detect_local_mode,
        show_default=True,
        help="How pods are distinguished from clients outside, whose calls to ClusterIPs are masqueraded.",
    ),
    CLUSTER_CIDR,
    option("--pod-bridge-interface", type=INTERFACE, default=None, help="The pods' bridge, for BridgeInterface."),
    option(
        "--pod-interface-name-prefix",
        type=INTERFACE,
        default=None,
        help="How the names of the pods' interfaces begin, for InterfaceNamePrefix.",
    ),
    option(
        "--snat-source",
        type=click.Choice(["masquerade", "node-ip"]),
        default=DEFAULTS.snat_source,
        show_default=True,
        help="The source of masqueraded packets: the kernel's choice for the interface, or the node's own address.",
    ),
    option(
        "--hairpin",
        type=click.Choice(["on", "off"], case_sensitive=False),
        default=write_switch(DEFAULTS.hairpin),
        show_default=True,
        help="Whether a pod that reaches itself through a Service is masqueraded, so that it gets an answer.",
    ),
    option(
        "--pod-weights",
        is_flag=True,
        default=DEFAULTS.pod_weights,
        help="Weigh pods by their label kroute.io/weight; the pods that have it are watched.",
    ),
    list_option(
        "--masquerade-exempt",
        "masquerade_exemptions",
        type=Parsed("SRC:DST[,...]", text.parse_exemptions),
        default=DEFAULTS.masquerade_exemptions,
        help="Never masquerade from SRC to DST, two networks.",
    ),
    option(
        "--masquerade-mark",
        type=Parsed("MARK", text.parse_mark),
        default=hex(DEFAULTS.masquerade_mark),
        show_default=True,
        help="Packet mark bit of connections to masquerade.",
    ),
    option(
        "--resync-period",
        type=DURATION,
        default=write_duration(DEFAULTS.resync_period),
        show_default=True,
        help="How often the kernel is looked at for changes by others, which are repaired.",
    ),
    RESYNC_BUDGET,
    option(
        "--drain-timeout",
        type=DURATION,
        default=write_duration(DEFAULTS.drain_timeout),
        show_default=True,
        help="Delete a draining TCP real server after this time; 0s waits for its last connection.",
    ),
    EXCLUDE_CIDRS,
    IPVS_TCP_TIMEOUT,
    IPVS_TCPFIN_TIMEOUT,
    IPVS_UDP_TIMEOUT,
    *CONNTRACK_OPTIONS,
    HEALTHZ_BIND_ADDRESS,
    METRICS_BIND_ADDRESS,
    OWN_BIND_ADDRESS,
    METRICS_SERVICES,
    option(
        "--other-proxies",
        type=click.Choice([WAIT, IGNORE]),
        default=DEFAULTS.other_proxies,
        show_default=True,
        help="While another service proxy is at work on the node: wait until it has ended, or serve beside it.",
    ),
    option(
        "--take-over-after",
        type=DURATION,
        default=write_duration(DEFAULTS.take_over_after),
        show_default=True,
        help="For how long a proxy that the cluster knows nothing of must be silent until it counts as ended.",
    ),
    option(
        "--cleanup-on-exit",
        is_flag=True,
        default=DEFAULTS.cleanup_on_exit,
        help="When told to stop, undo everything as `kroute cleanup` does.",
    ),
    option(
        "--ipvs-estimation",
        type=click.Choice(["on", "off", "leave"], case_sensitive=False),
        default=write_switch(DEFAULTS.ipvs_estimation),
        show_default=True,
        help="Whether IPVS sums up the statistics of all its servers every two seconds.",
    ),
    option(
        "--ipvs-estimation-nice",
        type=click.IntRange(-20, 19),
        default=DEFAULTS.ipvs_estimation_nice,
        help="The niceness of that estimation.",
    ),
    STATE_DIR,
    PROC_SYS,
    LOG_FORMAT,
    LOG_LEVEL,
)


def run_options(command: Command) -> Command:
    """Add all of these options to a command, in this order and after its own."""
    for each in reversed(OPTIONS):
        command = each(command)
    return command


def settings_of(values: Mapping[str, Any]) -> Settings:
    """The settings from the values of these options. Raises UsageError if they contradict each other."""
    if values["manifests"] and (values["kubeconfig"] or values["master"]):
        raise click.UsageError("--manifests cannot be used with --kubeconfig or --master: give one source")
    if values["resync_period"] < 1:
        raise click.UsageError("--resync-period must be at least 1s")
    if values["direct_return"] and values["direct_return_mark"] == values["masquerade_mark"]:
        raise click.UsageError("--direct-return-mark and --masquerade-mark must be different bits")
    for mode, name in (
        ("BridgeInterface", "pod_bridge_interface"),
        ("InterfaceNamePrefix", "pod_interface_name_prefix"),
    ):
        if (values["detect_local_mode"] == mode) != bool(values[name]):
            raise click.UsageError(f"--detect-local-mode {mode} and --{name.replace('_', '-')} need each other")
    fields: dict[str, Any] = {
        name: "" if value is None and name.startswith("pod_") else value for name, value in values.items()
    }
    fields |= {name: values[name] == "on" for name in ("hairpin", "strict_arp")}
    fields["ipvs_estimation"] = {"on": True, "off": False, "leave": None}[values["ipvs_estimation"]]
    fields |= {"ipvs_timeouts": ipvs_timeouts(values), "conntrack": conntrack_settings(values)}
    return Settings(**{name: fields[name] for name in Settings.__struct_fields__})
