"""`kroute director`: external IPs on a machine outside the cluster."""

import socket
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from kroute import logs
from kroute.cli.parameters.config_file import CONFIG, tell_of_unused_fields
from kroute.cli.parameters.options import (
    CLUSTER_CIDR,
    DURATION,
    EXCLUDE_CIDRS,
    EXTERNAL_IP_RANGE,
    EXTERNAL_IPS_ON_NODE_ADDRESSES,
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
    NODE_ADDRESS_RANGE,
    PROTECTED_PORTS,
    RESYNC_BUDGET,
    SCHEDULER_FLAGS,
    SERVE_NEEDED_ADDRESSES,
    SERVICE_CIDR,
    STATE_DIR,
    STRICT_EXTERNAL_IPS,
    TIMEOUT,
    Parsed,
    ipvs_timeouts,
    list_option,
    option,
)
from kroute.cli.parameters.settings_command import SettingsCommand
from kroute.cli.parameters.settings_log import log_settings
from kroute.director.director import serve
from kroute.director.settings import (
    DEFAULTS,
    DirectorSettings,
    LeaseSettings,
    parse_lease,
    parse_selector,
    problem_with,
    problem_with_ranges,
)
from kroute.model.probes import ProbeSettings
from kroute.runtime.runner import run_to_the_end
from kroute.schedulers import SCHEDULERS
from kroute.settings import Settings, text
from kroute.settings.text import write_duration


@click.command(cls=SettingsCommand)
@CONFIG
@KUBECONFIG
@MASTER
@option(
    "--vip-interface", type=INTERFACE, required=True, help="The interface on which the active director has the VIPs."
)
@option(
    "--identity",
    default=socket.gethostname,
    help="This director's name in Events, and in the Lease, with a uuid behind it.  [default: the host name]",
)
@list_option(
    "--selector",
    type=Parsed("SELECTOR", parse_selector),
    default=(),
    help="Direct only Services with these labels.  [default: every Service with external IPs]",
)
@EXTERNAL_IP_RANGE
@STRICT_EXTERNAL_IPS
@EXTERNAL_IPS_ON_NODE_ADDRESSES
@PROTECTED_PORTS
@NODE_ADDRESS_RANGE
@SERVE_NEEDED_ADDRESSES
@SERVICE_CIDR
@CLUSTER_CIDR
@MAX_VIRTUAL_SERVERS
@MAX_BACKENDS
@option(
    "--service-proxy-name",
    type=Parsed("NAME", text.parse_proxy_name),
    default=DEFAULTS.common.service_proxy_name,
    show_default=True,
    help="The value of the Services' label for their proxy, as on the nodes.",
)
@option(
    "--scheduler",
    type=click.Choice(SCHEDULERS),
    default=DEFAULTS.common.scheduler,
    show_default=True,
    help="IPVS scheduler.",
)
@SCHEDULER_FLAGS
@option(
    "--sync-interface",
    type=INTERFACE,
    default=None,
    help="Synchronize connections with the other director on this interface.",
)
@option(
    "--sync-id",
    type=click.IntRange(1, 255),
    default=DEFAULTS.sync_id,
    show_default=True,
    help="The synchronization's id; both directors have the same.",
)
@option(
    "--lease",
    type=Parsed("NAMESPACE/NAME", parse_lease),
    default=str(DEFAULTS.lease),
    show_default=True,
    help="The Lease by which directors agree on the active one.",
)
@option(
    "--lease-duration",
    type=TIMEOUT,
    default=write_duration(DEFAULTS.lease.duration),
    show_default=True,
    help="How long a standby waits after the last renewal that it saw.",
)
@option(
    "--lease-renew-deadline",
    type=DURATION,
    default=write_duration(DEFAULTS.lease.renew_deadline),
    show_default=True,
    help="How long a renewal may take before it has failed.",
)
@option(
    "--lease-retry-period",
    type=DURATION,
    default=write_duration(DEFAULTS.lease.retry_period),
    show_default=True,
    help="The pause between two attempts.",
)
@option(
    "--check-interval",
    type=DURATION,
    default=write_duration(DEFAULTS.probes.interval),
    show_default=True,
    help="The pause between two checks of a node.",
)
@option(
    "--check-timeout",
    type=DURATION,
    default=write_duration(DEFAULTS.probes.timeout),
    show_default=True,
    help="How long one check may take.",
)
@option(
    "--check-failures",
    type=click.IntRange(1),
    default=DEFAULTS.probes.failures,
    show_default=True,
    help="How many failures in a row take a node out of service.",
)
@option(
    "--check-successes",
    type=click.IntRange(1),
    default=DEFAULTS.probes.successes,
    show_default=True,
    help="How many successes in a row bring it back.",
)
@option(
    "--resync-period",
    type=DURATION,
    default=write_duration(DEFAULTS.common.resync_period),
    show_default=True,
    help="How often the kernel is looked at for changes by others, which are repaired.",
)
@RESYNC_BUDGET
@option(
    "--drain-timeout",
    type=DURATION,
    default=write_duration(DEFAULTS.common.drain_timeout),
    show_default=True,
    help="Delete a draining node after this time; 0s waits for its last connection.",
)
@EXCLUDE_CIDRS
@IPVS_TCP_TIMEOUT
@IPVS_TCPFIN_TIMEOUT
@IPVS_UDP_TIMEOUT
@STATE_DIR
@LOG_FORMAT
@LOG_LEVEL
def director(**values: Any) -> int:
    """Own the external IPs on a machine outside the cluster, and route them directly to its nodes, until SIGTERM."""
    chosen = director_settings(values)
    logs.configure(chosen.common.log_format, chosen.common.log_level)
    logs.never_wait()
    log_settings(text.differing(chosen.common, DEFAULTS.common) | _own_flags(chosen))
    tell_of_unused_fields(click.get_current_context())
    return run_to_the_end(serve(chosen))


