"""The chart's values for a cluster, each with its source, and the findings about what they were made of.

kube-proxy's configuration and flags, and kube-router's flags, are translated by the tables of `kroute.migration`. A
value that `kroute run` would refuse is not taken, and named.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise
from typing import Any, NamedTuple

import click
import msgspec

from kroute.base.printable import printable
from kroute.checks.cluster_addresses import (
    Address,
    api_servers,
    is_within,
    pod_networks,
    pools_of_plugins,
    service_ranges,
)
from kroute.checks.cluster_checks import NEIGHBOURS, PROXY, binding_node_addresses, embedded_kube_proxy, serves
from kroute.checks.cluster_objects import ClusterNode, Container, PodSpec
from kroute.checks.cluster_reader import KUBE_PROXY_CONFIG, Cluster, ConfigMapKey, flags_of, mapping_of
from kroute.checks.finding import Finding, failed, ok, warning
from kroute.cli.parameters.config_file import as_written
from kroute.cli.parameters.run_options import run_options, settings_of
from kroute.cli.parameters.settings_command import translated
from kroute.migration.flags import KUBE_PROXY, KUBE_ROUTER, OtherFlags
from kroute.migration.kube_proxy_configuration import ConfigurationFieldError, is_kube_proxy_configuration, translate

API_SERVER, PODS, SERVICES, SETTINGS = "api server", "pods", "services", "settings"

OF_THE_POD = frozenset(
    {
        *("config", "kubeconfig", "master", "manifests", "node-name", "node-ip"),
        *("state-dir", "proc-sys", "bird-directory", "peer-passwords"),
    }
)
"""Settings that the chart's own manifest settles."""
MOST_REMARKS = 100
_IMAGE = "docs/deploy.md: --build-arg IPTABLES=yes"
_WAITS = "install kroute beside it, which waits and writes nothing"


@click.command("run")
@run_options
def _run(**_values: object) -> None:
    """The options of `kroute run`, without the modules of an agent."""


for _option in _run.params:
    _option.envvar = None  # the variables of this machine are not the cluster's
_OPTIONS = {option.opts[0].removeprefix("--"): option for option in _run.params}
"""By the names that they have in the chart."""


class Value(NamedTuple):
    """A value of the chart, and the object and field that it is from."""

    value: Any
    source: str


class Values(msgspec.Struct):
    """What to install with. `remarks`: what was found and is not taken, with the reason.

    `iptables` is when the chart's value of this name has to be true, or empty. `parsed` are the settings as
    `settings_of` takes them.
    """

    api_servers: list[Address] = msgspec.field(default_factory=list)
    api_source: str = ""
    iptables: str = ""
    settings: dict[str, Value] = msgspec.field(default_factory=dict)
    parsed: dict[str, Any] = msgspec.field(default_factory=dict)
    remarks: list[str] = msgspec.field(default_factory=list)
    findings: list[Finding] = msgspec.field(default_factory=list)

    def set(self, name: str, value: object, source: str) -> bool:
        """Take a setting as `kroute run` reads it; a remark and a finding if it refuses the value."""
        option = _OPTIONS[name]
        try:
            parsed = option.type_cast_value(click.Context(_run), as_written(value, option))
        except (click.BadParameter, OverflowError) as error:
            message = f"{source}: {error.message if isinstance(error, click.BadParameter) else 'it is too large'}"
            self.remark(message)
            self.findings.append(warning(SETTINGS, f"{message}; it is not taken", "correct it, or set it by hand"))
            return False
        elements = [str(each) for each in parsed] if option.multiple else []
        self.settings[name] = Value(elements or _of_chart(value, option), source)
        self.parsed[str(option.name)] = parsed
        return True

    def remark(self, sentence: str) -> None:
        if len(self.remarks) < MOST_REMARKS:
            self.remarks.append(sentence)


class _Proxy(NamedTuple):
    """One kube-proxy: where it is, its pod, its configuration file and its kubeconfig, where they are known."""

    name: str
    pod: PodSpec
    nodes: int
    configuration: tuple[str, Mapping[str, Any]] | None = None
    kubeconfig: tuple[str, Mapping[str, Any]] | None = None


