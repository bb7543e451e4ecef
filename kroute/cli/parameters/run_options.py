"""The settings of `kroute run`, which other commands take as well, and `Settings` from their values."""

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from kroute.base import logs
from kroute.cli.parameters.config_file import read_config
from kroute.cli.parameters.options import (
    ABSOLUTE_DIRECTORY,
    ASNS,
    BIND_ADDRESS,
    CLASSES,
    CONNTRACK_TIMEOUT,
    DEFAULT_FLAGS,
    DIRECTORY,
    DURATION,
    EXEMPTIONS,
    FILE,
    INTERFACE,
    LEVEL,
    MARK,
    NETWORKS,
    NODE_IPS,
    NODE_PORT_ADDRESSES,
    ON_OFF,
    PORTS,
    PROXY_NAME,
    ROUTER_ID,
    ROUTER_IPS,
    ROUTER_PORTS,
    SCHEDULER_FLAGS,
    SERVERS,
    SHARE,
    TIMEOUT,
    Command,
    Setting,
    option,
)
from kroute.settings import (
    EGRESS,
    ENCAPSULATIONS,
    FIREWALLS,
    IGNORE,
    LOCAL_MODES,
    OVERLAYS,
    SCHEDULER_CHOICES,
    WAIT,
    Settings,
)

_COUNT = click.IntRange(min=1)
_CONNECTIONS = click.IntRange(0, 1 << 30)
_HOLD_TIMES, _RESTART_TIMES, _BFD_INTERVALS = (3, 65535), (0, 4095), (0.001, 60)
"""Seconds that BGP and BFD allow (RFC 4271, 4724, and a limit of kroute's)."""

