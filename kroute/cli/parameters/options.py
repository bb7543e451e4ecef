"""Options of the command line: how each is read from a flag, a variable or a file, and those that commands share."""

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from kroute.schedulers import parse_scheduler_flags
from kroute.settings import DEFAULTS, ConntrackSettings, IpvsTimeouts, text
from kroute.settings.text import write_bind_address, write_duration

Command = TypeVar("Command", bound=Callable[..., Any])


class Parsed(click.ParamType[Any]):
    """A parameter that is parsed by one of the `parse_…` functions of `settings.text`."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        """The name as it is: click would show the word `off` as OFF."""
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one value. A value that is not text has been parsed already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ListOption(click.Option):
    """An option whose value is a list: its elements are separated by commas, and it may be given many times.

    All texts that are given count together, as with a `StringSlice` of Go's pflag: the type parses them as one text,
    and drops elements that are there twice.
    """

    def __init__(self, names: Sequence[str], **attributes: Any) -> None:
        super().__init__(names, multiple=True, **attributes)

    def value_from_envvar(self, ctx: click.Context) -> list[str] | None:
        """The variable is one text, whatever spaces it has."""
        text = self.resolve_envvar_value(ctx)
        return None if text is None else [text]

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Parse the list of texts."""
        return self.type(",".join(map(str, value or ())), self, ctx)


NETWORKS = Parsed("CIDR[,CIDR]", text.parse_networks)
DURATION = Parsed("DURATION", text.parse_duration)
TIMEOUT = Parsed("DURATION", text.parse_timeout)
CONNTRACK_TIMEOUT = Parsed("DURATION", text.parse_conntrack_timeout)
BIND_ADDRESS = Parsed("IP:PORT|off", text.parse_listen_address)
INTERFACE = Parsed("NAME", text.parse_interface)


def option(*names: str, **attributes: Any) -> Callable[[Command], Command]:
    """An option that can also be given as a variable KROUTE_…, named like the flag."""
    flag = max(names, key=lambda name: name.startswith("--"))
    variable = "KROUTE_" + flag.lstrip("-").replace("-", "_").upper()
    return click.option(*names, envvar=variable, show_envvar=False, **attributes)


def list_option(*names: str, **attributes: Any) -> Callable[[Command], Command]:
    """An `option` with a list of values. Its type parses the elements, separated by commas; see `ListOption`."""
    return option(*names, cls=ListOption, **attributes)


