"""The flags of kube-router and kube-proxy. Each is translated, accepted, or refused with a reason.

They are those of kube-router's pkg/options/options.go (2.11, and BFD's, which came later), and of
cmd/kube-proxy/app/options.go, component-base/logs/api/v1 and klog (1.36). Many of kube-proxy's have a field of the same
meaning in its configuration file, which kroute reads too: the reasons are those of its table.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from kroute.migration.go_values import duration, host_name, is_true, is_unspecified, networks
from kroute.migration.kube_proxy_configuration import MH_FLAGS, UNUSED, USED

Translate = Callable[[str], list[str]]
"""From a flag's value to kroute's arguments. Raises ValueError with a sentence for a value that has none."""

THE_SAME = "the same"
DEBUG = 4
"""The verbosity of klog that means debugging (kubernetes/community, sig-instrumentation/logging.md)."""


class Treatment(StrEnum):
    """What becomes of a flag. The last two accept its default, and a switch that is off: these ask for nothing."""

    HONOURED = "honoured"
    REFUSED = "refused"
    NO_MEANING = "no meaning here"


class Flag(NamedTuple):
    """One flag of another proxy.

    `becomes` names kroute's flag, or says why there is none. `default` is the other proxy's, as its help writes it.
    `is_switch`: it means true without a value, and takes a value only after a `=`, as in Go's pflag. `field`: its name
    in the other proxy's configuration file, or empty.
    """

    outcome: Treatment
    becomes: str
    default: str
    translate: Translate
    is_switch: bool = False
    field: str = ""

    @property
    def keeps_its_name(self) -> bool:
        return self.becomes == THE_SAME


class OtherFlags(NamedTuple):
    """All flags of one proxy, by name."""

    proxy: str
    flags: Mapping[str, Flag]


def renamed(
    ours: str, default: str = "", write: Callable[[str], str] = str, *, unset: str | None = None, becomes: str = ""
) -> Flag:
    """A flag that kroute has under the name `ours`. `write` writes its value as kroute's.

    Empty text is "not set", or has the meaning of the value `unset`.
    """

    def translate(value: str) -> list[str]:
        if value.strip():
            return [ours, write(value)]
        return [] if unset is None else [ours, unset]

    return Flag(Treatment.HONOURED, becomes or f"`{ours}`", default, translate)


def same(name: str, write: Callable[[str], str] = str) -> Flag:
    """A flag that kroute has with this name and meaning."""
    return renamed(f"--{name}", write=write, becomes=THE_SAME)


def switch(on: Sequence[str], off: Sequence[str], becomes: str, *, default: bool = False) -> Flag:
    """A switch, with kroute's arguments for true and for false."""
    return Flag(
        Treatment.HONOURED,
        becomes,
        _written(default),
        lambda value: list(on if is_true(value) else off),
        is_switch=True,
    )


def refused(why: str, default: str | bool) -> Flag:
    """A flag that asks for what kroute does not do."""
    return _default_alone(Treatment.REFUSED, why, default)


def no_meaning(why: str, default: str | bool) -> Flag:
    """A flag about what does not exist in kroute."""
    return _default_alone(Treatment.NO_MEANING, why, default)


def either(why: str, *, default: bool) -> Flag:
    """A switch that asks for nothing: both values are accepted."""
    return switch([], [], why, default=default)._replace(outcome=Treatment.NO_MEANING)


def needed(why: str) -> Flag:
    """A switch that is on in the other proxy and cannot be off in kroute."""

    def translate(value: str) -> list[str]:
        if not is_true(value):
            raise ValueError(why)
        return []

    return Flag(Treatment.REFUSED, why, "true", translate, is_switch=True)


