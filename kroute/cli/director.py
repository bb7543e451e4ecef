"""`kroute director`: external IPs on a machine outside the cluster."""

import socket
from collections.abc import Mapping
from typing import Any

import click

from kroute.base import logs  # noqa: F401  before the other modules: it decides what structlog and msgspec load
from kroute.base.schedulers import SCHEDULERS
from kroute.cli.parameters.config_file import begin_log
from kroute.cli.parameters.options import DURATION, INTERFACE, PROXY_NAME, TIMEOUT, Parsed, ParsedList, Setting
from kroute.cli.parameters.run_options import common_settings, with_settings
from kroute.cli.parameters.settings_command import SettingsCommand
from kroute.director.settings import (
    DEFAULTS,
    DirectorSettings,
    LeaseSettings,
    parse_lease,
    parse_selector,
    problem_with,
    problem_with_ranges,
)
from kroute.director.wiring import serve
from kroute.model.probes import ProbeSettings
from kroute.runtime.runner import run_to_the_end
from kroute.settings import text
from kroute.settings.text import write_duration

_LEASE_TIMES = ("duration", "renew_deadline", "retry_period")


def own_flags(chosen: DirectorSettings) -> dict[str, str]:
    """The flags that only a director has, as they may be written on the command line."""
    lease, probes = chosen.lease, chosen.probes
    return {
        "vip-interface": chosen.vip_interface,
        "selector": chosen.selector,
        "sync-interface": chosen.sync_interface,
        "sync-id": str(chosen.sync_id),
        "lease": str(lease),
        **{f"lease-{name.replace('_', '-')}": write_duration(getattr(lease, name)) for name in _LEASE_TIMES},
        "check-interval": write_duration(probes.interval),
        "check-timeout": write_duration(probes.timeout),
        "check-failures": str(probes.failures),
        "check-successes": str(probes.successes),
    }


OPTIONS: tuple[Setting | str, ...] = (
    *("--config", "--kubeconfig", "--master"),
    Setting(
        "--vip-interface",
        INTERFACE,
        "The interface on which the active director has the VIPs.",
        more={"required": True},
    ),
    Setting(
        "--identity",
        click.STRING,
        "This director's name in Events, and in the Lease, with a uuid behind it.  [default: the host name]",
        more={"default": socket.gethostname},
    ),
    Setting(
        "--selector",
        ParsedList("SELECTOR", parse_selector),
        "Direct only Services with these labels.  [default: every Service with external IPs]",
    ),
    *("--external-ip-range", "--loadbalancer-ip-range", "--strict-external-ips"),
    *("--external-ips-on-node-addresses", "--protected-ports"),
    *("--node-address-range", "--serve-needed-addresses", "--service-cidr", "--cluster-cidr"),
    *("--max-virtual-servers", "--max-backends"),
    Setting("--service-proxy-name", PROXY_NAME, "The value of the Services' label for their proxy, as on the nodes."),
    Setting("--scheduler", click.Choice(SCHEDULERS), "IPVS scheduler.", more={"default": DEFAULTS.common.scheduler}),
    "--scheduler-flags",
    Setting("--sync-interface", INTERFACE, "Synchronize connections with the other director on this interface."),
    Setting("--sync-id", click.IntRange(1, 255), "The synchronization's id; both directors have the same."),
    Setting("--lease", Parsed("NAMESPACE/NAME", parse_lease), "The Lease by which directors agree on the active one."),
    Setting("--lease-duration", TIMEOUT, "How long a standby waits after the last renewal that it saw."),
    Setting("--lease-renew-deadline", DURATION, "How long a renewal may take before it has failed."),
    Setting("--lease-retry-period", DURATION, "The pause between two attempts."),
    Setting("--check-interval", DURATION, "The pause between two checks of a node."),
    Setting("--check-timeout", DURATION, "How long one check may take."),
    Setting("--check-failures", click.IntRange(1), "How many failures in a row take a node out of service."),
    Setting("--check-successes", click.IntRange(1), "How many successes in a row bring it back."),
    *("--resync-period", "--resync-budget"),
    Setting("--drain-timeout", DURATION, "Delete a draining node after this time; 0s waits for its last connection."),
    *("--exclude-cidrs", "--ipvs-tcp-timeout", "--ipvs-tcpfin-timeout", "--ipvs-udp-timeout", "--state-dir"),
    *("--log-format", "--log-level"),
)
"""In the order of the man page: settings of a director, and those of `kroute run` by their flags."""


@click.command(cls=SettingsCommand)
@with_settings(*OPTIONS, defaults=own_flags(DEFAULTS))
def director(**values: Any) -> int:
    """Own the external IPs on a machine outside the cluster, and route them directly to its nodes, until SIGTERM."""
    chosen = director_settings(values)
    differing = dict(own_flags(chosen).items() - own_flags(DEFAULTS).items())
    begin_log(chosen.common, text.differing(chosen.common, DEFAULTS.common) | differing)
    return run_to_the_end(serve(chosen))


def director_settings(values: Mapping[str, Any]) -> DirectorSettings:
    """The settings from the values of the flags. Raises UsageError if they contradict each other."""
    times = (values[f"lease_{name}"] for name in _LEASE_TIMES)
    lease = LeaseSettings(*values["lease"], *times)
    if (problem := problem_with(lease)) is not None:
        raise click.UsageError(problem)
    for flag, least in (("resync_period", 1), ("check_interval", 0.1), ("check_timeout", 0.1)):
        if values[flag] < least:
            raise click.UsageError(f"--{flag.replace('_', '-')} must be at least {least}s")
    problem = problem_with_ranges(values["external_ip_ranges"], is_strict=values["strict_external_ips"])
    if problem is not None:
        raise click.UsageError(problem)
    probes = ProbeSettings(*(values[f"check_{name}"] for name in ProbeSettings.__struct_fields__))
    synchronization = values["sync_interface"] or "", values["sync_id"]
    common = common_settings({**values, "node_name": values["identity"]})
    return DirectorSettings(common, values["vip_interface"], values["selector"], *synchronization, lease, probes)
