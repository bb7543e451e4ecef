"""Translate kube-proxy's configuration file (KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1) to settings.

Two tables decide about each field: `USED` names kroute's setting for it, `UNUSED` says why it has no effect here, or
what to do instead. A field that is not set, or has the value that Kubernetes writes for "not set", has no effect.
Fields: staging/src/k8s.io/kube-proxy/config/v1alpha1/types.go.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple

KIND = "KubeProxyConfiguration"
API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NOT_SET = ("", "0", "0s", 0, None)
_FALSE_COUNTS = ("ipvs.strictARP",)
"""Fields whose default differs in kroute: a false in the file is a value, not an omission."""


class ConfigurationFieldError(Exception):
    """A field has an invalid value. The message names both."""


class Setting(NamedTuple):
    """A setting of kroute, by its name in the configuration file, and the field that it comes from."""

    name: str
    value: Any
    field: str


class Translation(NamedTuple):
    """The settings that the file translates to, and a remark for each field that is set and not used."""

    settings: list[Setting]
    remarks: dict[str, str]


def _duration(value: Any) -> str:
    """A Go duration (`1m30s`, `500ms`) in seconds."""
    parts = _DURATION_PART.findall(str(value))
    if "".join(number + unit for number, unit in parts) != str(value):
        raise ValueError(f"{value!r} is not a duration: write 30s, 5m or 1h30m")
    return f"{sum(float(number) * _SECONDS[unit] for number, unit in parts):.3f}".rstrip("0").rstrip(".") + "s"


def _as_it_is(value: Any) -> Any:
    return value


def _mark(value: Any) -> str:
    if not isinstance(value, int) or not 0 <= value < 32:
        raise ValueError(f"{value!r} is not a bit of a packet mark: write 0 to 31")
    return f"{1 << value:#x}"


def _switch(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise ValueError(f"{value!r} is neither true nor false")


USED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "clientConnection.kubeconfig": ("kubeconfig", _as_it_is),
    "hostnameOverride": ("node-name", _as_it_is),
    "bindAddress": ("node-ip", _as_it_is),
    "healthzBindAddress": ("healthz-bind-address", _as_it_is),
    "metricsBindAddress": ("metrics-bind-address", _as_it_is),
    "clusterCIDR": ("cluster-cidr", _as_it_is),
    "detectLocalMode": ("detect-local-mode", _as_it_is),
    "detectLocal.bridgeInterface": ("pod-bridge-interface", _as_it_is),
    "detectLocal.interfaceNamePrefix": ("pod-interface-name-prefix", _as_it_is),
    "nodePortAddresses": ("nodeport-addresses", _as_it_is),
    "ipvs.scheduler": ("scheduler", _as_it_is),
    "ipvs.syncPeriod": ("resync-period", _duration),
    "ipvs.excludeCIDRs": ("exclude-cidrs", _as_it_is),
    "ipvs.strictARP": ("strict-arp", _switch),
    "ipvs.tcpTimeout": ("ipvs-tcp-timeout", _duration),
    "ipvs.tcpFinTimeout": ("ipvs-tcpfin-timeout", _duration),
    "ipvs.udpTimeout": ("ipvs-udp-timeout", _duration),
    "iptables.masqueradeBit": ("masquerade-mark", _mark),
    "iptables.masqueradeAll": ("masquerade-all", _switch),
    "nftables.masqueradeBit": ("masquerade-mark", _mark),
    "nftables.masqueradeAll": ("masquerade-all", _switch),
}
"""Fields that mean the same for kroute, with kroute's name and the conversion of the value."""

_SYSCTL = "kroute does not change the connection tracker: set {} on the node"
_AT_ONCE = "kroute writes each change at once, and only what has changed"
_PERIOD = "kroute has one period for every resync: --resync-period, or ipvs.syncPeriod here"
_PROTOCOL = "kroute speaks JSON over one connection, and lists and watches only"