def _verbosity(value: str) -> list[str]:
    try:
        level = int(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number; use --log-level") from None
    return ["--log-level", "debug"] if level >= DEBUG else []


VERBOSITY = Flag(Treatment.HONOURED, f"`--log-level debug` from `{DEBUG}` on; less asks for nothing", "0", _verbosity)
"""The flag `--v` of klog. Kubernetes uses 4 and more for what developers look at."""


def _default_alone(outcome: Treatment, why: str, default: str | bool) -> Flag:
    is_switch = isinstance(default, bool)

    def translate(value: str) -> list[str]:
        if (is_true(value) and not default) if is_switch else (_plain(value) != _plain(str(default))):
            raise ValueError(why)
        return []

    return Flag(outcome, why, _written(default), translate, is_switch)


def _written(default: str | bool) -> str:
    return default if isinstance(default, str) else str(default).lower()


def _plain(text: str) -> str:
    """The value in one of the ways in which it may be written: `1m0s` is `60s`, and `[]` an empty list."""
    try:
        return duration(text)
    except ValueError:
        return text.strip("[]\"'")


_ROUTING = "kroute connects pods with --pod-network (docs/pod-network.md): leave this out here"
_BIRD = "kroute speaks BGP by BIRD (docs/routing.md): leave this out here"
_PASSWORDS = "use --peer-passwords DIRECTORY (docs/routing.md)"
_POLICIES = "--network-policies has kroute enforce network policies; or keep kube-router --run-service-proxy=false"
_CLASSES = "false is `--loadbalancer-class kube-router`; true, the default, asks for nothing"
_ALLOCATES_AT_ONCE = "kroute looks at a Service when it changes: leave this out"
_DSR = "kroute needs no container runtime for direct return: --direct-return (docs/direct-return.md)"
_HEALTH = "use --healthz-bind-address ADDRESS:PORT"
_METRICS = "use --metrics-bind-address ADDRESS:PORT; the path is /metrics"
_FAMILIES = "kroute serves the families that the node has an address of; --node-ip says which"
_DRAINS = "kroute always lets connections drain; --drain-timeout says for how long"

_POD_NETWORK: dict[str, Flag] = {
    "run-router": refused(_ROUTING, True),
    "advertise-pod-cidr": switch(["--advertise-pod-cidr"], [], THE_SAME, default=True),
    "enable-overlay": switch([], ["--overlay", "off"], "false is `--overlay off`", default=True),
    "overlay-type": renamed("--overlay", "subnet"),
    "overlay-encap": renamed("--overlay-encap", "ipip", becomes=THE_SAME),
    "overlay-encap-port": renamed("--overlay-encap-port-number", "5555"),
    "enable-pod-egress": switch([], ["--pod-egress", "keep"], "false is `--pod-egress keep`", default=True),
    "enable-cni": either("with --pod-network kroute writes a configuration of CNI", default=True),
    "auto-mtu": either("kroute finds the MTU of pods; --pod-mtu sets it", default=True),
    "disable-source-dest-check": either("kroute does not change what a cloud checks", default=True),
    "injected-routes-sync-period": no_meaning("use --resync-period", "1m0s"),
    "routes-sync-period": no_meaning("use --resync-period", "5m0s"),
}
"""The flags of kube-router's routing of pods. Without `--pod-network` kroute makes nothing of them."""
_SWITCHES = ("advertise-cluster-ip", "advertise-external-ip", "advertise-loadbalancer-ip", "override-nexthop")
_PEERS = ("peer-router-asns", "peer-router-ips", "peer-router-ports")


def _unless(unset: str, name: str, default: str) -> Flag:
    """A flag of this name whose value `unset` asks for what kroute does without the flag."""
    return Flag(
        Treatment.HONOURED, THE_SAME, default, lambda value: [f"--{name}", value] if value not in {"", unset} else []
    )


def _milliseconds(value: str) -> str:
    return duration(f"{value}ms")


_BFD_INTERVAL = "`--bfd-interval`, which is for both directions"
_BGP: dict[str, Flag] = {
    **{name: switch([f"--{name}"], [], THE_SAME) for name in _SWITCHES},
    **{name: same(name) for name in _PEERS},
    "peer-router-multihop-ttl": renamed("--peer-router-multihop-ttl", "0", becomes=THE_SAME),
    "peer-router-passwords": refused(_PASSWORDS, ""),
    "peer-router-passwords-file": refused(_PASSWORDS, ""),
    "nodes-full-mesh": switch(["--nodes-full-mesh"], [], THE_SAME, default=True),
    "enable-ibgp": either("kroute speaks with nodes by --nodes-full-mesh and by route reflectors alone", default=True),
    "cluster-asn": _unless("0", "cluster-asn", "0"),
    "router-id": _unless("generate", "router-id", ""),
    "bgp-port": renamed("--bgp-port-number", "179"),
    "bgp-holdtime": renamed("--bgp-holdtime", "1m30s", duration, becomes=THE_SAME),
    "bgp-graceful-restart": switch(
        [],
        ["--bgp-graceful-restart-time", "0s"],
        "false is `--bgp-graceful-restart-time 0s`. It is kube-router's default; kroute's is true",
    ),
    "bgp-graceful-restart-time": renamed("--bgp-graceful-restart-time", "1m30s", duration, becomes=THE_SAME),
    "enable-bfd": switch(["--bfd"], [], "`--bfd`"),
    "bfd-detection-multiplier": renamed("--bfd-multiplier", "3"),
    "bfd-desired-min-tx-interval": renamed("--bfd-interval", "1000", _milliseconds, becomes=_BFD_INTERVAL),
    "bfd-required-min-rx-interval": renamed("--bfd-interval", "1000", _milliseconds, becomes=_BFD_INTERVAL),
    "bfd-port": no_meaning("BIRD has the port of RFC 5881", "3784"),
    "bgp-graceful-restart-deferral-time": no_meaning(_BIRD, "6m0s"),
    "gobgp-admin-address": refused(_BIRD, "127.0.0.1"),
    "gobgp-admin-port": refused(_BIRD, "50051"),
}
"""The flags of kube-router's BGP. Without `--announce` kroute makes nothing of them."""

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
    "run-loadbalancer": switch(["--allocate-load-balancer-ips"], [], "`--allocate-load-balancer-ips`"),
    "enable-ipv4": needed(_FAMILIES),
    "enable-ipv6": either(_FAMILIES, default=False),
    "service-node-port-range": no_meaning(
        "kroute takes each Service's nodePort as the API has it: leave this out", "30000-32767"
    ),
    "cache-sync-timeout": no_meaning("kroute waits for the API server as long as it takes: leave this out", "1m0s"),
    "cleanup-config": refused("use `kroute cleanup`", False),
    "health-addr": refused(_HEALTH, ""),
    "health-port": refused(_HEALTH, "20244"),
    "metrics-addr": refused(_METRICS, ""),
    "metrics-path": refused(_METRICS, "/metrics"),
    "metrics-port": refused(_METRICS, "0"),
    "enable-pprof": refused("kroute has no profiling endpoint: leave this out", False),
    "runtime-endpoint": refused(_DSR, ""),
    "v": VERBOSITY,
    "loadbalancer-default-class": switch([], ["--loadbalancer-class", "kube-router"], _CLASSES, default=True),
    "loadbalancer-sync-period": no_meaning(_ALLOCATES_AT_ONCE, "1m0s"),
    "iptables-sync-period": refused(_POLICIES, "5m0s"),
    "netpol-default-deny": refused(_POLICIES, False),
    "use-nftables-for-netpol": refused(_POLICIES, False),
    "kubeconfig": same("kubeconfig"),
    "master": same("master"),
    "cluster-cidr": same("cluster-cidr", networks),
    "loadbalancer-ip-range": same("loadbalancer-ip-range", networks),
    **_BGP,
    **_POD_NETWORK,
}