def values_of(cluster: Cluster) -> Values:
    """The values, and findings about other proxies, the API server's addresses, networks and settings."""
    values = Values()
    proxies = list(_kube_proxies(cluster))
    _take_proxies(values, cluster, proxies)
    _take_api_servers(values, cluster, proxies)
    _take_pod_networks(values, cluster)
    _take_service_ranges(values, cluster)
    if bound := binding_node_addresses(cluster):
        values.set("external-ips-on-node-addresses", True, f"{bound} gives Services addresses of nodes")
    arp = values.settings.get("strict-arp")
    if arp is not None and arp.value == "off" and cluster.running("speaker"):
        message = f"MetalLB's layer 2 mode needs --strict-arp on, and it is off here ({arp.source})"
        values.findings.append(warning(NEIGHBOURS, message, "set settings.strict-arp to on"))
    _check_together(values)
    return values


def text_of(values: Values, namespace: str) -> str:
    """The content of `values.yaml`. Strings are quoted as in JSON, which is YAML."""
    install = f"helm install kroute deploy/helm/kroute --namespace {namespace} --values values.yaml"
    lines = ["# Values of the chart kroute for this cluster. Add image.repository, check them, then:"]
    lines += [f"#   {_comment(install)}"]
    lines += ["apiServer:", f"  # {_comment(values.api_source or 'not found: put its own address here')}"]
    address, *others = values.api_servers or [Address("", 6443)]
    if others:
        lines += [f"  hosts: {json.dumps([str(each) for each in values.api_servers])}"]
    else:
        lines += [f"  host: {json.dumps(address.host)}", f"  port: {address.port}"]
    lines += [f"# {_comment(values.iptables)}", "# iptables: true"] if values.iptables else []
    lines += ["settings:"] if values.settings else ["settings: {}"]
    for name, (value, source) in sorted(values.settings.items(), key=lambda each: list(_OPTIONS).index(each[0])):
        lines += [f"  # {_comment(source)}", f"  {name}: {json.dumps(value)}"]
    lines += ["# Found, and not taken:"] if values.remarks else []
    lines += [f"# - {_comment(remark)}" for remark in values.remarks]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    return printable(text)[:500]


def _of_chart(value: object, option: click.Parameter) -> Any:
    """A value as the chart's schema has it: a boolean, a number, or text."""
    if isinstance(option, click.Option) and option.is_flag:
        return value in {True, "true"}
    if isinstance(option.type, click.IntRange):
        return int(str(value))
    return ",".join(as_written(value, option)) if option.multiple else str(as_written(value, option))


def _check_together(values: Values) -> None:
    """Whether `kroute run` takes all settings at once, such as a mode and what it needs."""
    try:
        settings_of(_run.make_context("run", []).params | values.parsed)
    except click.UsageError as error:
        values.findings.append(failed(SETTINGS, error.message, "correct the settings in values.yaml"))


# Other proxies


def _kube_proxies(cluster: Cluster) -> Iterator[_Proxy]:
    """Every kube-proxy for Linux: of DaemonSets, of static Pods (RKE2, GKE), and inside K3s."""
    for each in cluster.running("kube-proxy"):
        count = each.status.desired_number_scheduled
        yield _configured(cluster, f"DaemonSet {each.metadata.key}", each.metadata.namespace, each.pod, count)
    static = [pod for pod in cluster.static_pods if pod.spec.container("kube-proxy")]
    serving, _ = embedded_kube_proxy(cluster)
    if static:
        first = static[0]
        where = f"static Pods such as {first.metadata.key}"
        yield _configured(cluster, where, first.metadata.namespace, first.spec, len(static))
    elif serving:
        words = next((found for node in serving if (found := _embedded_flags(node))), [])
        pod = PodSpec(containers=[Container(name="kube-proxy", args=words)])
        yield _Proxy("a part of K3s or RKE2", pod, len(serving))
    elif not cluster.daemon_sets and KUBE_PROXY_CONFIG in cluster.config_maps:
        pod = PodSpec(containers=[Container(name="kube-proxy")])
        yield _configured(cluster, str(KUBE_PROXY_CONFIG), KUBE_PROXY_CONFIG.namespace, pod, 0)


def _embedded_flags(node: ClusterNode) -> list[str]:
    """The flags that K3s or RKE2 gives its kube-proxy on a Node."""
    arguments = (flags_of(node) or Container()).arguments
    name = "--kube-proxy-arg"
    written = [word.removeprefix(f"{name}=") for word in arguments if word.startswith(f"{name}=")]
    return [f"--{each}" for each in [*written, *(after for word, after in pairwise(arguments) if word == name)]]


