"""The `kroute` command.

Everything that costs time to import is imported by the command that needs it. Wrong flags, files and addresses end with
one line on standard error and exit code 2; what the node lacks, with one line a lack and exit code 1.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kroute import __version__, settings
from kroute.cli.definitions import commands
from kroute.cli.director import director
from kroute.cli.migrate import migrate
from kroute.cli.options import (
    CONFIG,
    DUMMY_INTERFACE,
    DURATION,
    EXCLUDE_CIDRS,
    HEALTHZ_BIND_ADDRESS,
    INTERFACE,
    KUBECONFIG,
    LOG_FORMAT,
    LOG_LEVEL,
    MASTER,
    METRICS_BIND_ADDRESS,
    METRICS_SERVICES,
    NETWORKS,
    NODE_NAME,
    PROC_SYS,
    STATE_DIR,
    TIMEOUT,
    Parsed,
    option,
    tell_of_unused_fields,
)
from kroute.cli.show.command import show
from kroute.migration.kube_router_flags import RunCommand
from kroute.settings import IpvsTimeouts, Settings

EXIT_FAILURE = 1
EXIT_USAGE = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="kroute")
def cli() -> None:
    """A Kubernetes service proxy for Linux nodes that programs IPVS."""


@cli.command(cls=RunCommand)
@CONFIG
@KUBECONFIG
@MASTER
@option(
    "--manifests",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read Services and EndpointSlices from the YAML and JSON files of this directory; no API server is needed.",
)
@NODE_NAME
@option(
    "--node-ip", "node_ips", type=Parsed("IP[,IP]", settings.parse_node_ips), default=(), help="Overrides the Node's."
)
@DUMMY_INTERFACE
@option("--scheduler", type=click.Choice(settings.SCHEDULERS), default="rr", show_default=True, help="IPVS scheduler.")
@option(
    "--service-proxy-name",
    type=Parsed("NAME", settings.parse_proxy_name),
    default=settings.OUR_PROXY_NAME,
    show_default=True,
    help="Serve Services with this value of the label service.kubernetes.io/service-proxy-name besides those without.",
)
@option(
    "--nodeport-addresses",
    type=Parsed("CIDR[,CIDR]|primary", settings.parse_nodeport_addresses),
    default=(),
    help="Serve node ports on these of the node's addresses.  [default: all but loopback and IPv6 link-local]",
)
@option("--service-cidr", "service_cidrs", type=NETWORKS, default=(), help="The Service range: no external address.")
@option(
    "--external-ip-range",
    "external_ip_ranges",
    type=NETWORKS,
    default=(),
    help="The only networks that external IPs may be in.",
)
@option(
    "--loadbalancer-ip-range",
    "load_balancer_ip_ranges",
    type=NETWORKS,
    default=(),
    help="The only networks that LoadBalancer addresses may be in.",
)
@option("--strict-external-ips", is_flag=True, help="Where no such range is given, allow no such address at all.")
@option(
    "--protected-ports",
    type=Parsed("PORT[-PORT][,...]", settings.parse_ports),
    default="22,2379-2380,6443,10250,10256",
    show_default=True,
    help="Never taken by a Service on an address that is a node's own.",
)
@option(
    "--strict-arp",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Answer ARP only for the addresses of the interface that is asked: a VIP is its owner's to answer for.",
)
@option("--masquerade-all", is_flag=True, help="Masquerade every connection to a ClusterIP.")
@option(
    "--detect-local-mode",
    type=click.Choice(settings.LOCAL_MODES),
    default="ClusterCIDR",
    show_default=True,
    help="How pods are told from clients outside; what is outside is masqueraded when it calls a ClusterIP.",
)
@option("--cluster-cidr", "cluster_cidrs", type=NETWORKS, default=(), help="The pod networks, for ClusterCIDR.")
@option("--pod-bridge-interface", type=INTERFACE, default=None, help="The pods' bridge, for BridgeInterface.")
@option(
    "--pod-interface-name-prefix",
    type=INTERFACE,
    default=None,
    help="How the names of the pods' interfaces begin, for InterfaceNamePrefix.",
)
@option(
    "--snat-source",
    type=click.Choice(["masquerade", "node-ip"]),
    default="masquerade",
    show_default=True,
    help="The source of masqueraded packets: the kernel's choice for the interface, or the node's own address.",
)
@option(
    "--hairpin",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Whether a pod that reaches itself through a Service is masqueraded, so that it gets an answer.",
)
@option(
    "--masquerade-exempt",
    "masquerade_exemptions",
    type=Parsed("SRC:DST", settings.parse_exemption),
    multiple=True,
    help="Never masquerade from SRC to DST, two networks. May be given many times.",
)
@option(
    "--masquerade-mark",
    type=Parsed("MARK", settings.parse_mark),
    default="0x4000",
    show_default=True,
    help="Packet mark bit of connections to masquerade.",
)
@option("--resync-period", type=DURATION, default="30s", show_default=True, help="How often the kernel is audited.")
@option(
    "--drain-timeout",
    type=DURATION,
    default="0s",
    show_default=True,
    help="Delete a draining TCP real server after this time; 0s waits for its last connection.",
)
@EXCLUDE_CIDRS
@option("--ipvs-tcp-timeout", type=TIMEOUT, default="0s", help="Idle time-out of TCP connections; 0s: the kernel's.")
@option("--ipvs-tcpfin-timeout", type=TIMEOUT, default="0s", help="The same after a FIN.")
@option("--ipvs-udp-timeout", type=TIMEOUT, default="0s", help="The same for UDP.")
@HEALTHZ_BIND_ADDRESS
@METRICS_BIND_ADDRESS
@METRICS_SERVICES
@option("--cleanup-on-exit", is_flag=True, help="When told to stop, undo everything as `kroute cleanup` does.")
@option(
    "--ipvs-estimation",
    type=click.Choice(["on", "off", "leave"]),
    default="leave",
    show_default=True,
    help="Whether IPVS sums up the statistics of all its servers every two seconds.",
)
@option("--ipvs-estimation-nice", type=click.IntRange(-20, 19), default=None, help="The niceness of doing that.")
@STATE_DIR
@PROC_SYS
@LOG_FORMAT
@LOG_LEVEL
def run(**values: Any) -> int:
    """Serve this node until SIGTERM; the data path stays in place afterwards, unless told otherwise."""
    chosen = _settings(values)
    from kroute import logs  # noqa: PLC0415 - the other commands do without

    logs.configure(chosen.log_format, chosen.log_level)
    tell_of_unused_fields(click.get_current_context())
    from kroute import agent  # noqa: PLC0415 - after the logs, which decide what structlog loads

    return agent.main(chosen)


def _settings(values: Mapping[str, Any]) -> Settings:
    if values["manifests"] and (values["kubeconfig"] or values["master"]):
        raise click.UsageError("--manifests and --kubeconfig or --master exclude each other: give one source")
    if values["resync_period"] < 1:
        raise click.UsageError("--resync-period must be at least 1s")
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
    timeouts = IpvsTimeouts(*(fields.pop(f"ipvs_{name}_timeout") for name in IpvsTimeouts.__struct_fields__))
    exemptions = tuple(fields.pop("masquerade_exemptions"))
    fields["log_format"] = fields["log_format"] or ("console" if sys.stderr.isatty() else "json")
    return Settings(**fields, ipvs_timeouts=timeouts, masquerade_exemptions=exemptions)


@cli.command()
@NODE_NAME
@DUMMY_INTERFACE
@EXCLUDE_CIDRS
@option("--wait", is_flag=True, help="Then say that this node is clean, and do nothing until SIGTERM: for a DaemonSet.")
@STATE_DIR
@PROC_SYS
@LOG_LEVEL
def cleanup(*, wait: bool, log_level: str, **values: Any) -> int:
    """Undo everything that kroute did on this node, and say what was undone."""
    from kroute import cleanup as operation  # noqa: PLC0415
    from kroute import logs  # noqa: PLC0415

    logs.configure("console", log_level)
    return (operation.main_and_wait if wait else operation.main)(Settings(**values))


cli.add_command(director)
cli.add_command(migrate)
for command in commands(run, _settings):
    cli.add_command(command)
cli.add_command(show)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the node or the cluster refuses, 2 the command line is wrong."""
    try:
        code = cli.main(args=arguments, prog_name="kroute", standalone_mode=False)
    except click.ClickException as error:
        message = " ".join(error.format_message().split())
        click.echo(f"kroute: {message}", err=True)
        sys.exit(EXIT_USAGE)
    except click.Abort:
        sys.exit(EXIT_FAILURE)
    sys.exit(code if isinstance(code, int) else 0)