GROUPS: Mapping[str, tuple[Setting, ...]] = {
    "Source of Services": (
        Setting(
            "--config",
            click.Path(dir_okay=False, path_type=Path),
            "YAML file with the same names as the flags; flags and variables take precedence over it.",
            more={"callback": read_config, "is_eager": True, "expose_value": False},
        ),
        Setting("--kubeconfig", FILE, "How to reach the API server."),
        Setting(
            "--master",
            SERVERS,
            "The API server's address; overrides the kubeconfig's and the Pod's. Of several, one that works is used.",
        ),
        Setting(
            "--manifests",
            DIRECTORY,
            "Read Services and EndpointSlices from the YAML and JSON files of this directory; no API server is needed.",
        ),
    ),
    "This node": (
        Setting(
            "--node-name",
            click.STRING,
            "The Node object of this node.  [default: the host name]",
            more={"default": socket.gethostname},
        ),
        Setting("--node-ip", NODE_IPS, "This node's own addresses; overrides the Node's."),
        Setting("--dummy-interface", INTERFACE, "The interface that carries the VIPs."),
        Setting(
            "--strict-arp",
            ON_OFF,
            "Answer ARP only for addresses of the interface that receives the request, and not for VIPs.",
        ),
        Setting(
            "--state-dir",
            click.Path(file_okay=False, path_type=Path),
            "Where the ledger and the agent's socket are kept; must live as long as the kernel's state (tmpfs).",
        ),
        Setting(
            "--proc-sys",
            DIRECTORY,
            "Where sysctls are read and written: a container's own /proc/sys is read-only, so it is given the host's.",
        ),
    ),
    "Other service proxies on the node": (
        Setting(
            "--other-proxies",
            click.Choice([WAIT, IGNORE]),
            "While another service proxy is at work on the node: wait until it has ended, or serve beside it.",
        ),
        Setting(
            "--take-over-after",
            DURATION,
            "For how long a proxy that the cluster knows nothing of must be silent until it counts as ended.",
        ),
    ),
    "Load balancing": (
        Setting(
            "--scheduler",
            click.Choice(SCHEDULER_CHOICES),
            "IPVS scheduler of Services without annotation; auto: rr, and wrr where weights count.",
        ),
        Setting("--scheduler-flags", SCHEDULER_FLAGS, "Flags of the schedulers sh and mh."),
        Setting(
            "--pod-weights", None, "Weigh pods by their label kroute.io/weight; the pods that have it are watched."
        ),
        Setting(
            "--drain-timeout",
            DURATION,
            "Delete a draining TCP real server after this time; 0s waits for its last connection.",
        ),
        Setting(
            "--service-proxy-name",
            PROXY_NAME,
            "Serve Services with this value of the label service.kubernetes.io/service-proxy-name besides those "
            "without.",
        ),
        Setting("--max-virtual-servers", _COUNT, "Virtual servers that one Service may ask for on a machine."),
        Setting("--max-backends", _COUNT, "Real servers of all virtual servers of one Service together."),
        Setting("--ipvs-tcp-timeout", TIMEOUT, "Idle time-out of TCP connections; 0s: the kernel's."),
        Setting("--ipvs-tcpfin-timeout", TIMEOUT, "The same for TCP connections after a FIN."),
        Setting("--ipvs-udp-timeout", TIMEOUT, "The same for UDP."),
    ),
    "Node ports and external addresses": (
        Setting(
            "--nodeport-addresses",
            NODE_PORT_ADDRESSES,
            "Serve node ports on these of the node's addresses.  [default: all but loopback and IPv6 link-local]",
        ),
        Setting(
            "--external-ips-on-node-addresses",
            None,
            "Serve external IPs and LoadBalancer addresses that are a node's own on that node, as kube-proxy does.",
        ),
        Setting("--external-ip-range", NETWORKS, "The only networks that external IPs may be in."),
        Setting("--loadbalancer-ip-range", NETWORKS, "The only networks that LoadBalancer addresses may be in."),
        Setting(
            "--allocate-load-balancer-ips",
            None,
            "Give Services of type LoadBalancer addresses of that range; of all agents that may, one does so.",
        ),
        Setting(
            "--loadbalancer-class",
            CLASSES,
            "With it, for which loadBalancerClass of Services; default: for those without one, too.",
        ),
        Setting(
            "--strict-external-ips",
            None,
            "Without the range of its kind, allow no external IP or LoadBalancer address.",
        ),
        Setting("--service-cidr", NETWORKS, "The Service range; no external address may be in it."),
        Setting(
            "--node-address-range",
            NETWORKS,
            "The only networks in which the addresses of a Node object are believed to be the Node's.",
        ),
        Setting(
            "--serve-needed-addresses",
            NETWORKS,
            "Networks: external addresses in them are served although the node needs them (API server, gateway, DNS).",
        ),
        Setting("--protected-ports", PORTS, "No Service gets these ports on a node's own addresses."),
        Setting(
            "--direct-return",
            None,
            "Let pods answer clients of external addresses themselves, where kroute.io/direct-return asks for it.",
        ),
        Setting(
            "--direct-return-mark",
            MARK,
            "Packet mark bit of packets to the addresses of direct return, while they are routed.",
        ),
    ),
    "Masquerading and firewall": (
        Setting("--cluster-cidr", NETWORKS, "The pod networks, for ClusterCIDR."),
        Setting(
            "--detect-local-mode",
            click.Choice(LOCAL_MODES),
            "How pods are distinguished from clients outside, whose calls to ClusterIPs are masqueraded.",
        ),
        Setting("--pod-bridge-interface", INTERFACE, "The pods' bridge, for BridgeInterface."),
        Setting(
            "--pod-interface-name-prefix",
            INTERFACE,
            "How the names of the pods' interfaces begin, for InterfaceNamePrefix.",
        ),
        Setting("--masquerade-all", None, "Masquerade every connection to a ClusterIP."),
        Setting("--masquerade-exempt", EXEMPTIONS, "Never masquerade from SRC to DST, two networks."),
        Setting("--masquerade-mark", MARK, "Packet mark bit of connections to masquerade."),
        Setting(
            "--snat-source",
            click.Choice(["masquerade", "node-ip"]),
            "The source of masqueraded packets: the kernel's choice for the interface, or the node's own address.",
        ),
        Setting(
            "--hairpin",
            ON_OFF,
            "Whether a pod that reaches itself through a Service is masqueraded, so that it gets an answer.",
        ),
        Setting(
            "--firewall",
            click.Choice(FIREWALLS),
            "What the kernel's firewall is programmed with; auto: what fits this node.",
        ),
        Setting(
            "--network-policies",
            None,
            "Enforce NetworkPolicies for the pods of this node; policies, Namespaces and all pods are watched.",
        ),
        Setting(
            "--policy-cuts-connections",
            None,
            "With it, cut open connections that NetworkPolicies do not allow any more.",
        ),
        Setting(
            "--policy-default-deny",
            None,
            "With it, close the addresses of the Node's podCIDRs that are of no known pod.",
        ),
        Setting("--policy-log", None, "Log packets that network policies refuse, a bounded number a second."),
        Setting(
            "--policy-log-group", click.IntRange(1, 65535), "The group of nfnetlink_log by which these packets come."
        ),
    ),
    "Announcing addresses to routers": (
        Setting("--announce", None, "Have routers learn addresses of Services from this node, by BGP, through BIRD."),
        Setting("--advertise-cluster-ip", None, "With it, announce ClusterIPs."),
        Setting("--advertise-external-ip", None, "With it, announce external IPs."),
        Setting("--advertise-loadbalancer-ip", None, "With it, announce LoadBalancer addresses."),
        Setting("--advertise-pod-cidr", None, "With it, announce the networks of this node's pods."),
        Setting("--peer-router-ips", ROUTER_IPS, "The routers with which every node speaks."),
        Setting("--peer-router-asns", ASNS, "The AS numbers of these routers, in the same order."),
        Setting("--peer-router-ports", ROUTER_PORTS, "Their ports, in the same order; 0: 179."),
        Setting(
            "--peer-router-multihop-ttl",
            click.IntRange(0, 255),
            "How many hops away these routers may be; 0: they are neighbours.",
        ),
        Setting(
            "--peer-passwords",
            DIRECTORY,
            "A directory with a file for each router that needs a password, named by its address, - for a colon.",
        ),
        Setting("--peer-ttl-security", None, "Drop packets of routers that come from farther away (GTSM)."),
        Setting("--cluster-asn", click.IntRange(1, (1 << 32) - 2), "The AS number of nodes without annotation."),
        Setting("--nodes-full-mesh", None, "Speak with all nodes of the same AS, too."),
        Setting("--router-id", ROUTER_ID, "The BGP router id.  [default: the node's IPv4 address]"),
        Setting("--override-nexthop", None, "Be the next hop of what a route reflector passes on to routers."),
        Setting(
            "--bgp-port-number", click.IntRange(1, 65535), "The port for connections of peers, and of other nodes."
        ),
        Setting("--bgp-holdtime", DURATION, "After which silence of a peer its session ends."),
        Setting(
            "--bgp-graceful-restart-time",
            DURATION,
            "For how long routers keep the routes of a BIRD that restarts; 0s: not at all.",
        ),
        Setting("--bfd", None, "Detect failures of the way to routers by BFD."),
        Setting("--bfd-interval", DURATION, "The time between two packets of BFD."),
        Setting("--bfd-multiplier", click.IntRange(1, 255), "Packets of BFD that are missed until the way has failed."),
        Setting(
            "--withdraw-grace", DURATION, "For how long an address is served after routers were told that it is gone."
        ),
        Setting(
            "--bird-directory",
            click.Path(file_okay=False, path_type=Path),
            "Where BIRD's control socket bird.ctl is, and the configuration kroute.conf that kroute writes for it.",
        ),
    ),
    "Connecting pods": (
        Setting("--pod-network", None, "Connect pods without another network plugin: by routes, and a file of CNI."),
        Setting("--overlay", click.Choice(OVERLAYS), "Whose pods are reached by tunnels: off, of other subnets, all."),
        Setting("--overlay-encap", click.Choice(ENCAPSULATIONS), "What tunnels are: IP in IP, or in UDP as well."),
        Setting("--overlay-encap-port-number", click.IntRange(1024, 65535), "With fou, the port of UDP."),
        Setting(
            "--pod-egress", click.Choice(EGRESS), "The source of what pods send outside: their node, or themselves."
        ),
        Setting("--pod-mtu", click.IntRange(576, 65535), "The MTU of pods, where that of the node's links is wrong."),
        Setting("--cni-directory", ABSOLUTE_DIRECTORY, "Where the container runtime looks for files of CNI."),
    ),
    "Comparison, repair and clean-up": (
        Setting(
            "--resync-period", DURATION, "How often the kernel is looked at for changes by others, which are repaired."
        ),
        Setting(
            "--resync-budget",
            SHARE,
            "Part of a processor that comparisons of all of the kernel's state may take without a reason.",
        ),
        Setting(
            "--exclude-cidrs",
            NETWORKS,
            "Never clean up virtual servers in these networks that kroute is not known to have made.",
        ),
        Setting("--cleanup-on-exit", None, "When told to stop, undo everything as `kroute cleanup` does."),
        Setting(
            "--ipvs-estimation",
            click.Choice(["on", "off", "leave"], case_sensitive=False),
            "Whether IPVS sums up the statistics of all its servers every two seconds.",
        ),
        Setting("--ipvs-estimation-nice", click.IntRange(-20, 19), "The niceness of that estimation."),
    ),
    "Connection tracking": (
        Setting(
            "--conntrack-max-per-core",
            _CONNECTIONS,
            "Connections to track for each processor, a million in all at most; 0: the kernel's limit.",
        ),
        Setting("--conntrack-min", _CONNECTIONS, "Connections to track at least, with --conntrack-max-per-core."),
        Setting("--conntrack-tcp-be-liberal", None, "Do not take TCP packets outside the window for invalid."),
        Setting(
            "--conntrack-tcp-timeout-established",
            CONNTRACK_TIMEOUT,
            "Idle time-out of established TCP connections in the connection tracker; 0s: the kernel's.",
        ),
        Setting("--conntrack-tcp-timeout-close-wait", CONNTRACK_TIMEOUT, "The same in the state CLOSE_WAIT."),
        Setting("--conntrack-udp-timeout", CONNTRACK_TIMEOUT, "The same for UDP without an answer."),
        Setting("--conntrack-udp-timeout-stream", CONNTRACK_TIMEOUT, "The same for UDP with answers."),
    ),
    "Logs, metrics and health": (
        Setting("--log-level", LEVEL, "The least severe events that are logged."),
        Setting(
            "--log-format",
            click.Choice(["json", "console"]),
            "Default: console on a terminal, else json.",
            more={
                "default": None,
                "callback": lambda _ctx, _param, value: value or ("console" if sys.stderr.isatty() else "json"),
            },
        ),
        Setting(
            "--metrics-bind-address",
            BIND_ADDRESS,
            "Where /metrics and the status page are; they name Services and pods.",
        ),
        Setting(
            "--metrics-services",
            click.IntRange(0, 100_000),
            "How many Services have metrics of their own: those with most connections.",
        ),
        Setting("--healthz-bind-address", BIND_ADDRESS, "Where /healthz, /livez and /readyz are answered."),
        Setting(
            "--own-bind-address",
            BIND_ADDRESS,
            "Where probes and /metrics are answered from the start, also while another service proxy has its ports.",
        ),
    ),
}
"""The settings, in the sections of the help."""