def _configured(cluster: Cluster, name: str, namespace: str, pod: PodSpec, nodes: int) -> _Proxy:
    """A kube-proxy with the files that its pods mount."""
    keys = [ConfigMapKey(namespace, each) for each in pod.config_maps] or [KUBE_PROXY_CONFIG]
    found = _Proxy(name, pod, nodes)
    for key in keys:
        for file, text in cluster.config_maps.get(key, {}).items():
            content = mapping_of(text)
            if is_kube_proxy_configuration(content):
                found = found._replace(configuration=(f"{key}, {file}", content))
            elif content.get("kind") == "Config" and content.get("clusters"):
                found = found._replace(kubeconfig=(f"{key}, {file}", content))
    return found


def _take_proxies(values: Values, cluster: Cluster, proxies: list[_Proxy]) -> None:
    """Translate the first kube-proxy that runs anywhere, and kube-router's service proxy."""
    found = [(str(each.metadata.key), each.pod.container("kube-router")) for each in cluster.running("kube-router")]
    routers = [(name, container) for name, container in found if container and serves(container)]
    for name, container in routers[:1]:
        _take_flags(values, container, f"kube-router's DaemonSet {name}", KUBE_ROUTER)
        values.iptables = f"only if kube-router's rules are in legacy tables, which `kroute check` says: {_IMAGE}"
        next_step = f"{_WAITS}; then give it --run-service-proxy=false (docs/migrate-from-kube-router.md)"
        values.findings.append(warning(PROXY, f"kube-router serves Services: DaemonSet {name}", next_step))
    for number, proxy in enumerate(sorted(proxies, key=lambda each: -each.nodes)):
        values.findings.append(_take_kube_proxy(values, proxy) if number == 0 else _another(proxy))
    _, disabled = embedded_kube_proxy(cluster)
    if not proxies and not routers:
        finding = ok(PROXY, "no Pod of kube-proxy was found, and no kube-router that serves Services")
        if disabled:
            finding = ok(PROXY, "kube-proxy is disabled in K3s or RKE2 (disable-kube-proxy)")
        elif not cluster.daemon_sets:
            next_step = "run `kroute check` on a node after the installation"
            finding = warning(PROXY, "whether a kube-proxy runs is not known", next_step)
        values.findings.append(finding)
    if values.settings:
        unused = f", and has no use for {len(values.remarks)} others" if values.remarks else ""
        name = "kube-router" if routers else "kube-proxy"
        message = f"kroute takes {len(values.settings)} settings from {name}{unused}"
        values.findings.append(ok(SETTINGS, f"{message}: `kubectl kroute values`"))


def _another(proxy: _Proxy) -> Finding:
    message = f"there is another kube-proxy ({proxy.name}): its configuration is not translated"
    return warning(PROXY, message, "compare it with the values by hand")


def _take_kube_proxy(values: Values, proxy: _Proxy) -> Finding:
    """Take its settings. Returns the finding that it is there."""
    container = proxy.pod.container("kube-proxy") or Container()
    mode = container.flag("proxy-mode") or ""
    if proxy.configuration is not None:
        source, content = proxy.configuration
        mode = str(content.get("mode") or "")
        _take_configuration(values, content, source, is_ipvs=mode == "ipvs")
    elif container.flag("config") is not None:
        values.remark(f"the configuration file of {proxy.name} is in no ConfigMap that could be read")
        mode = "unknown"
    else:
        _take_flags(values, container, f"kube-proxy's flags, {proxy.name}", KUBE_PROXY)
    where = f"{proxy.name}, on {proxy.nodes:,} Node{'' if proxy.nodes == 1 else 's'}, mode {mode or 'iptables'}"
    if proxy.nodes == 0 and proxy.name.startswith("DaemonSet"):
        return ok(PROXY, f"kube-proxy: {where}")
    if mode != "nftables":
        values.iptables = f"only if kube-proxy's rules are in legacy tables, which `kroute check` says: {_IMAGE}"
    next_step = f"{_WAITS}; then end kube-proxy (docs/migrate-from-kube-proxy.md)"
    return warning(PROXY, f"kube-proxy serves Services: {where}", next_step)


def _take_configuration(values: Values, content: Mapping[str, Any], source: str, *, is_ipvs: bool) -> None:
    try:
        settings, remarks = translate(content)
    except (ConfigurationFieldError, AttributeError, TypeError) as error:  # a value of a form that no field has
        message = f"{source}: {error}"
        values.remark(message)
        values.findings.append(warning(SETTINGS, f"{message}; the file is not taken", "set what you need by hand"))
        return
    for name, value, field, is_default in settings:
        if field == "ipvs.strictARP" and not is_ipvs:
            values.remark(f"{source}, {field}: kube-proxy reads it in mode ipvs only; kroute's --strict-arp stays on")
        elif name not in OF_THE_POD:
            values.set(name, value, f"kube-proxy's default of {field}" if is_default else f"{source}, {field}")
    for field, why in remarks.items():
        values.remark(f"{source}, {field}: {why}")