KUBE_ROUTER = OtherFlags("kube-router", _FLAGS)


_LOGS = "kroute's are --log-level and --log-format"


def _node_ip(value: str) -> list[str]:
    return [] if not value or is_unspecified(value) else ["--node-ip", value]


def _port_of_healthz(value: str) -> list[str]:
    return ["--healthz-bind-address", "off" if value == "0" else f":{value}"]


def _scheduler(value: str) -> list[str]:
    chosen = ["--scheduler", value] if value.strip() else []
    return [*chosen, "--scheduler-flags", MH_FLAGS] if value == "mh" else chosen


def _log_format(value: str) -> list[str]:
    if value not in {"text", "json"}:
        raise ValueError(f"{value!r} is not a format: write text or json, or use --log-format")
    return ["--log-format", "json"] if value == "json" else []


_LOG_DEFAULTS: dict[str, str | bool] = {
    "vmodule": "",
    "log-flush-frequency": "5s",
    "log-json-info-buffer-size": "0",
    "log-json-split-stream": False,
    "log-text-info-buffer-size": "0",
    "log-text-split-stream": False,
    "add-dir-header": False,
    "alsologtostderr": False,
    "log-backtrace-at": ":0",
    "log-dir": "",
    "log-file": "",
    "log-file-max-size": "1800",
    "logtostderr": True,
    "one-output": False,
    "skip-headers": False,
    "skip-log-headers": False,
    "stderrthreshold": "2",
}
_OTHERS: dict[str, Flag] = {
    "bind-address": Flag(
        Treatment.HONOURED, "`--node-ip`; not for `0.0.0.0` or `::`", "0.0.0.0", _node_ip, field="bindAddress"
    ),
    "proxy-mode": Flag(
        Treatment.NO_MEANING, f"{UNUSED['mode']}: every value is accepted", "", lambda _: [], field="mode"
    ),
    "iptables-localhost-nodeports": refused(UNUSED["iptables.localhostNodePorts"], True)._replace(
        field="iptables.localhostNodePorts"
    ),
    "ipvs-scheduler": Flag(
        Treatment.HONOURED,
        "`--scheduler`; with `mh` also `--scheduler-flags` with `mh-port`",
        "",
        _scheduler,
        field="ipvs.scheduler",
    ),
    "ipvs-strict-arp": switch(
        ["--strict-arp", "on"],
        ["--strict-arp", "off"],
        "`--strict-arp`. kubeadm writes `false`, which is kube-proxy's default; without it kroute's is `on`",
    )._replace(field="ipvs.strictARP"),
    "config": same("config"),
    "master": same("master"),
    "cleanup": refused("use `kroute cleanup`", False),
    "init-only": refused("kroute needs no step with more privileges: docs/deploy.md has the few that it needs", False),
    "write-config-to": refused("docs/settings.md has every setting with its default", ""),
    "healthz-port": Flag(
        Treatment.HONOURED, "`--healthz-bind-address`, on every address; `0` is `off`", "10256", _port_of_healthz
    ),
    "metrics-port": refused("use --metrics-bind-address", "10249"),
    "boot-id-file": no_meaning("kroute does not read it", "/proc/sys/kernel/random/boot_id"),
    "machine-id-file": no_meaning("kroute does not read it", "/etc/machine-id,/var/lib/dbus/machine-id"),
    "v": VERBOSITY,
    "logging-format": Flag(Treatment.HONOURED, "`--log-format json` for `json`", "text", _log_format),
    **{name: no_meaning(_LOGS, default) for name, default in _LOG_DEFAULTS.items()},
}