UNUSED: Mapping[str, str] = {
    "mode": "kroute serves by IPVS, whatever the mode was",
    "ipvs.minSyncPeriod": _AT_ONCE,
    "iptables.minSyncPeriod": _AT_ONCE,
    "nftables.minSyncPeriod": _AT_ONCE,
    "iptables.syncPeriod": _PERIOD,
    "nftables.syncPeriod": _PERIOD,
    "iptables.localhostNodePorts": "IPVS does not send from loopback addresses: node ports are not served there",
    "clientConnection.acceptContentTypes": _PROTOCOL,
    "clientConnection.contentType": _PROTOCOL,
    "clientConnection.qps": _PROTOCOL,
    "clientConnection.burst": _PROTOCOL,
    "configSyncPeriod": "kroute follows the API server's watches and needs no repetition",
    "conntrack.maxPerCore": _SYSCTL.format("net.netfilter.nf_conntrack_max"),
    "conntrack.min": _SYSCTL.format("net.netfilter.nf_conntrack_max"),
    "conntrack.tcpEstablishedTimeout": _SYSCTL.format("net.netfilter.nf_conntrack_tcp_timeout_established"),
    "conntrack.tcpCloseWaitTimeout": _SYSCTL.format("net.netfilter.nf_conntrack_tcp_timeout_close_wait"),
    "conntrack.tcpBeLiberal": _SYSCTL.format("net.netfilter.nf_conntrack_tcp_be_liberal"),
    "conntrack.udpTimeout": _SYSCTL.format("net.netfilter.nf_conntrack_udp_timeout"),
    "conntrack.udpStreamTimeout": _SYSCTL.format("net.netfilter.nf_conntrack_udp_timeout_stream"),
    "logging": "kroute's are --log-level and --log-format",
    "featureGates": "kroute has no feature gates",
    "enableProfiling": "kroute has no profiling endpoint",
    "showHiddenMetricsForVersion": "kroute hides no metrics",
    "bindAddressHardFail": "kroute ends when it cannot listen where the settings say",
    "oomScoreAdj": "the pod's priority class says it (system-node-critical)",
    "portRange": "kroute opens no ports of its own",
    "winkernel": "kroute is for Linux",
    "windowsRunAsService": "kroute is for Linux",
}
"""Fields that kroute does not use, with the reason. A name also stands for all fields below it."""

_MODE_OF = {"bridgeInterface": "BridgeInterface", "interfaceNamePrefix": "InterfaceNamePrefix"}


def is_kube_proxy_configuration(content: object) -> bool:
    """Whether a YAML document is a configuration of kube-proxy."""
    return isinstance(content, dict) and content.get("kind") == KIND


def translate(content: Mapping[str, Any]) -> Translation:
    """The settings, and the remarks for unused fields. Raises ConfigurationFieldError."""
    if content.get("apiVersion") != API_VERSION:
        raise ConfigurationFieldError(f"apiVersion is {content.get('apiVersion')!r}: kroute knows {API_VERSION}")
    translation = Translation([], {})
    skipped = _skipped(content)
    for field, value in _leaves("", {name: it for name, it in content.items() if name not in {"apiVersion", "kind"}}):
        if field in skipped:
            translation.remarks[field] = skipped[field]
        elif field in USED:
            name, convert = USED[field]
            try:
                translation.settings.append(Setting(name, convert(value), field))
            except ValueError as error:
                raise ConfigurationFieldError(f"{field}: {error}") from None
        else:
            section = field.partition(".")[0]
            unknown = f"kroute knows no such field of {KIND}"
            translation.remarks[field] = UNUSED.get(field) or UNUSED.get(section) or unknown
    return translation


def _skipped(content: Mapping[str, Any]) -> dict[str, str]:
    """Fields that another field makes ineffective, with the reason."""
    skipped = {}
    section = "nftables" if content.get("mode") == "nftables" else "iptables"
    other = "iptables" if section == "nftables" else "nftables"
    for name in ("masqueradeBit", "masqueradeAll"):
        skipped[f"{other}.{name}"] = f"in mode {content.get('mode') or 'ipvs'} the one of the section {section} counts"
    for name, mode in _MODE_OF.items():
        if content.get("detectLocalMode") != mode:
            skipped[f"detectLocal.{name}"] = f"it counts with detectLocalMode {mode} only"
    return skipped


def _is_unspecified(address: str) -> bool:
    try:
        return ip_address(address).is_unspecified
    except ValueError:
        return False  # the setting's own check reports an invalid address


def _leaves(prefix: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every field that is set, as `section.field`, with its value. A section that is unused as a whole is one field."""
    for name, value in content.items():
        field = f"{prefix}{name}"
        if isinstance(value, Mapping) and field not in UNUSED:
            yield from _leaves(f"{field}.", value)
        elif _is_set(field, value):
            yield field, value


def _is_set(field: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_set(f"{field}.{name}", it) for name, it in value.items())
    if field == "bindAddress":
        return bool(value) and not _is_unspecified(str(value))
    if field == "mode":
        return value not in {"", None, "ipvs"}
    return field in _FALSE_COUNTS if value is False else value not in _NOT_SET and value != []