def _take_flags(values: Values, container: Container, source: str, table: OtherFlags) -> None:
    """Take what the flags of kube-router or kube-proxy mean."""
    own = {f"--{name}" for name in _OPTIONS}
    for name in table.flags:
        value = container.flag(name)
        if value is None:
            continue
        try:
            words = translated([f"--{name}={value}"], own)
            meant, _, options = _run.make_parser(click.Context(_run)).parse_args(words)
        except click.UsageError as error:
            values.remark(f"{source}, --{name}: {error.message}")
            continue
        for option in options:
            ours = option.opts[0].removeprefix("--")
            if ours not in OF_THE_POD:
                values.set(ours, meant[str(option.name)], f"{source}, --{name}")


# Addresses and networks


def _take_api_servers(values: Values, cluster: Cluster, proxies: list[_Proxy]) -> None:
    found = api_servers(cluster, [proxy.kubeconfig for proxy in proxies if proxy.kubeconfig])
    values.api_servers, values.api_source = found
    if values.api_servers:
        values.findings.append(ok(API_SERVER, f"{_listed(values.api_servers)} ({values.api_source})"))
    else:
        message = "its own address is not known: the ClusterIP is not served before kroute runs"
        values.findings.append(failed(API_SERVER, message, "set apiServer.host to an address that every node reaches"))


def _take_pod_networks(values: Values, cluster: Cluster) -> None:
    """`cluster-cidr` by the first source that says it; the pools of a plugin that has its own are added."""
    if "cluster-cidr" not in values.settings:
        for source, networks in pod_networks(cluster):
            if networks and values.set("cluster-cidr", networks, source):
                break
    pools = list(pools_of_plugins(cluster))
    for pool, origin in pools:
        networks, source = values.settings.get("cluster-cidr", Value([], ""))
        if not is_within(pool, networks):
            known = [] if origin in source else [origin]
            values.set("cluster-cidr", [*networks, pool], "; ".join([*filter(None, [source]), *known]))
    if "cluster-cidr" in values.settings:
        networks, source = values.settings["cluster-cidr"]
        values.findings.append(ok(PODS, f"{_listed(networks)} ({source})"))
        if not pools:  # then the plugin goes by the Nodes' podCIDRs
            _check_node_networks(values, cluster, networks)
    elif (mode := values.settings.get("detect-local-mode")) is not None and mode.value != "ClusterCIDR":
        values.findings.append(ok(PODS, f"recognised by {mode.value} ({mode.source})"))
    elif cluster.nodes and all(node.spec.pod_cidrs for node in cluster.nodes):
        values.set("detect-local-mode", "NodeCIDR", "no object names the pod networks; each Node has podCIDRs")
        values.findings.append(ok(PODS, "recognised on each Node by its podCIDRs (--detect-local-mode NodeCIDR)"))
    else:
        message = "the pod networks are not known: no connection to a ClusterIP would be masqueraded"
        values.findings.append(warning(PODS, message, "set settings.cluster-cidr"))


def _check_node_networks(values: Values, cluster: Cluster, networks: list[str]) -> None:
    """Whether the pods of each Node are in these networks. The first one that is not is named."""
    pairs = [(node.metadata.name, network) for node in cluster.nodes for network in node.spec.pod_cidrs or ()]
    outside = ((name, network) for name, network in pairs if not is_within(network, networks))
    for name, network in islice(outside, 1):
        message = f"Node {name} has podCIDR {network}, which is in none of {_listed(networks)}"
        values.findings.append(warning(PODS, message, "add the network to settings.cluster-cidr"))


def _take_service_ranges(values: Values, cluster: Cluster) -> None:
    """`service-cidr`, unless the API has ServiceCIDR objects, which kroute reads by itself."""
    if cluster.service_cidrs:
        values.findings.append(ok(SERVICES, f"{_listed(cluster.service_cidrs)} (ServiceCIDRs, which kroute reads)"))
        return
    for source, networks in service_ranges(cluster):
        if networks and ("service-cidr" in values.settings or values.set("service-cidr", networks, source)):
            break
    if "service-cidr" in values.settings:
        value, source = values.settings["service-cidr"]
        values.findings.append(ok(SERVICES, f"{_listed(value)} ({source})"))
    else:
        message = "the Service range is not known: an external IP could be in it"
        values.findings.append(warning(SERVICES, message, "set settings.service-cidr"))


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
