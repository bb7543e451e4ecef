"""kube-proxy's flags, and what becomes of each on kroute's command line.

The flags are those of cmd/kube-proxy/app/options.go, component-base/logs/api/v1 and klog (1.36). Many have a field of
the same meaning in the configuration file, which kroute reads too: the reasons are those of its table.
"""

from functools import partial

from kroute.migration.flag_table import (
    THE_SAME,
    Flag,
    OtherFlags,
    Outcome,
    no_meaning,
    refused,
    renamed,
    same,
    switch,
    verbosity,
)
from kroute.migration.go_values import bind_address, duration, host_name, is_unspecified, mark_bit, networks
from kroute.migration.kube_proxy_configuration import HEALTHZ_PORT, METRICS_PORT, MH_FLAGS, UNUSED

_LOGS = "kroute's are --log-level and --log-format"


def _unused(field: str, default: str | bool) -> Flag:
    """A flag whose field has no effect in kroute."""
    return no_meaning(UNUSED[field], default)


def _node_ip(value: str) -> list[str]:
    return [] if not value or is_unspecified(value) else ["--node-ip", value]


def _port_of_healthz(value: str) -> list[str]:
    return ["--healthz-bind-address", "off" if value == "0" else f":{value}"]


def _scheduler(value: str) -> list[str]:
    chosen = ["--scheduler", value] if value.strip() else []
    return [*chosen, "--scheduler-flags", MH_FLAGS] if value == "mh" else chosen


def _log_format(value: str) -> list[str]:
    if value not in {"text", "json"}:
        raise ValueError(f"{value!r} is not a format: write text or json, or kroute's --log-format")
    return ["--log-format", "json"] if value == "json" else []


_WITHOUT_FIELD: dict[str, Flag] = {
    "config": same("config"),
    "master": same("master"),
    "cleanup": refused("kroute's word is `kroute cleanup`", False),
    "init-only": refused("kroute needs no step with more privileges: docs/deploy.md has the few that it needs", False),
    "write-config-to": refused("docs/settings.md has every setting with its default", ""),
    "healthz-port": Flag(
        Outcome.HONOURED, "`--healthz-bind-address`, on every address; `0` is `off`", "10256", _port_of_healthz
    ),
    "metrics-port": refused("kroute's word is --metrics-bind-address", "10249"),
    "boot-id-file": no_meaning("kroute does not read it", "/proc/sys/kernel/random/boot_id"),
    "machine-id-file": no_meaning("kroute does not read it", "/etc/machine-id,/var/lib/dbus/machine-id"),
    "v": verbosity(),
    "vmodule": no_meaning(_LOGS, ""),
    "log-flush-frequency": no_meaning(_LOGS, "5s"),
    "log-json-info-buffer-size": no_meaning(_LOGS, "0"),
    "log-json-split-stream": no_meaning(_LOGS, False),
    "log-text-info-buffer-size": no_meaning(_LOGS, "0"),
    "log-text-split-stream": no_meaning(_LOGS, False),
    "logging-format": Flag(Outcome.HONOURED, "`--log-format json` for `json`", "text", _log_format),
    "add-dir-header": no_meaning(_LOGS, False),
    "alsologtostderr": no_meaning(_LOGS, False),
    "log-backtrace-at": no_meaning(_LOGS, ":0"),
    "log-dir": no_meaning(_LOGS, ""),
    "log-file": no_meaning(_LOGS, ""),
    "log-file-max-size": no_meaning(_LOGS, "1800"),
    "logtostderr": no_meaning(_LOGS, True),
    "one-output": no_meaning(_LOGS, False),
    "skip-headers": no_meaning(_LOGS, False),
    "skip-log-headers": no_meaning(_LOGS, False),
    "stderrthreshold": no_meaning(_LOGS, "2"),
}

