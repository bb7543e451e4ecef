"""What a cluster's API says before kroute is installed: the objects that `kroute check --cluster` reads.

Everything is read by GET alone, so that kubectl can do it as well as kroute's own client. Each object is decoded by
itself: one that is of another form, or that may not be read, is one finding, and costs nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from kroute.checks.cluster_objects import (
    MOST_ELEMENTS,
    ClusterNode,
    ClusterPod,
    ConfigMap,
    Container,
    DaemonSet,
    Object,
)
from kroute.checks.finding import Finding, warning
from kroute.model.addresses import canonical
from kroute.model.objects import EndpointSlice
from kroute.watchers.json_text import decoded
from kroute.watchers.kubernetes.decoding import read_page
from kroute.watchers.kubernetes.errors import ApiError

PAGE = 250
"""Objects of one page of a list."""
MOST_PAGES = 20
"""Pages of one list that are read: 5,000 nodes, as many as Kubernetes supports."""
LONGEST_TEXT = 256 << 10
"""Bytes of one file in a ConfigMap. The API server takes 1 MiB; kubeadm's files have less than 4 KiB."""
MOST_CONFIG_MAPS = 16
"""ConfigMaps that are read because the pods of a known program mount them."""
UNREAD = "access"
"""The check that names what could not be read."""

Query = Mapping[str, str]
Get = Callable[[str, Query], Awaitable[bytes]]
"""GET of a path with a query. Raises ApiError."""
T = TypeVar("T")


class _Spec(msgspec.Struct):
    """The fields of a ServiceCIDR, and of Calico's IPPools and FelixConfiguration."""

    cidrs: list[str] | None = None
    cidr: str = ""
    disabled: bool = False
    is_ebpf: bool = msgspec.field(default=False, name="bpfEnabled")