KUBECONFIG = option(
    "--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="How to reach the API server."
)
MASTER = list_option(
    "--master",
    type=Parsed("URL[,URL]", text.parse_servers),
    default=DEFAULTS.master,
    help="The API server's address; overrides the kubeconfig's and the Pod's. Of several, one that works is used.",
)
NODE_NAME = option(
    "--node-name", default=socket.gethostname, help="The Node object of this node.  [default: the host name]"
)
STATE_DIR = option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULTS.state_dir,
    show_default=True,
    help="Where the ledger and the agent's socket are kept; must live as long as the kernel's state (tmpfs).",
)
DUMMY_INTERFACE = option(
    "--dummy-interface",
    type=INTERFACE,
    default=DEFAULTS.dummy_interface,
    show_default=True,
    help="The interface that carries the VIPs.",
)
PROC_SYS = option(
    "--proc-sys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=DEFAULTS.proc_sys,
    show_default=True,
    help="Where sysctls are read and written: a container's own /proc/sys is read-only, so it is given the host's.",
)
RESYNC_BUDGET = option(
    "--resync-budget",
    type=Parsed("PERCENT", text.parse_share),
    default=text.write_share(DEFAULTS.resync_budget),
    show_default=True,
    help="Part of a processor that comparisons of all of the kernel's state may take without a reason.",
)
EXCLUDE_CIDRS = list_option(
    "--exclude-cidrs",
    type=NETWORKS,
    default=DEFAULTS.exclude_cidrs,
    help="Never clean up virtual servers in these networks that kroute is not known to have made.",
)
SERVICE_CIDR = list_option(
    "--service-cidr",
    "service_cidrs",
    type=NETWORKS,
    default=DEFAULTS.service_cidrs,
    help="The Service range; no external address may be in it.",
)
EXTERNAL_IP_RANGE = list_option(
    "--external-ip-range",
    "external_ip_ranges",
    type=NETWORKS,
    default=DEFAULTS.external_ip_ranges,
    help="The only networks that external IPs may be in.",
)
STRICT_EXTERNAL_IPS = option(
    "--strict-external-ips",
    is_flag=True,
    default=DEFAULTS.strict_external_ips,
    help="Without the range of its kind, allow no external IP or LoadBalancer address.",
)
CLUSTER_CIDR = list_option(
    "--cluster-cidr",
    "cluster_cidrs",
    type=NETWORKS,
    default=DEFAULTS.cluster_cidrs,
    help="The pod networks, for ClusterCIDR.",
)
EXTERNAL_IPS_ON_NODE_ADDRESSES = option(
    "--external-ips-on-node-addresses",
    is_flag=True,
    default=DEFAULTS.external_ips_on_node_addresses,
    help="Serve external IPs and LoadBalancer addresses that are a node's own on that node, as kube-proxy does.",
)
PROTECTED_PORTS = list_option(
    "--protected-ports",
    type=Parsed("PORT[-PORT][,...]", text.parse_ports),
    default=[str(each) for each in DEFAULTS.protected_ports],
    show_default=True,
    help="No Service gets these ports on a node's own addresses.",
)
MAX_VIRTUAL_SERVERS = option(
    "--max-virtual-servers",
    type=click.IntRange(min=1),
    default=DEFAULTS.max_virtual_servers,
    show_default=True,
    help="Virtual servers that one Service may ask for on a machine.",
)
MAX_BACKENDS = option(
    "--max-backends",
    type=click.IntRange(min=1),
    default=DEFAULTS.max_backends,
    show_default=True,
    help="Real servers of all virtual servers of one Service together.",
)
SCHEDULER_FLAGS = list_option(
    "--scheduler-flags",
    type=Parsed("FLAG[,FLAG]|none", parse_scheduler_flags),
    default=DEFAULTS.scheduler_flags,
    show_default=True,
    help="Flags of the schedulers sh and mh.",
)
NODE_ADDRESS_RANGE = list_option(
    "--node-address-range",
    "node_address_ranges",
    type=NETWORKS,
    default=DEFAULTS.node_address_ranges,
    help="The only networks in which the addresses of a Node object are believed to be the Node's.",
)
SERVE_NEEDED_ADDRESSES = list_option(
    "--serve-needed-addresses",
    type=NETWORKS,
    default=DEFAULTS.serve_needed_addresses,
    help="Networks: external addresses in them are served although the node needs them (API server, gateway, DNS).",
)
IPVS_TCP_TIMEOUT = option(
    "--ipvs-tcp-timeout",
    type=TIMEOUT,
    default=write_duration(DEFAULTS.ipvs_timeouts.tcp),
    help="Idle time-out of TCP connections; 0s: the kernel's.",
)
IPVS_TCPFIN_TIMEOUT = option(
    "--ipvs-tcpfin-timeout",
    type=TIMEOUT,
    default=write_duration(DEFAULTS.ipvs_timeouts.tcpfin),
    help="The same for TCP connections after a FIN.",
)
IPVS_UDP_TIMEOUT = option(
    "--ipvs-udp-timeout", type=TIMEOUT, default=write_duration(DEFAULTS.ipvs_timeouts.udp), help="The same for UDP."
)
HEALTHZ_BIND_ADDRESS = option(
    "--healthz-bind-address",
    type=BIND_ADDRESS,
    default=write_bind_address(DEFAULTS.healthz_bind_address),
    show_default=True,
    help="Where /healthz, /livez and /readyz are answered.",
)
METRICS_BIND_ADDRESS = option(
    "--metrics-bind-address",
    type=BIND_ADDRESS,
    default=write_bind_address(DEFAULTS.metrics_bind_address),
    show_default=True,
    help="Where /metrics and the status page are; they name Services and pods.",
)
OWN_BIND_ADDRESS = option(
    "--own-bind-address",
    type=BIND_ADDRESS,
    default=write_bind_address(DEFAULTS.own_bind_address),
    show_default=True,
    help="Where probes and /metrics are answered from the start, also while another service proxy has its ports.",
)
METRICS_SERVICES = option(
    "--metrics-services",
    type=click.IntRange(0, 100_000),
    default=DEFAULTS.metrics_services,
    show_default=True,
    help="How many Services have metrics of their own: those with most connections.",
)
LOG_FORMAT = option(
    "--log-format",
    type=click.Choice(["json", "console"]),
    default=None,
    callback=lambda _context, _parameter, value: value or ("console" if sys.stderr.isatty() else "json"),
    help="Default: console on a terminal, else json.",
)
LOG_LEVEL = option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default=DEFAULTS.log_level,
    show_default=True,
    help="The least severe events that are logged.",
)