def director_settings(values: Mapping[str, Any]) -> DirectorSettings:
    """The settings from the values of the flags. Raises UsageError if they contradict each other."""
    namespace, name = values["lease"]
    lease = LeaseSettings(
        namespace, name, values["lease_duration"], values["lease_renew_deadline"], values["lease_retry_period"]
    )
    if (problem := problem_with(lease)) is not None:
        raise click.UsageError(problem)
    for flag, least in (("resync_period", 1), ("check_interval", 0.1), ("check_timeout", 0.1)):
        if values[flag] < least:
            raise click.UsageError(f"--{flag.replace('_', '-')} must be at least {least}s")
    problem = problem_with_ranges(values["external_ip_ranges"], is_strict=values["strict_external_ips"])
    if problem is not None:
        raise click.UsageError(problem)
    common = Settings(
        node_name=values["identity"],
        kubeconfig=values["kubeconfig"],
        master=values["master"],
        scheduler=values["scheduler"],
        scheduler_flags=values["scheduler_flags"],
        service_proxy_name=values["service_proxy_name"],
        external_ip_ranges=values["external_ip_ranges"],
        strict_external_ips=values["strict_external_ips"],
        external_ips_on_node_addresses=values["external_ips_on_node_addresses"],
        protected_ports=values["protected_ports"],
        node_address_ranges=values["node_address_ranges"],
        serve_needed_addresses=values["serve_needed_addresses"],
        service_cidrs=values["service_cidrs"],
        cluster_cidrs=values["cluster_cidrs"],
        max_virtual_servers=values["max_virtual_servers"],
        max_backends=values["max_backends"],
        resync_period=values["resync_period"],
        resync_budget=values["resync_budget"],
        drain_timeout=values["drain_timeout"],
        exclude_cidrs=values["exclude_cidrs"],
        ipvs_timeouts=ipvs_timeouts(values),
        state_dir=values["state_dir"],
        log_format=values["log_format"],
        log_level=values["log_level"],
    )
    checks = (values[f"check_{it}"] for it in ProbeSettings.__struct_fields__)
    return DirectorSettings(
        common,
        values["vip_interface"],
        values["selector"],
        values["sync_interface"] or "",
        values["sync_id"],
        lease,
        ProbeSettings(*checks),
    )


def _own_flags(chosen: DirectorSettings) -> dict[str, str]:
    """The flags that only a director has, if they are not the defaults."""
    parts = [
        ("", chosen, DEFAULTS),
        ("lease-", chosen.lease, DEFAULTS.lease),
        ("check-", chosen.probes, DEFAULTS.probes),
    ]
    return {
        f"{prefix}{field.replace('_', '-')}": str(value)
        for prefix, struct, usual in parts
        for field in struct.__struct_fields__
        if not isinstance(value := getattr(struct, field), msgspec.Struct) and value != getattr(usual, field)
    }