_FIELDS: dict[str, tuple[str, str | bool]] = {
    "kube-api-burst": ("clientConnection.burst", "10"),
    "kube-api-content-type": ("clientConnection.contentType", "application/vnd.kubernetes.protobuf"),
    "kube-api-qps": ("clientConnection.qps", "5"),
    "bind-address-hard-fail": ("bindAddressHardFail", False),
    "profiling": ("enableProfiling", False),
    "show-hidden-metrics-for-version": ("showHiddenMetricsForVersion", ""),
    "feature-gates": ("featureGates", ""),
    "iptables-sync-period": ("iptables.syncPeriod", "30s"),
    "iptables-min-sync-period": ("iptables.minSyncPeriod", "1s"),
    "ipvs-min-sync-period": ("ipvs.minSyncPeriod", "0s"),
    "oom-score-adj": ("oomScoreAdj", "-999"),
    "config-sync-period": ("configSyncPeriod", "15m0s"),
    "kubeconfig": ("clientConnection.kubeconfig", ""),
    "hostname-override": ("hostnameOverride", ""),
    "healthz-bind-address": ("healthzBindAddress", "0.0.0.0:10256"),
    "metrics-bind-address": ("metricsBindAddress", "127.0.0.1:10249"),
    "cluster-cidr": ("clusterCIDR", ""),
    "detect-local-mode": ("detectLocalMode", ""),
    "pod-bridge-interface": ("detectLocal.bridgeInterface", ""),
    "pod-interface-name-prefix": ("detectLocal.interfaceNamePrefix", ""),
    "nodeport-addresses": ("nodePortAddresses", ""),
    "ipvs-sync-period": ("ipvs.syncPeriod", "30s"),
    "ipvs-exclude-cidrs": ("ipvs.excludeCIDRs", ""),
    "ipvs-tcp-timeout": ("ipvs.tcpTimeout", "0s"),
    "ipvs-tcpfin-timeout": ("ipvs.tcpFinTimeout", "0s"),
    "ipvs-udp-timeout": ("ipvs.udpTimeout", "0s"),
    "conntrack-max-per-core": ("conntrack.maxPerCore", "32768"),
    "conntrack-min": ("conntrack.min", "131072"),
    "conntrack-tcp-be-liberal": ("conntrack.tcpBeLiberal", False),
    "conntrack-tcp-timeout-established": ("conntrack.tcpEstablishedTimeout", "24h0m0s"),
    "conntrack-tcp-timeout-close-wait": ("conntrack.tcpCloseWaitTimeout", "1h0m0s"),
    "conntrack-udp-timeout": ("conntrack.udpTimeout", "0s"),
    "conntrack-udp-timeout-stream": ("conntrack.udpStreamTimeout", "0s"),
    "iptables-masquerade-bit": ("iptables.masqueradeBit", "14"),
    "masquerade-all": ("iptables.masqueradeAll", False),
}
"""Flags that mean what a field means, with the field and the flag's default."""
_LISTENING = frozenset({"healthzBindAddress", "metricsBindAddress"})
"""Fields whose flags mean `off` by an empty value."""


def _of_field(flag: str, field: str, default: str | bool) -> Flag:
    """The flag that means what a field means, by the table of the fields."""
    if field in UNUSED:
        return no_meaning(UNUSED[field], default)._replace(field=field)
    name, write = USED[field]
    if isinstance(default, bool):
        found = switch([f"--{name}"], [], THE_SAME, default=default)
    else:
        unset = "off" if field in _LISTENING else None
        found = renamed(f"--{name}", default, write, unset=unset, becomes=THE_SAME if name == flag else "")
    return found._replace(field=field)


KUBE_PROXY = OtherFlags(
    "kube-proxy", {name: _of_field(name, field, default) for name, (field, default) in _FIELDS.items()} | _OTHERS
)