COMMON = frozenset(
    (
        *("--config", "--kubeconfig", "--master", "--manifests", "--node-name", "--node-ip", "--other-proxies"),
        *("--scheduler", "--nodeport-addresses", "--external-ips-on-node-addresses", "--external-ip-range"),
        *("--cluster-cidr", "--detect-local-mode", "--masquerade-all", "--firewall"),
        *("--log-level", "--metrics-bind-address"),
    )
)
"""The settings that `kroute run --help` shows; `--help-all` shows all."""
SETTINGS = {setting.flag: setting for settings in GROUPS.values() for setting in settings}

_SOURCES = frozenset({"kubeconfig", "master", "manifests"})
"""The options for the source of Services. Giving one of them overrides all of them."""
_NOT_IN_FORCE = frozenset({"state_dir", "log_format", "log_level"})
"""Settings that are never taken from the agent: `state_dir` has found it, and each process has its own logs."""


def with_settings(*chosen: Setting | str, defaults: dict[str, str] | None = None) -> Callable[[Command], Command]:
    """Add settings to a command, in this order and after its own: those of `kroute run` by their flags, and others.

    `defaults` are those of the others.
    """
    known = DEFAULT_FLAGS | (defaults or {})

    def add(command: Command) -> Command:
        for each in reversed(chosen):
            command = option(SETTINGS[each] if isinstance(each, str) else each, known)(command)
        return command

    return add