_WITH_FIELD: dict[str, tuple[str, Flag]] = {
    "kubeconfig": ("clientConnection.kubeconfig", same("kubeconfig")),
    "kube-api-burst": ("clientConnection.burst", _unused("clientConnection.burst", "10")),
    "kube-api-content-type": (
        "clientConnection.contentType",
        _unused("clientConnection.contentType", "application/vnd.kubernetes.protobuf"),
    ),
    "kube-api-qps": ("clientConnection.qps", _unused("clientConnection.qps", "5")),
    "hostname-override": ("hostnameOverride", renamed("--node-name", write=host_name)),
    "bind-address": (
        "bindAddress",
        Flag(Outcome.HONOURED, "`--node-ip`; not for `0.0.0.0` or `::`", "0.0.0.0", _node_ip),
    ),
    "bind-address-hard-fail": ("bindAddressHardFail", _unused("bindAddressHardFail", False)),
    "healthz-bind-address": (
        "healthzBindAddress",
        same("healthz-bind-address", "0.0.0.0:10256", partial(bind_address, port=HEALTHZ_PORT), unset="off"),
    ),
    "metrics-bind-address": (
        "metricsBindAddress",
        same("metrics-bind-address", "127.0.0.1:10249", partial(bind_address, port=METRICS_PORT), unset="off"),
    ),
    "profiling": ("enableProfiling", _unused("enableProfiling", False)),
    "show-hidden-metrics-for-version": ("showHiddenMetricsForVersion", _unused("showHiddenMetricsForVersion", "")),
    "feature-gates": ("featureGates", _unused("featureGates", "")),
    "proxy-mode": ("mode", Flag(Outcome.NO_MEANING, UNUSED["mode"] + ": every value is accepted", "", lambda _: [])),
    "iptables-masquerade-bit": ("iptables.masqueradeBit", renamed("--masquerade-mark", "14", mark_bit)),
    "masquerade-all": ("iptables.masqueradeAll", switch(["--masquerade-all"], [], THE_SAME)),
    "iptables-localhost-nodeports": (
        "iptables.localhostNodePorts",
        refused(UNUSED["iptables.localhostNodePorts"], True),
    ),
    "iptables-sync-period": ("iptables.syncPeriod", _unused("iptables.syncPeriod", "30s")),
    "iptables-min-sync-period": ("iptables.minSyncPeriod", _unused("iptables.minSyncPeriod", "1s")),
    "ipvs-sync-period": ("ipvs.syncPeriod", renamed("--resync-period", "30s", duration)),
    "ipvs-min-sync-period": ("ipvs.minSyncPeriod", _unused("ipvs.minSyncPeriod", "0s")),
    "ipvs-scheduler": (
        "ipvs.scheduler",
        Flag(Outcome.HONOURED, "`--scheduler`; with `mh` also `--scheduler-flags` with `mh-port`", "", _scheduler),
    ),
    "ipvs-exclude-cidrs": ("ipvs.excludeCIDRs", renamed("--exclude-cidrs", write=networks)),
    "ipvs-strict-arp": (
        "ipvs.strictARP",
        switch(
            ["--strict-arp", "on"],
            ["--strict-arp", "off"],
            "`--strict-arp`. kubeadm writes `false`, which is kube-proxy's default; without it kroute's is `on`",
        ),
    ),
    "ipvs-tcp-timeout": ("ipvs.tcpTimeout", same("ipvs-tcp-timeout", "0s", duration)),
    "ipvs-tcpfin-timeout": ("ipvs.tcpFinTimeout", same("ipvs-tcpfin-timeout", "0s", duration)),
    "ipvs-udp-timeout": ("ipvs.udpTimeout", same("ipvs-udp-timeout", "0s", duration)),
    "detect-local-mode": ("detectLocalMode", same("detect-local-mode")),
    "pod-bridge-interface": ("detectLocal.bridgeInterface", same("pod-bridge-interface")),
    "pod-interface-name-prefix": ("detectLocal.interfaceNamePrefix", same("pod-interface-name-prefix")),
    "cluster-cidr": ("clusterCIDR", same("cluster-cidr", write=networks)),
    "nodeport-addresses": ("nodePortAddresses", same("nodeport-addresses", write=networks)),
    "oom-score-adj": ("oomScoreAdj", _unused("oomScoreAdj", "-999")),
    "config-sync-period": ("configSyncPeriod", _unused("configSyncPeriod", "15m0s")),
    "conntrack-max-per-core": ("conntrack.maxPerCore", same("conntrack-max-per-core", "32768")),
    "conntrack-min": ("conntrack.min", same("conntrack-min", "131072")),
    "conntrack-tcp-timeout-established": (
        "conntrack.tcpEstablishedTimeout",
        same("conntrack-tcp-timeout-established", "24h0m0s", duration),
    ),
    "conntrack-tcp-timeout-close-wait": (
        "conntrack.tcpCloseWaitTimeout",
        same("conntrack-tcp-timeout-close-wait", "1h0m0s", duration),
    ),
    "conntrack-tcp-be-liberal": ("conntrack.tcpBeLiberal", switch(["--conntrack-tcp-be-liberal"], [], THE_SAME)),
    "conntrack-udp-timeout": ("conntrack.udpTimeout", same("conntrack-udp-timeout", "0s", duration)),
    "conntrack-udp-timeout-stream": (
        "conntrack.udpStreamTimeout",
        same("conntrack-udp-timeout-stream", "0s", duration),
    ),
}

KUBE_PROXY = OtherFlags(
    "kube-proxy", {name: flag._replace(field=field) for name, (field, flag) in _WITH_FIELD.items()} | _WITHOUT_FIELD
)