SORT_BY = click.option(
    "--sort-by",
    type=click.Choice(("packets", "connections", "bytes", "active", "name")),
    default=None,
    help="The order of rates: the busiest first, or by name.  [default: packets]",
)
FILTER = click.option(
    "--filter", "only", default="", metavar="TEXT", help="Only what has this text in a Service's name or an address."
)


CONNTRACK_OPTIONS = (
    option(
        "--conntrack-max-per-core",
        type=click.IntRange(0, 1 << 30),
        default=DEFAULTS.conntrack.max_per_core,
        show_default=True,
        help="Connections to track for each processor, a million in all at most; 0: the kernel's limit.",
    ),
    option(
        "--conntrack-min",
        type=click.IntRange(0, 1 << 30),
        default=DEFAULTS.conntrack.min,
        show_default=True,
        help="Connections to track at least, with --conntrack-max-per-core.",
    ),
    option(
        "--conntrack-tcp-be-liberal",
        is_flag=True,
        default=DEFAULTS.conntrack.tcp_be_liberal,
        help="Do not take TCP packets outside the window for invalid.",
    ),
    option(
        "--conntrack-tcp-timeout-established",
        type=CONNTRACK_TIMEOUT,
        default=write_duration(DEFAULTS.conntrack.tcp_timeout_established),
        help="Idle time-out of established TCP connections in the connection tracker; 0s: the kernel's.",
    ),
    option(
        "--conntrack-tcp-timeout-close-wait",
        type=CONNTRACK_TIMEOUT,
        default=write_duration(DEFAULTS.conntrack.tcp_timeout_close_wait),
        help="The same in the state CLOSE_WAIT.",
    ),
    option(
        "--conntrack-udp-timeout",
        type=CONNTRACK_TIMEOUT,
        default=write_duration(DEFAULTS.conntrack.udp_timeout),
        help="The same for UDP without an answer.",
    ),
    option(
        "--conntrack-udp-timeout-stream",
        type=CONNTRACK_TIMEOUT,
        default=write_duration(DEFAULTS.conntrack.udp_timeout_stream),
        help="The same for UDP with answers.",
    ),
)


def ipvs_timeouts(values: Mapping[str, Any]) -> IpvsTimeouts:
    """The three IPVS time-outs, from the values of all options."""
    names = IpvsTimeouts.__struct_fields__
    return IpvsTimeouts(*(values[f"ipvs_{name}_timeout"] for name in names))


def conntrack_settings(values: Mapping[str, Any]) -> ConntrackSettings:
    """The limits of the connection tracker, from the values of all options."""
    return ConntrackSettings(*(values[f"conntrack_{name}"] for name in ConntrackSettings.__struct_fields__))
