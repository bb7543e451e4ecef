"""Translate kube-router's flags on the command line of `kroute run`, or refuse them with a reason.

One table names them all (kube-router's pkg/options/options.go, 2.11). A flag that kroute has with the same name and
meaning (--kubeconfig, --master, --cluster-cidr, --loadbalancer-ip-range) is not in it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

Translate = Callable[[str], list[str]]
"""From a flag's value to kroute's arguments. Raises ValueError with a sentence for a value that has none."""


class Flag(NamedTuple):
    """One flag. `is_switch`: it means true without a value, and takes a value only after a `=`, as in Go's pflag."""

    translate: Translate
    is_switch: bool = False


def _renamed(ours: str) -> Flag:
    return Flag(lambda value: [ours, value])


def _switch(on: Sequence[str], off: Sequence[str]) -> Flag:
    return Flag(lambda value: list(on if _is_true(value) else off), is_switch=True)


def _only(wanted: bool, why: str) -> Flag:
    """A switch that kroute accepts only with the value `wanted`."""

    def translate(value: str) -> list[str]:
        if _is_true(value) is not wanted:
            raise ValueError(why)
        return []

    return Flag(translate, is_switch=True)


def _refused(why: str, *, is_switch: bool = False) -> Flag:
    def translate(_value: str) -> list[str]:
        raise ValueError(why)

    return Flag(translate, is_switch)


def _is_true(value: str) -> bool:
    word = value.lower()
    if word not in {"true", "t", "1", "false", "f", "0"}:
        raise ValueError(f"{value!r} is neither true nor false")
    return word in {"true", "t", "1"}


_ROUTING = "kroute does no routing; keep kube-router --run-service-proxy=false for it, and leave this out here"
_POLICIES = "kroute enforces no network policies; keep kube-router --run-service-proxy=false, and leave this out here"
_LOADBALANCER = "kroute allocates no LoadBalancer addresses; keep kube-router --run-service-proxy=false for it"
_DSR = "kroute has no direct server return on nodes; `kroute director` routes directly to nodes (docs/director.md)"
_HEALTH = "kroute's word is --healthz-bind-address ADDRESS:PORT"
_METRICS = "kroute's word is --metrics-bind-address ADDRESS:PORT, and its path is /metrics"

FLAGS: dict[str, Flag] = {
    "hostname-override": _renamed("--node-name"),
    "ipvs-sync-period": _renamed("--resync-period"),
    "excluded-cidrs": _renamed("--exclude-cidrs"),
    "service-cluster-ip-range": _renamed("--service-cidr"),
    "service-external-ip-range": _renamed("--external-ip-range"),
    "service-tcp-timeout": _renamed("--ipvs-tcp-timeout"),
    "service-tcpfin-timeout": _renamed("--ipvs-tcpfin-timeout"),
    "service-udp-timeout": _renamed("--ipvs-udp-timeout"),
    "ipvs-graceful-period": _renamed("--drain-timeout"),
    "strict-external-ip-validation": _switch(["--strict-external-ips"], []),
    "masquerade-all": _switch(["--masquerade-all"], []),
    "nodeport-bindon-all-ip": _switch([], ["--nodeport-addresses", "primary"]),
    "hairpin-mode": _switch(["--hairpin", "on"], ["--hairpin", "off"]),
    "ipvs-graceful-termination": _only(True, "kroute always lets connections drain; --drain-timeout says for how long"),
    "run-service-proxy": _only(True, "kroute is a service proxy and nothing else: do not run it"),
    "run-router": _only(False, _ROUTING),
    "run-firewall": _only(False, _POLICIES),
    "run-loadbalancer": _only(False, _LOADBALANCER),
    "enable-ipv4": _only(True, "kroute serves the families that the node has an address of; --node-ip says which"),
    "enable-ipv6": _only(True, "kroute serves the families that the node has an address of; --node-ip says which"),
    "ipvs-permit-all": _only(False, "kroute leaves what Services serve to the node's own rules"),
    "service-node-port-range": _refused("kroute takes each Service's nodePort as the API has it: leave this out"),
    "cache-sync-timeout": _refused("kroute waits for the API server as long as it takes: leave this out"),
    "cleanup-config": _refused("kroute's word is `kroute cleanup`", is_switch=True),
    "health-addr": _refused(_HEALTH),
    "health-port": _refused(_HEALTH),
    "metrics-addr": _refused(_METRICS),
    "metrics-path": _refused(_METRICS),
    "metrics-port": _refused(_METRICS),
    "enable-pprof": _refused("kroute has no profiling endpoint: leave this out", is_switch=True),
    "runtime-endpoint": _refused(_DSR),
    "v": _refused("kroute's word is --log-level"),
    "loadbalancer-default-class": _refused(_LOADBALANCER, is_switch=True),
    "loadbalancer-sync-period": _refused(_LOADBALANCER),
    "iptables-sync-period": _refused(_POLICIES),
    "use-nftables-for-netpol": _refused(_POLICIES, is_switch=True),
    **{
        name: _refused(_ROUTING, is_switch=True)
        for name in (
            "advertise-cluster-ip", "advertise-external-ip", "advertise-loadbalancer-ip", "advertise-pod-cidr",
            "auto-mtu", "bgp-graceful-restart", "disable-source-dest-check", "enable-cni", "enable-ibgp",
            "enable-overlay", "enable-pod-egress", "nodes-full-mesh", "override-nexthop",
        )
    },
    **{
        name: _refused(_ROUTING)
        for name in (
            "bgp-graceful-restart-deferral-time", "bgp-graceful-restart-time", "bgp-holdtime", "bgp-port",
            "cluster-asn", "injected-routes-sync-period", "overlay-encap", "overlay-encap-port", "overlay-type",
            "peer-router-asns", "peer-router-ips", "peer-router-multihop-ttl", "peer-router-passwords",
            "peer-router-passwords-file", "peer-router-ports", "router-id", "routes-sync-period",
        )
    },
}  # fmt: skip
"""kube-router's flags by name."""


class RunCommand(click.Command):
    """A command that accepts kube-router's flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate, then parse as usual. Raises UsageError that names the flag that cannot be translated, and why."""
        own = {name for parameter in self.params for name in parameter.opts}
        return super().parse_args(ctx, list(translated(args, own - {"--masquerade-all"})))


def translated(arguments: Sequence[str], own: set[str]) -> list[str]:
    """The arguments with kube-router's flags translated. `own` are kroute's flags, which stay as they are."""
    found: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        flag = FLAGS.get(name)
        if flag is None or not word.startswith("-") or f"--{name}" in own:
            found.append(word)
            continue
        if not equals:
            value = "true" if flag.is_switch else (rest.pop(0) if rest else "")
        try:
            found += flag.translate(value)
        except ValueError as error:
            raise click.UsageError(f"--{name} is kube-router's: {error}") from None
    return found