class _Specified(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Version(msgspec.Struct):
    git_version: str = msgspec.field(name="gitVersion")


class ConfigMapKey(NamedTuple):
    """The name of a ConfigMap."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"ConfigMap {self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{quote(self.namespace, safe='')}/configmaps/{quote(self.name, safe='')}"


CLUSTER_INFO = ConfigMapKey("kube-public", "cluster-info")
KUBEADM_CONFIG = ConfigMapKey("kube-system", "kubeadm-config")
KUBE_PROXY_CONFIG = ConfigMapKey("kube-system", "kube-proxy")
"""Where kubeadm writes each."""

MOUNTING = ("kube-proxy", "cilium-agent", "antrea-agent", "kube-flannel")
"""The containers whose pods' ConfigMaps say what kroute needs to know."""


class Cluster(msgspec.Struct):
    """What was read, as far as it exists and may be read; `unread` has a finding for each failure.

    `endpoints` are the addresses and ports of the Service `default/kubernetes`: the API servers themselves.
    """

    version: str
    namespace: str
    namespace_labels: Mapping[str, str] | None = None
    namespace_is_missing: bool = False
    nodes: list[ClusterNode] = msgspec.field(default_factory=list)
    daemon_sets: list[DaemonSet] = msgspec.field(default_factory=list)
    static_pods: list[ClusterPod] = msgspec.field(default_factory=list)
    endpoints: list[tuple[str, int]] = msgspec.field(default_factory=list)
    service_cidrs: list[str] = msgspec.field(default_factory=list)
    config_maps: dict[ConfigMapKey, Mapping[str, str]] = msgspec.field(default_factory=dict)
    calico_pools: list[str] = msgspec.field(default_factory=list)
    felix_is_ebpf: bool = False
    unread: list[Finding] = msgspec.field(default_factory=list)

    def running(self, program: str) -> list[DaemonSet]:
        """The DaemonSets for Linux that run this program."""
        return [each for each in self.daemon_sets if each.is_for_linux and each.pod.container(program)]


async def read_cluster(get: Get, namespace: str) -> Cluster:
    """Read everything. `namespace` is where kroute is to be installed.

    Raises:
        ApiError: not even the version can be read, so nobody answers.
    """
    reader = _Reader(get)
    cluster = Cluster(await _version(get), namespace, unread=reader.unread)
    name = f"the Namespace {namespace}"
    async with asyncio.TaskGroup() as reads:
        found_namespace = reads.create_task(reader.one(name, f"/api/v1/namespaces/{quote(namespace, safe='')}", Object))
        nodes = reads.create_task(reader.all("Nodes", "/api/v1/nodes", ClusterNode))
        daemon_sets = reads.create_task(reader.all("DaemonSets", "/apis/apps/v1/daemonsets", DaemonSet))
        pods = reads.create_task(reader.all("the control plane's Pods", _CONTROL_PLANE, ClusterPod, _COMPONENTS))
        slices = reads.create_task(reader.all(f"the {OF_API_SERVERS}", _SLICES, EndpointSlice, _API_SERVERS))
        ranges = reads.create_task(reader.all("ServiceCIDRs", "/apis/networking.k8s.io/v1/servicecidrs", _Specified))
        reads.create_task(reader.config_maps(cluster, (CLUSTER_INFO, KUBEADM_CONFIG)))
    cluster.namespace_is_missing = name in reader.missing
    if (there := found_namespace.result()) is not None:
        cluster.namespace_labels = there.labels
    cluster.nodes, cluster.daemon_sets = nodes.result(), daemon_sets.result()
    cluster.static_pods = [pod for pod in pods.result() if pod.is_mirror]  # AKS labels those of its DaemonSet, too
    cluster.endpoints = sorted({address for found in slices.result() for address in _addresses(found)})
    cluster.service_cidrs = sorted({cidr for found in ranges.result() for cidr in found.spec.cidrs or ()})
    await _read_configurations(reader, cluster)
    return cluster


async def _version(get: Get) -> str:
    """The version of the API server; empty if it may not be read."""
    try:
        return decoded(msgspec.json.Decoder(_Version).decode, await get("/version", {})).git_version
    except msgspec.DecodeError as error:
        raise ApiError(0, "", f"the server that answers is not an API server: {error}") from None
    except ApiError as error:
        if error.status != 403:
            raise
        return ""


OF_API_SERVERS = "EndpointSlices of the Service default/kubernetes"
_SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
_API_SERVERS = "kubernetes.io/service-name=kubernetes"
_CONTROL_PLANE = "/api/v1/namespaces/kube-system/pods"
_COMPONENTS = "component in (kube-proxy,kube-apiserver,kube-controller-manager)"


def _addresses(item: EndpointSlice) -> Iterable[tuple[str, int]]:
    port = next((port.port for port in item.ports or () if port.port and port.name in {"https", "", None}), None)
    for endpoint in (item.endpoints or ())[:MOST_ELEMENTS] if port else ():
        for address in endpoint.addresses:
            if (known := canonical(address)) is not None:
                yield known, port or 0


async def _read_configurations(reader: "_Reader", cluster: Cluster) -> None:
    """What can only be named once the DaemonSets are known."""
    running = [daemon_set for program in MOUNTING for daemon_set in cluster.running(program)]
    mounted = {ConfigMapKey(found.metadata.namespace, name) for found in running for name in found.pod.config_maps}
    if not cluster.daemon_sets:
        mounted.add(KUBE_PROXY_CONFIG)
    mounted |= {ConfigMapKey(found.metadata.namespace, "cilium-config") for found in cluster.running("cilium-agent")}
    await reader.config_maps(cluster, sorted(mounted)[:MOST_CONFIG_MAPS])
    if cluster.running("calico-node"):
        base = "/apis/crd.projectcalico.org/v1"
        pools, felix = await asyncio.gather(
            reader.all("Calico's IPPools", f"{base}/ippools", _Specified),
            reader.one("Calico's FelixConfiguration default", f"{base}/felixconfigurations/default", _Specified),
        )
        cluster.calico_pools = [item.spec.cidr for item in pools if item.spec.cidr and not item.spec.disabled]
        cluster.felix_is_ebpf = felix is not None and felix.spec.is_ebpf


class _Reader:
    """Reads objects, and keeps a finding for each read that has failed."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self.unread: list[Finding] = []
        self.missing: set[str] = set()

    async def one(self, what: str, path: str, form: type[T]) -> T | None:
        """One object, or None."""
        try:
            return decoded(msgspec.json.Decoder(form).decode, await self._get(path, {}))
        except (ApiError, msgspec.DecodeError) as error:
            self._failed(what, error)
            return None

    async def all(self, what: str, path: str, form: type[T], labels: str = "") -> list[T]:
        """The objects of a list, as far as they can be read. `labels`: a label selector."""
        found: list[T] = []
        decode = msgspec.json.Decoder(form).decode
        query = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
        try:
            for _ in range(MOST_PAGES):
                page = await read_page(await self._get(path, query))
                for item in page.items or ():
                    try:
                        found.append(decoded(decode, bytes(item)))
                    except msgspec.DecodeError as error:
                        self._failed(f"one of {what}", error)
                if not page.metadata.token:
                    return found
                query["continue"] = page.metadata.token
        except (ApiError, msgspec.DecodeError) as error:
            self._failed(what, error)
            return found
        self._add(f"only the first {len(found):,} of {what} were read", "the others may differ")
        return found

    async def config_maps(self, cluster: Cluster, keys: Iterable[ConfigMapKey]) -> None:
        """Add the ConfigMaps that exist. A text that is too long is left out."""
        wanted = [key for key in keys if key not in cluster.config_maps]
        found = await asyncio.gather(*(self.one(f"the {key}", key.path, ConfigMap) for key in wanted))
        for key, config_map in zip(wanted, found, strict=True):
            if config_map is None:
                continue
            texts = dict(config_map.data or {})
            for name in [name for name, text in texts.items() if len(text) > LONGEST_TEXT]:
                del texts[name]
                self._add(f"{name} of the {key} is longer than {LONGEST_TEXT >> 10} KiB", "it is not read")
            cluster.config_maps[key] = texts

    def _failed(self, what: str, error: Exception) -> None:
        match error:
            case ApiError(status=404):
                self.missing.add(what)
            case ApiError(status=403):
                self._add(f"{what} may not be read", "ask with more rights, or find out by hand what depends on it")
            case _:
                self._add(f"{what} cannot be read: {error}", "correct it, or find out by hand what depends on it")

    def _add(self, message: str, next_step: str) -> None:
        if all(each.message != message for each in self.unread):
            self.unread.append(warning(UNREAD, message, next_step))


def flags_of(node: ClusterNode) -> Container | None:
    """The arguments of K3s or RKE2 on a node, those of its configuration file included; None for another kubelet.

    Both write them as a JSON list into an annotation of their Node (`pkg/nodeconfig` of K3s).
    """
    for name in ("k3s.io/node-args", "rke2.io/node-args"):
        if (text := node.annotations.get(name)) is not None:
            try:
                return Container(args=decoded(msgspec.json.Decoder(list[str]).decode, text[:LONGEST_TEXT].encode()))
            except msgspec.DecodeError:
                return Container()
    return None


def server_flags(cluster: Cluster) -> list[Container]:
    """The arguments of every server of K3s or RKE2."""
    found = [flags for node in cluster.nodes if (flags := flags_of(node)) is not None]
    return [flags for flags in found if flags.arguments[:1] == ["server"]]


def mapping_of(text: str) -> Mapping[str, Any]:
    """A YAML mapping; empty for anything else."""
    from kroute.watchers import yaml_text  # noqa: PLC0415  PyYAML: 0.02 s

    try:
        [content] = yaml_text.load(text.encode())
    except yaml_text.FAILURES:
        return {}
    return content if isinstance(content, dict) else {}