run_options = with_settings(*SETTINGS)
"""Adds all settings of `kroute run`."""


def settings_of(values: Mapping[str, Any]) -> Settings:
    """The settings from the values of these options. Raises UsageError if they contradict each other."""
    if values["manifests"] and (values["kubeconfig"] or values["master"]):
        raise click.UsageError("--manifests cannot be used with --kubeconfig or --master: give one source")
    if values["allocate_load_balancer_ips"] and (values["manifests"] or not values["load_balancer_ip_ranges"]):
        raise click.UsageError("--allocate-load-balancer-ips needs an API server and --loadbalancer-ip-range")
    if values["resync_period"] < 1:
        raise click.UsageError("--resync-period must be at least 1s")
    if values["direct_return"] and values["direct_return_mark"] == values["masquerade_mark"]:
        raise click.UsageError("--direct-return-mark and --masquerade-mark must be different bits")
    if values["pod_network"] and not values["cluster_cidrs"]:
        raise click.UsageError("--pod-network needs --cluster-cidr, the networks that all podCIDRs are in")
    _refuse_wrong_routing(values)
    for mode, name in (
        ("BridgeInterface", "pod_bridge_interface"),
        ("InterfaceNamePrefix", "pod_interface_name_prefix"),
    ):
        if (values["detect_local_mode"] == mode) != bool(values[name]):
            raise click.UsageError(f"--detect-local-mode {mode} and --{name.replace('_', '-')} need each other")
    for name in ("policy_default_deny", "policy_cuts_connections", "policy_log"):
        if values[name] and not values["network_policies"]:
            raise click.UsageError(
                f"--{name.replace('_', '-')} needs --network-policies: without, no policy is enforced"
            )
    changed = {
        **{name: values[name] or "" for name in ("pod_bridge_interface", "pod_interface_name_prefix")},
        **{name: values[name] == "on" for name in ("hairpin", "strict_arp")},
        "ipvs_estimation": {"on": True, "off": False, "leave": None}[values["ipvs_estimation"]],
    }
    return common_settings({**values, **changed})


