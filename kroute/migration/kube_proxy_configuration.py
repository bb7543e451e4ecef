"""Translate kube-proxy's configuration file (KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1) to settings.

Two tables decide about each field: `USED` names kroute's setting for it, `UNUSED` says why it has no effect here, or
what to do instead. A field that is not set, or has the value that Kubernetes writes for "not set", has no effect.
Fields: staging/src/k8s.io/kube-proxy/config/v1alpha1/types.go.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from kroute.base.schedulers import FALLBACK
from kroute.migration.go_values import bind_address, duration, host_name, is_unspecified, mark_bit, networks

KIND = "KubeProxyConfiguration"
MH_FLAGS = ",".join((*FALLBACK, "mh-port"))
"""With mh, kube-proxy hashes the client's port too (pkg/proxy/ipvs/proxier.go, FlagSourceHash)."""
API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"

HEALTHZ_PORT, METRICS_PORT = 10256, 10249
"""kube-proxy's ports, for an address that is written without one."""

_NOT_SET = ("", "0", "0s", 0, None)
_FALSE_COUNTS = ("ipvs.strictARP",)
"""Fields whose default differs in kroute: a false in the file is a value, not an omission."""
_DEFAULTS: Mapping[str, Any] = {
    "conntrack.maxPerCore": 32768,
    "conntrack.min": 131072,
    "conntrack.tcpEstablishedTimeout": "24h",
    "conntrack.tcpCloseWaitTimeout": "1h",
}
"""kube-proxy's defaults of fields that change the node. They hold for a file that leaves them out; 0 is a value."""


class ConfigurationFieldError(Exception):
    """A field has an invalid value. The message names both."""


class Translated(NamedTuple):
    """A setting of kroute, by its name in the configuration file, and the field that it comes from.

    `is_default`: the file leaves the field out, and the value is kube-proxy's default.
    """

    name: str
    value: Any
    field: str
    is_default: bool = False


class Translation(NamedTuple):
    """The settings that the file translates to, and a remark for each field that is set and not used."""

    settings: list[Translated]
    remarks: dict[str, str]


def _as_it_is(value: Any) -> Any:
    return value


def _switch(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise ValueError(f"{value!r} is neither true nor false")


USED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "clientConnection.kubeconfig": ("kubeconfig", _as_it_is),
    "hostnameOverride": ("node-name", host_name),
    "bindAddress": ("node-ip", _as_it_is),
    "healthzBindAddress": ("healthz-bind-address", partial(bind_address, port=HEALTHZ_PORT)),
    "metricsBindAddress": ("metrics-bind-address", partial(bind_address, port=METRICS_PORT)),
    "clusterCIDR": ("cluster-cidr", networks),
    "detectLocalMode": ("detect-local-mode", _as_it_is),
    "detectLocal.bridgeInterface": ("pod-bridge-interface", _as_it_is),
    "detectLocal.interfaceNamePrefix": ("pod-interface-name-prefix", _as_it_is),
    "nodePortAddresses": ("nodeport-addresses", networks),
    "ipvs.scheduler": ("scheduler", _as_it_is),
    "ipvs.syncPeriod": ("resync-period", duration),
    "ipvs.excludeCIDRs": ("exclude-cidrs", networks),
    "ipvs.strictARP": ("strict-arp", _switch),
    "ipvs.tcpTimeout": ("ipvs-tcp-timeout", duration),
    "ipvs.tcpFinTimeout": ("ipvs-tcpfin-timeout", duration),
    "ipvs.udpTimeout": ("ipvs-udp-timeout", duration),
    "conntrack.maxPerCore": ("conntrack-max-per-core", _as_it_is),
    "conntrack.min": ("conntrack-min", _as_it_is),
    "conntrack.tcpBeLiberal": ("conntrack-tcp-be-liberal", _switch),
    "conntrack.tcpEstablishedTimeout": ("conntrack-tcp-timeout-established", duration),
    "conntrack.tcpCloseWaitTimeout": ("conntrack-tcp-timeout-close-wait", duration),
    "conntrack.udpTimeout": ("conntrack-udp-timeout", duration),
    "conntrack.udpStreamTimeout": ("conntrack-udp-timeout-stream", duration),
    "iptables.masqueradeBit": ("masquerade-mark", mark_bit),
    "iptables.masqueradeAll": ("masquerade-all", _switch),
    "nftables.masqueradeBit": ("masquerade-mark", mark_bit),
    "nftables.masqueradeAll": ("masquerade-all", _switch),
}
"""Fields that mean the same for kroute, with kroute's name and the conversion of the value."""

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
    "logging": "kroute's are --log-level and --log-format",
    "featureGates": "kroute has no feature gates",
    "enableProfiling": "kroute has no profiling endpoint",
    "showHiddenMetricsForVersion": "kroute hides no metrics",
    "bindAddressHardFail": "kroute serves without a port that is not free, says so, and takes it later",
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
    written = dict(_leaves("", {name: value for name, value in content.items() if name not in {"apiVersion", "kind"}}))
    for field, value in {**_DEFAULTS, **written}.items():
        if field in skipped:
            translation.remarks[field] = skipped[field]
        elif field in USED:
            name, convert = USED[field]
            try:
                translation.settings.append(Translated(name, convert(value), field, field not in written))
            except ValueError as error:
                raise ConfigurationFieldError(f"{field}: {error}") from None
            if (name, value) == ("scheduler", "mh"):
                translation.settings.append(Translated("scheduler-flags", MH_FLAGS, field))
        else:
            section = field.partition(".")[0]
            unknown = f"kroute knows no such field of {KIND}"
            translation.remarks[field] = UNUSED.get(field) or UNUSED.get(section) or unknown
    return translation


def _skipped(content: Mapping[str, Any]) -> dict[str, str]:
    """Fields that another field makes ineffective, with the reason."""
    skipped = {}
    section, other = "iptables", "nftables"
    if content.get("mode") == "nftables":
        section, other = other, section
    for name in ("masqueradeBit", "masqueradeAll"):
        skipped[f"{other}.{name}"] = f"in mode {content.get('mode') or 'ipvs'} the one of the section {section} counts"
    for name, mode in _MODE_OF.items():
        if content.get("detectLocalMode") != mode:
            skipped[f"detectLocal.{name}"] = f"it counts with detectLocalMode {mode} only"
    return skipped


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
        return any(_is_set(f"{field}.{name}", part) for name, part in value.items())
    if field == "bindAddress":
        return bool(value) and not is_unspecified(str(value))
    if field in _DEFAULTS:
        return value is not None
    if field == "mode":
        return value not in {"", None, "ipvs"}
    return field in _FALSE_COUNTS if value is False else value not in _NOT_SET and value != []