def _refuse_wrong_routing(values: Mapping[str, Any]) -> None:
    """Raise UsageError if the settings of routers contradict each other, or BGP does not allow one."""
    routers, ports = len(values["peer_router_ips"]), values["peer_router_ports"]
    if len(values["peer_router_asns"]) != routers or len(ports) not in {0, routers}:
        raise click.UsageError("--peer-router-ips, --peer-router-asns and --peer-router-ports must have equal lengths")
    for name, (least, most) in (
        ("bgp_holdtime", _HOLD_TIMES),
        ("bgp_graceful_restart_time", _RESTART_TIMES),
        ("bfd_interval", _BFD_INTERVALS),
    ):
        if not least <= values[name] <= most:
            raise click.UsageError(f"--{name.replace('_', '-')} must be from {least:g}s to {most:g}s")


def common_settings(values: Mapping[str, Any]) -> Settings:
    """The settings whose values are named like them; the others have their defaults."""
    return Settings(**{name: values[name] for name in Settings.__struct_fields__ if name in values})


def settings_in_force(act: Callable[..., int]) -> Callable[..., int]:
    """Give a command that describes what `kroute run` would do, or what the agent does, its options after its own.

    The command is called with the settings in force and the values of its own options. If an agent runs, its settings
    are in force, unless the command line, a variable or the file overrides them. Only errors are logged: what the
    command prints is its result.
    """

    own = list(signature(act).parameters)[1:]

    @run_options
    @click.pass_context
    @wraps(act)
    def command(context: click.Context, /, **values: Any) -> int:
        mine = {name: values.pop(name) for name in own}
        given = {key for key in values if context.get_parameter_source(key) is not ParameterSource.DEFAULT}
        settings = _in_force(settings_of(values), given)
        logs.configure("console", "error")
        return act(settings, **mine)

    return command


def _in_force(parsed: Settings, given: set[str]) -> Settings:
    """The running agent's settings, overridden by the options in `given`, or `parsed` if no agent runs."""
    from kroute.inspect import agent_socket  # noqa: PLC0415  an agent does not ask

    running = asyncio.run(agent_socket.ask_settings(parsed.state_dir))
    if running is None:
        return parsed
    names = given | _NOT_IN_FORCE
    if names & _SOURCES:
        names |= _SOURCES
    fields = names & set(Settings.__struct_fields__)
    return msgspec.structs.replace(running, **{name: getattr(parsed, name) for name in fields})
